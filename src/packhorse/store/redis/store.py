"""The Redis store: what is asked of it, and who answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from packhorse.core.changes import Change
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.errors import Conflict, PackhorseError, StoreError
from packhorse.store.base import (
    Charge,
    Claim,
    Count,
    Decide,
    Filter,
    Finding,
    Lease,
    Line,
    Progress,
    Renewal,
    Report,
    Sample,
    Snapshot,
    Spent,
)
from packhorse.store.counters import Counts, Head, Tally, first
from packhorse.store.redis import check, commit, maintenance, notes, reads, statistics
from packhorse.store.redis.address import Address
from packhorse.store.redis.claim import Claimer
from packhorse.store.redis.commit import Member
from packhorse.store.redis.counters import Ask, Counting
from packhorse.store.redis.failures import FailureStore
from packhorse.store.redis.records import RecordStore
from packhorse.store.redis.watch import Watch

FEED = "5000"
"""Entries of the feed kept for watchers that are a little behind; who is further behind looks at everything."""

NEEDS_PLAN = b"plan"


class RedisStore(FailureStore, RecordStore):
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._claim = Claimer(self._link, self.now, self._write, self._plans)
        self._watch = Watch(self._link, self._write.name)
        self._sweeper = maintenance.Sweeper(self._link, self.now, self._plans)
        self._counters = Counting(self._link, self.now)
        self._closing = [self._claim.close, self._counters.close, *self._closing, self._watch.close]

    # Jobs

    async def commit(self, changes: Sequence[Change]) -> list[PackhorseError | None]:
        try:
            return await self._commit(changes)
        except StoreError as error:
            return [error] * len(changes)

    async def _commit(self, changes: Sequence[Change]) -> list[PackhorseError | None]:
        outcomes: dict[int, PackhorseError | None] = {}
        members: dict[int, Member] = {}
        spoiled: set[str] = set()
        for n, change in enumerate(changes):
            job_id = change.after.id
            if job_id in spoiled:
                outcomes[n] = Conflict("An earlier change of the job was refused.", job_id=job_id)
                continue
            try:
                members[n] = commit.member(change, self._plans)
            except Exception as error:  # broad: what is wrong with one change is told to its caller, the others travel
                spoiled.add(job_id)
                outcomes[n] = error if isinstance(error, PackhorseError) else _unwritable(error)
        answers = dict(zip(members, await self._write(list(members.values())), strict=True))
        lacking = [
            n for n, answer in answers.items() if not isinstance(answer, Exception) and answer[:1] == [NEEDS_PLAN]
        ]
        if lacking:
            answers |= await self._with_plans(changes, answers, lacking)
        for n, answer in answers.items():
            change = changes[n]
            outcomes[n] = answer if isinstance(answer, PackhorseError) else commit.refusal(answer, change)
            if change.before is None and outcomes[n] is None:
                self._plans.kept.add(change.after.plan.fingerprint)
        return [outcomes[n] for n in range(len(changes))]

    async def _with_plans(
        self, changes: Sequence[Change], answers: Mapping[int, object], lacking: Sequence[int]
    ) -> dict[int, object]:
        """The server has lost plans that we had put there: bring them along, and what was refused behind them."""
        self._plans.kept.clear()
        jobs = {changes[n].after.id for n in lacking}
        again = [n for n, answer in answers.items() if changes[n].after.id in jobs and answer]
        members = [commit.member(changes[n], self._plans) for n in again]
        return dict(zip(again, await self._write(members), strict=True))

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        return await reads.jobs(self._link, job_ids, self._plans)

    async def find(self, filter: Filter, *, before: str | None = None, limit: int = 50) -> list[Job]:
        found, gone = await reads.find(self._link, filter, before, limit, self._plans)
        if gone:
            await self._write.put(*(maintenance.drop_index_entry(index, job_id) for index, job_id in gone))
        return found

    async def count(self, filter: Filter, *, most: int) -> Count:
        return await reads.count(self._link, filter, most)

    async def snapshot(self, job_id: str, *, events: int, lines: int, stage: str | None = None) -> Snapshot | None:
        return await reads.snapshot(self._link, job_id, events, lines, stage, self._plans)

    async def specs(self, job_ids: Sequence[str]) -> dict[str, Spec]:
        return await reads.specs(self._link, job_ids)

    async def results(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
        return await reads.results(self._link, job_ids)

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return await reads.events(self._link, job_id, after, limit)

    async def made(self, job_id: str, change_id: str) -> bool:
        return await reads.made(self._link, job_id, change_id)

    async def keyed(self, key: str) -> tuple[str, str] | None:
        return await reads.keyed(self._link, key)

    async def holder(self, slot: str) -> str | None:
        return await reads.holder(self._link, slot)

    # Queue

    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        return await self._claim(wants, kinds, decide)

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        self._open()
        if seconds is None:
            return await maintenance.standing(self._link, leases)
        return await maintenance.renew(self._link, self.now, leases, seconds)

    async def overdue(self, limit: int) -> list[tuple[Job, TaskId]]:
        return await self._sweeper.leased("leases", "past", limit)

    async def held_by(self, worker: str, limit: int) -> list[tuple[Job, TaskId]]:
        return await self._sweeper.leased(worker, "held", limit)

    async def expired(self, limit: int) -> list[Job]:
        return await self._sweeper.jobs("deadlines", "past", limit)

    async def ready(self, kinds: Mapping[str, Collection[str]], *, limit: int = 1000) -> dict[str, int]:
        self._open()
        return await reads.ready(self._link, kinds, limit)

    async def ahead(self, job: Job, task: TaskId, *, limit: int = 1000) -> int:
        return await reads.ahead(self._link, self.now, job, task, limit)

    # Notes

    async def report(self, reports: Sequence[Report]) -> None:
        self._open()
        await notes.report(self._link, reports)

    async def log(self, lines: Sequence[Line], *, keep: int) -> None:
        self._open()
        await notes.log(self._link, lines, keep)

    async def sample(self, samples: Sequence[Sample], *, keep: int) -> None:
        await self._write.put(*notes.sample(samples, keep))

    async def progress(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
        return await reads.progress(self._link, job_ids)

    async def lines(
        self, job_id: str, *, after: int = 0, limit: int = 1000, stage: str | None = None, newest: bool = False
    ) -> list[Line]:
        return await reads.lines(self._link, job_id, after, limit, stage, newest)

    async def samples(self, job_id: str) -> list[Sample]:
        return await reads.samples(self._link, job_id)

    # Watch

    async def changed(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:
        return await self._watch.changed(mark, timeout, is_working=is_working)

    async def touched(self, since: int | None) -> tuple[int, Collection[str] | None]:
        return await self._watch.touched(since)

    # Counters

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        self._open()
        return await self._counters.spend(charges)

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        self._open()
        await self._counters(Ask(charges, at))

    # Statistics

    async def tally(self, counts: Mapping[Tally, int]) -> None:
        await self._write.put(*([statistics.tally(counts)] if counts else []))

    async def tallied(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        at, now = first(step, since, self.now()), self.now()
        return await statistics.tallied(self._link, step, at, now, queue, pipeline)

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        self._open()
        return await statistics.heads(self._link, kinds)

    async def counted(self, most: int) -> Counts:  # noqa: ARG002 (the indexes know their size)
        return await statistics.counted(self._link)

    # Upkeep

    async def purgeable(self, limit: int) -> list[Job]:
        """Begun purges first, whatever the time: the clock that decided them may have been ahead of this one."""
        begun = await self._sweeper.jobs("purging", "all", limit)
        over = await self._sweeper.jobs("purge", "past", limit - len(begun)) if len(begun) < limit else []
        return begun + over

    async def littered(self, limit: int) -> list[Job]:
        return await self._sweeper.jobs("litter", "all", limit)

    async def erase(self, job_id: str) -> None:
        erasure = await maintenance.erasure(self._link, job_id, self._plans)
        if erasure is not None:
            await self._write.put(erasure)

    async def known(self, job_ids: Sequence[str]) -> set[str]:
        self._open()
        return await reads.known(self._link, job_ids)

    async def trim(self) -> None:
        """Also what is left of ended jobs that the server has dropped by itself: the objects are the sweep's."""
        await self._write.put(commit.plain(["XTRIM", "feed", "MAXLEN", "~", FEED]))
        gone = await maintenance.find_vanished(self._link, self.now)
        await self._write.put(
            *(maintenance.drop_index_entry(index, job_id) for job_id in gone for index in maintenance.ENDED)
        )
        await self._write.put(*(maintenance.drop_orphans(job_id) for job_id in gone))

    async def check(self) -> list[Finding]:
        return await check.findings(self._link, self.now)


def _unwritable(error: Exception) -> StoreError:
    found = StoreError(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found

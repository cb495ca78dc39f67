"""The PostgreSQL store: what is asked of it, and where each answer is. Commits and claims travel in groups."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import asyncpg

from packhorse.core.changes import Change
from packhorse.core.models import Event, FailedRun, Job, Result, Settled, Spec, TaskId
from packhorse.core.records import Drop, LogEntry, Put, Record
from packhorse.errors import PackhorseError, StoreError, StoreUnavailable
from packhorse.store.base import (
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
    is_own_work,
)
from packhorse.store.batching import Group
from packhorse.store.failures import FailureFilter, FailureGroup, Recent
from packhorse.store.postgres import (
    check,
    claim,
    commit,
    failures,
    maintenance,
    notes,
    reads,
    records,
    rows,
    watch,
)
from packhorse.store.postgres.address import Address
from packhorse.store.postgres.claim import Ask
from packhorse.store.postgres.commit import Member
from packhorse.store.postgres.connection import Session
from packhorse.store.postgres.counters import Counters
from packhorse.store.postgres.lookups import entry
from packhorse.store.postgres.statements import Outdated
from packhorse.store.postgres.statistics import Statistics

Outcome = PackhorseError | None

BLAMED = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    TypeError,
    ValueError,
    OverflowError,
)
"""Something in one member cannot be written: the others are to be written without it."""


RIVALS = 0.5
"""Seconds for which claims lock first after one has come too late."""


class PostgresStore(Counters, Statistics):
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._commits: Group[Member, Outcome] = self._group(self._make)
        self._claims: Group[Ask, list[Claim] | Exception] = self._group(self._start)
        self._calls = itertools.count(1)
        self._rivals_until = 0.0

    # Jobs

    async def commit(self, changes: Sequence[Change]) -> list[PackhorseError | None]:
        if self._is_closed:
            return [StoreUnavailable("The store is closed.") for _ in changes]
        call = next(self._calls)
        return list(await self._commits([Member(call, change) for change in changes]))

    async def _make(self, members: Sequence[Member], refused: Collection[tuple[int, str]] = ()) -> list[Outcome]:
        """One transaction for all. Where the server will not take one of them, each half goes alone, and so on."""
        try:
            return await self._made(members, refused)
        except BLAMED as error:
            if len(members) == 1:
                return [commit.describe_error(error)]
        except (StoreError, asyncpg.PostgresError) as error:
            failure = error if isinstance(error, StoreError) else commit.describe_error(error)
            return [failure for _ in members]
        half = len(members) // 2
        first = await self._make(members[:half], refused)
        broken = {member.fold for member, outcome in zip(members, first, strict=False) if outcome is not None}
        return first + await self._make(members[half:], {*refused, *broken})

    async def _made(self, members: Sequence[Member], refused: Collection[tuple[int, str]]) -> list[Outcome]:
        notice = self._watch.notice()
        made = partial(
            commit.make_all, members=members, refused=refused, clock=self._clock, plans=self._plans, notice=notice
        )
        try:
            found = await self._connections.write(partial(made, is_trusting=True))
        except (
            asyncpg.UniqueViolationError,
            Outdated,
        ):  # it is not as it was when this was decided: look before writing
            found = await self._connections.write(partial(made, is_trusting=False))
        self._plans.stored |= found.plans
        own = all(is_own_work(member.change) for member in members)
        self._watch.tell(is_told=notice.is_told, is_own_work=own)
        return found.outcomes

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        return await self._read(reads.jobs, job_ids, self._plans)

    async def find(self, filter: Filter, *, before: str | None = None, limit: int = 50) -> list[Job]:
        return await self._read(reads.find, filter, before, limit, self._plans)

    async def count(self, filter: Filter, *, most: int) -> Count:
        return await self._read(reads.count, filter, most)

    async def snapshot(self, job_id: str, *, events: int, lines: int, stage: str | None = None) -> Snapshot | None:
        return await self._read(reads.snapshot, job_id, events, lines, stage, self._plans)

    async def specs(self, job_ids: Sequence[str]) -> dict[str, Spec]:
        return await self._read(reads.specs, job_ids)

    async def results(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
        return await self._read(reads.results, job_ids)

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return await self._read(reads.events, job_id, after, limit)

    async def made(self, job_id: str, change_id: str) -> bool:
        return await self._read(reads.made, job_id, change_id)

    async def keyed(self, key: str) -> tuple[str, str] | None:
        return await self._read(reads.keyed, key)

    async def holder(self, slot: str) -> str | None:
        return await self._read(reads.holder, slot)

    # Queue

    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        self._check_open()
        [found] = await self._claims([Ask(wants, kinds, decide)])
        if isinstance(found, Exception):
            raise found
        return found

    async def _start(self, asks: Sequence[Ask]) -> Sequence[list[Claim] | Exception]:
        """One transaction for all who ask; where one of them makes a mistake, one for each."""
        notice = self._watch.notice()
        start = partial(claim.claim_all, asks=asks, clock=self._clock, plans=self._plans, notice=notice)
        try:
            found = await self._started(start)
        except StoreError as error:
            return [error for _ in asks]
        except Exception as error:  # broad: whatever one caller trips over must not take its neighbours along
            if len(asks) > 1:
                return [outcome for ask in asks for outcome in await self._start([ask])]
            return [commit.describe_error(error) if isinstance(error, asyncpg.PostgresError) else error]
        if any(found):
            self._watch.tell(is_told=notice.is_told, is_own_work=True)
        return found

    async def _started(self, start: Callable[..., Awaitable[list[list[Claim]]]]) -> list[list[Claim]]:
        """Where others claim, too, it is locked first, or who comes too late finds out at the end."""
        if time.monotonic() >= self._rivals_until:
            try:
                return await self._connections.write(partial(start, is_trusting=True))
            except Outdated:
                self._rivals_until = time.monotonic() + RIVALS
        return await self._connections.write(partial(start, is_trusting=False))

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        if seconds is None:
            return await self._read(maintenance.standing, leases)
        return await self._write(maintenance.renew, leases, seconds, self._clock)

    async def overdue(self, limit: int) -> list[tuple[Job, TaskId]]:
        return await self._read(maintenance.overdue, self._clock, limit, self._plans)

    async def held_by(self, worker: str, limit: int) -> list[tuple[Job, TaskId]]:
        return await self._read(maintenance.held_by, worker, limit, self._plans)

    async def expired(self, limit: int) -> list[Job]:
        return await self._read(maintenance.expired, self._clock, limit, self._plans)

    async def ready(self, kinds: Mapping[str, Collection[str]], *, limit: int = 1000) -> dict[str, int]:
        return await self._read(maintenance.ready, kinds, limit)

    async def ahead(self, job: Job, task: TaskId, *, limit: int = 1000) -> int:
        return await self._read(claim.ahead, entry(job, task), limit, self._clock)

    # Notes

    async def report(self, reports: Sequence[Report]) -> None:
        await self._write(notes.report, reports)

    async def log(self, lines: Sequence[Line], *, keep: int) -> None:
        await self._write(notes.log, lines, keep)

    async def sample(self, samples: Sequence[Sample], *, keep: int) -> None:
        await self._write(notes.sample, samples, keep)

    async def progress(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
        return await self._read(reads.progress, job_ids)

    async def lines(
        self, job_id: str, *, after: int = 0, limit: int = 1000, stage: str | None = None, newest: bool = False
    ) -> list[Line]:
        return await self._read(reads.lines, job_id, after, limit, stage, newest)

    async def samples(self, job_id: str) -> list[Sample]:
        return await self._read(reads.samples, job_id)

    # Watch

    async def changed(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:
        try:
            return await self._watch.changed(mark, timeout, is_working=is_working)
        except asyncpg.PostgresError as error:
            raise commit.describe_error(error) from error

    async def touched(self, since: int | None) -> tuple[int, Collection[str] | None]:
        return await self._read(watch.touched, since)

    # Failures

    async def failures(
        self, wanted: FailureFilter | Sequence[str], *, before: str | None = None, limit: int = 50
    ) -> list[FailedRun]:
        if not isinstance(wanted, FailureFilter):
            return await self._read(failures.by_id, wanted)
        return await self._read(failures.find, wanted, before, limit)

    async def failure_groups(
        self,
        tenant: str,
        *,
        fingerprints: Sequence[str] | None = None,
        before: str | None = None,
        limit: int = 50,
        recent: Recent | None = None,
    ) -> list[FailureGroup]:
        return await self._read(failures.groups, tenant, fingerprints, before, limit, recent)

    async def dismiss_failures(
        self, ids: Sequence[str], settled: Settled, *, group: tuple[str, str] | None = None
    ) -> list[str]:
        return await self._keep(failures.dismiss, ids, settled, group)

    async def forget_failures(self, until: float, limit: int) -> int:
        return await self._keep(failures.forget, until, limit)

    # Upkeep

    async def purgeable(self, limit: int) -> list[Job]:
        return await self._read(maintenance.purgeable, self._clock, limit, self._plans)

    async def littered(self, limit: int) -> list[Job]:
        return await self._read(maintenance.littered, limit, self._plans)

    async def erase(self, job_id: str) -> None:
        await self._write(maintenance.erase, job_id)

    async def known(self, job_ids: Sequence[str]) -> set[str]:
        found = await self._read(Session.fetch, maintenance.SQL.known, rows.ids(job_ids))
        return {str(id) for (id,) in found}

    async def trim(self) -> None:
        await self._write(watch.trim)
        await self._trim_counters()
        await self._trim_tallies()

    # Records

    async def put(self, writes: Sequence[Put | Drop], *, quiet: bool = False) -> list[int]:
        self._check_open()
        for each in writes:
            if isinstance(each, Put):
                records.check_names(each)
        if not writes:
            return []
        try:
            stamps = await self._keep(records.put, writes, self._clock, quiet=quiet)
        except Outdated:
            stamps = await self._keep(records.put_locked, writes, self._clock, quiet=quiet)
        if not quiet:
            self._watch.tell()
        return stamps

    async def fetch(self, kind: str, ids: Sequence[str]) -> list[Record | None]:
        return await self._read(records.fetch, kind, ids)

    async def scan(
        self,
        kind: str,
        index: str,
        *,
        after: str = "",
        before: str | None = None,
        limit: int = 50,
        newest: bool = False,
    ) -> list[Record]:
        return await self._read(records.scan, kind, index, after, before, limit, newest)

    async def take(self, kind: str, lane: str, limit: int, seconds: float) -> list[Record]:
        """Looked at first: who finds nothing, as most do, need not begin a transaction."""
        if not await self._read(records.has_due, kind, lane, self._clock):
            return []
        return await self._keep(records.take, kind, lane, self._clock, limit, seconds)

    async def append(self, log: str, entries: Sequence[LogEntry], *, keep: int) -> None:
        if entries:
            await self._keep(records.append, log, entries, keep)

    async def tail(self, log: str, *, topic: str = "", before: int | None = None, limit: int = 50) -> list[LogEntry]:
        return await self._read(records.tail, log, topic, before, limit)

    async def check(self) -> list[Finding]:
        return await self._read(check.findings)

"""The queue: claims, leases over time, and what is ready.

A claim picks what is most urgent, lets the lifecycle decide, commits, and hands over all that an attempt needs.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import asyncpg
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.changes import AT_ONCE, Change, MakeDue
from packhorse.core.limits import share_of, uses_of
from packhorse.core.models import Job, Result, TaskId
from packhorse.errors import PackhorseError, SchemaTooNew, StoreError
from packhorse.log import log
from packhorse.store import sql_files
from packhorse.store.base import Claim, Decide, Lease, OverdueTasks, Renewal, Starter
from packhorse.store.batching import Group
from packhorse.store.postgres import limits, reads
from packhorse.store.postgres.batch import Batch, Facts, version_of
from packhorse.store.postgres.commit import judge
from packhorse.store.postgres.connection import Address, Clock, Row, Session
from packhorse.store.postgres.limits import PROMOTED, Turn
from packhorse.store.postgres.session import Handle, Outdated, columns, describe_error, is_id, read, write
from packhorse.store.postgres.starts import MARGIN, Ask, Begun, Outcome, begin
from packhorse.store.postgres.watch import Notice
from packhorse.store.rows import Entry, Plans, claim_from, entry

SQL = sql_files.load(__package__, "claim")


WIDER = 8
"""How many times as far to look when the margin was not enough."""
RIVALS = 0.5
"""Seconds for which claims lock first after one has come too late."""


Upstream = Mapping[tuple[str, str], Sequence[bytes]]
"""Results by job and stage, in element order."""


class Picked(NamedTuple):
    """An entry that is ours for the time of the transaction, with its job as it is now."""

    entry: Entry
    queue: str
    job_id: str
    task: TaskId
    row: Row
    turn: Turn | None = None
    """Of a task with limits or turns, which is counted and in no queue any more."""

    @classmethod
    def of(cls, row: Row) -> Picked:
        queue, job_id, task = row["queue"], str(row["id"]), TaskId(row["stage"], row["element"])
        return cls((queue, row["kind"], row["rank"], job_id, *task), queue, job_id, task, row)

    @classmethod
    def chosen(cls, at: Row, job: Row, turn: Turn | None) -> Picked:
        queue, job_id, task = at["queue"], str(at["job_id"]), TaskId(at["stage"], at["element"])
        rank = -job["priority"] if at["rank"] is None else at["rank"]
        return cls((queue, at["kind"], rank, job_id, *task), queue, job_id, task, job, turn)


class Queue(Handle):
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._claims: Group[Ask, Outcome] = self._group(self._start)
        self._rivals_until = 0.0

    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        self._check_open()
        [found] = await self._claims([Ask(wants, kinds, decide)])
        if isinstance(found, Exception):
            raise found
        return found

    async def _start(self, asks: Sequence[Ask]) -> Sequence[Outcome]:
        """What was prepared is started by one statement for all who ask alike. The lifecycle decides about the rest."""
        alike: dict[Any, list[int]] = {}
        for n, ask in enumerate(asks):
            by = (ask.decide.worker, ask.decide.lease) if isinstance(ask.decide, Starter) else None
            alike.setdefault((by, frozenset(ask.kinds)), []).append(n)
        outcomes: list[Outcome] = [[] for _ in asks]
        left, rows, is_trusting = dict(enumerate(asks)), None, True
        for (by, _), places in alike.items():
            if by is not None:
                begun = await self._begin([asks[n] for n in places])
                rows = begun.rows if len(alike) == 1 else None
                is_trusting = is_trusting and not begun.has_late
                for n, outcome, wants in zip(places, begun.outcomes, begun.left, strict=True):
                    outcomes[n] = outcome
                    left[n] = Ask(wants, asks[n].kinds, asks[n].decide)
        left = {n: ask for n, ask in left.items() if ask.wants}
        if left:
            decided = await self._decide(list(left.values()), rows, is_trusting=is_trusting)
            for n, outcome in zip(left, decided, strict=True):
                outcomes[n] = _both(asks[n], outcomes[n], outcome)
        return outcomes

    async def _begin(self, asks: Sequence[Ask]) -> Begun:
        """Start what was prepared for callers who ask alike."""
        notice = self._watch.notice()
        try:
            begun = await self._connections.write(
                partial(begin, asks=asks, clock=self._clock, plans=self._plans, notice=notice)
            )
        except (asyncpg.RaiseError, asyncpg.DataError):  # an entry went by itself, or has a start nobody can read
            return Begun([[] for _ in asks], [ask.wants for ask in asks], None)
        except (StoreError, asyncpg.PostgresError) as error:
            failure = error if isinstance(error, StoreError) else describe_error(error)
            return Begun([failure for _ in asks], [{} for _ in asks], None)
        if any(begun.outcomes):
            self._watch.tell(is_told=notice.is_told, is_own_work=True)
        else:
            notice.take_back()
        return begun

    async def _decide(
        self, asks: Sequence[Ask], rows: Sequence[Row] | None = None, *, is_trusting: bool = True
    ) -> Sequence[Outcome]:
        """One transaction for all who ask; where one of them makes a mistake, one for each.

        ``rows`` is what has just been found for them.
        """
        notice = self._watch.notice()
        start = partial(claim_all, asks=asks, clock=self._clock, plans=self._plans, notice=notice, rows=rows)
        try:
            found = await self._decide_once(start, is_trusting=is_trusting)
        except StoreError as error:
            return [error for _ in asks]
        except Exception as error:  # broad: whatever one caller trips over must not take its neighbours along
            if len(asks) > 1:
                return [outcome for ask in asks for outcome in await self._decide([ask])]
            return [describe_error(error) if isinstance(error, asyncpg.PostgresError) else error]
        if any(found) or notice.has_more:
            self._watch.tell(is_told=notice.is_told, is_own_work=not notice.has_more)
        return found

    async def _decide_once(
        self, start: Callable[..., Awaitable[list[list[Claim]]]], *, is_trusting: bool
    ) -> list[list[Claim]]:
        """Where others claim, too, it is locked first, or who comes too late finds out at the end."""
        if is_trusting and time.monotonic() >= self._rivals_until:
            try:
                return await self._connections.write(partial(start, is_trusting=True))
            except Outdated:
                self._rivals_until = time.monotonic() + RIVALS
        return await self._connections.write(partial(start, is_trusting=False))

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        return await (self._check_leases(leases) if seconds is None else self._extend_leases(leases, seconds))

    @write
    async def _extend_leases(self, session: Session, leases: Sequence[Lease], seconds: float) -> Renewal:
        found = await session.fetch(SQL.renew, *_lease_columns(leases), self._clock.parameter(), seconds)
        if found:
            self._clock.adjust(found[0]["now"])
        return _renewal(leases, found)

    @read
    async def _check_leases(self, session: Session, leases: Sequence[Lease]) -> Renewal:
        return _renewal(leases, await session.fetch(SQL.standing, *_lease_columns(leases)))

    @read
    async def overdue(
        self, session: Session, limit: int, *, queued_after: float | None = None, leased_after: float | None = None
    ) -> OverdueTasks:
        now = await session.value(SQL.time, self._clock.parameter())
        self._clock.adjust(now)
        query, moment = SQL.overdue, now
        if queued_after is not None:
            query, moment = SQL.queued_after, queued_after
        elif leased_after is not None:
            query, moment = SQL.leased_after, leased_after
        found = await reads.readable(session, query, moment, limit, self._plans)
        return OverdueTasks(now, [(job, TaskId(row["stage"], row["element"])) for job, row in found])

    @read
    async def held_by(self, session: Session, worker: str, limit: int) -> list[tuple[Job, TaskId]]:
        found = await reads.readable(session, SQL.held_by, worker, limit, self._plans)
        return [(job, TaskId(row["stage"], row["element"])) for job, row in found]

    @read
    async def ahead(self, session: Session, job: Job, task: TaskId, *, limit: int = 1000) -> int:
        queue, _, *place = entry(job, task)
        return int(await session.value(SQL.ahead, queue, *place, limit, self._clock.parameter()))

    @read
    async def ready(
        self, session: Session, kinds: Mapping[str, Collection[str]], *, limit: int = 1000
    ) -> dict[str, int]:
        pairs = [(queue, kind) for queue, names in kinds.items() for kind in names]
        rows = await session.fetch(SQL.ready, [queue for queue, _ in pairs], [kind for _, kind in pairs], limit)
        found = Counter({row["queue"]: row["count"] for row in rows})
        return {queue: min(found[queue], limit) for queue in kinds}


def _both(ask: Ask, begun: Outcome, decided: Outcome) -> Outcome:
    """What was started in either way, most urgent first. What has begun counts, whatever happens to the rest."""
    if not begun or isinstance(begun, Exception) or not decided or isinstance(decided, Exception):
        return begun or decided
    order = {queue: n for n, queue in enumerate(ask.wants)}
    entries = ((entry(claim.job, claim.task), claim) for claim in (*begun, *decided))
    return [claim for _, claim in sorted(entries, key=lambda each: (order[each[0][0]], each[0][2:]))]


def _lease_columns(leases: Sequence[Lease]) -> list[Sequence[Any]]:
    asked = [(lease.job_id, *lease.task, lease.token) for lease in set(leases) if is_id(lease.job_id)]
    return columns(asked) or [[], [], [], []]


def _renewal(leases: Sequence[Lease], found: Sequence[Row]) -> Renewal:
    stopping = {Lease(str(id), TaskId(stage, element), token): is_stopping
                for id, stage, element, token, is_stopping, *_ in found}  # fmt: skip
    return Renewal(
        frozenset(lease for lease in leases if lease not in stopping),
        frozenset(lease for lease in leases if stopping.get(lease)),
    )


async def claim_all(
    session: Session, asks: Sequence[Ask], clock: Clock, plans: Plans, notice: Notice, *, is_trusting: bool,
    rows: Sequence[Row] | None = None,
) -> list[list[Claim]]:  # fmt: skip
    """What each caller gets: the first comes first. A mistake in anybody's ``decide`` is raised, and loses nothing.

    ``is_trusting`` takes it that nobody else claims at this moment, and locks nothing before it writes: half the round
    trips. Raises `Outdated` where that is not so, or where there is more to do than to start what is first.
    ``rows`` is what it would find, if somebody has just looked.
    """
    claiming = _Claiming(session, clock, plans, is_trusting=is_trusting, rows=rows)
    found: list[list[Claim]] = [[] for _ in asks]
    for kinds in {frozenset(ask.kinds): None for ask in asks}:
        alike = [n for n, ask in enumerate(asks) if frozenset(ask.kinds) == kinds]
        await claiming.serve([asks[n] for n in alike], [found[n] for n in alike], kinds)
    await claiming.batch.send(session, claiming.facts, clock, notice, is_trusting=is_trusting, is_claim=is_trusting)
    notice.has_more = claiming.has_more
    return [[claiming.latest(claim) for claim in claims] for claims in found]


class _Claiming:
    """One transaction's claims: the jobs as its earlier claims left them, and what is to be written."""

    def __init__(
        self, session: Session, clock: Clock, plans: Plans, *, is_trusting: bool, rows: Sequence[Row] | None = None
    ) -> None:
        self._rows = rows
        self.facts, self.batch = Facts(), Batch(plans)
        self._is_trusting = is_trusting
        self.jobs: dict[str, Job | PackhorseError] = {}
        """As they are now, or why they cannot be read."""
        self._seen: dict[str, set[Entry]] = defaultdict(set)
        """By queue. They stay in it until everything is written, and a later claim picks them again."""
        self._has_promoted = False
        self.has_more = False
        """Whether limits and turns have ended it before it had looked at everything."""
        self._session = session
        self._clock = clock
        self._plans = plans

    async def serve(self, asks: Sequence[Ask], found: Sequence[list[Claim]], kinds: Collection[str]) -> None:
        """Give these callers, who can all run the same kinds, what they want of each queue."""
        left = [Counter({queue: most for queue, most in ask.wants.items() if most > 0}) for ask in asks]
        wanted: Counter[str] = sum(left, Counter())
        if wanted and not self._is_trusting and not self.facts.is_counted:
            self.facts.is_counted = await limits.prepare(self._session, wanted, kinds, self._clock)
        while wanted:
            again: set[str] = set()
            picked = await (self._choose if self.facts.is_counted else self._pick)(wanted, kinds)
            upstream = await self._upstream(picked)
            for each in picked:
                n = next(n for n, counter in enumerate(left) if counter[each.queue] > 0)
                claimed = await self._start(each, asks[n].decide, upstream)
                if claimed is not None:
                    found[n].append(claimed)
                    left[n][each.queue] -= 1
                elif each.entry not in self.batch.due_drops:
                    again.add(each.queue)  # a newer packhorse's jobs stay where they are, and must not hide the rest
            wanted = Counter({queue: most for queue, most in sum(left, Counter()).items() if queue in again})

    async def _pick(self, wanted: Mapping[str, int], kinds: Collection[str]) -> list[Picked]:
        """As many as are wanted, unless there are no more. Looks further where others hold what comes first."""
        most = {queue: count + len(self._seen[queue]) for queue, count in wanted.items()}
        pages = {queue: count + MARGIN for queue, count in most.items()}
        picked: dict[Entry, Picked] = {}
        while pages:
            counts, walked = Counter[str](), Counter[str]()
            asked = (list(pages), [most[queue] for queue in pages], list(pages.values()), list(kinds))
            found = await self._query(*asked, self._clock.parameter())
            if not self._has_promoted and any(row["has_late"] for row in found):
                if self._is_trusting:
                    raise Outdated
                await self._session.fetch(SQL.promote, self._clock.parameter(), PROMOTED)
                self._has_promoted = True
                continue  # what was delayed until now may be more urgent
            for row in found:
                walked[row["queue"]] = row["walked"]
                if row["id"] is not None:
                    each = Picked.of(row)
                    picked[each.entry] = each
                    counts[each.queue] += 1
            short = {q: page for q, page in pages.items() if counts[q] < most[q] and walked[q] == page}
            if short:
                if self._is_trusting:
                    raise Outdated
                await self._session.fetch(SQL.forget, list(short), list(short.values()), list(kinds))
            pages = {queue: page * WIDER for queue, page in short.items()}
        await self._learn(picked.values())
        order = {queue: n for n, queue in enumerate(wanted)}
        fresh = sorted(picked.keys() - set().union(*self._seen.values()), key=lambda e: (order[e[0]], e[2:]))
        for key in fresh:
            self._seen[key[0]].add(key)
        return [picked[key] for key in fresh]

    async def _choose(self, wanted: Mapping[str, int], kinds: Collection[str]) -> list[Picked]:
        """The same where there are limits or turns to see to."""
        passed = [each[3:] for seen in self._seen.values() for each in seen]
        found = await limits.choose(self._session, wanted, kinds, passed, self._clock)
        self.has_more = self.has_more or found.has_more
        picked = [Picked.chosen(*each) for each in found.tasks]
        for each in picked:
            self._seen[each.queue].add(each.entry)
        await self._learn(picked)
        return picked

    async def _query(self, *asked: Any) -> list[Row]:
        if self._is_trusting:
            rows, self._rows = self._rows, None
            return await self._session.look(SQL.look, *asked) if rows is None else list(rows)
        return await self._session.fetch(SQL.pick, *asked)

    async def _learn(self, picked: Collection[Picked]) -> None:
        """Read each job once, however many of its tasks were picked."""
        fresh = {each.job_id: each.row for each in picked if each.job_id not in self.jobs}
        await reads.load_plans(self._session, fresh.values(), self._plans)
        for id, row in fresh.items():
            self.jobs[id] = job = reads.read_job(row, self._plans)
            if isinstance(job, Job):
                self.facts.versions[id] = version_of(job)
        self.facts.waiting |= {each.entry for each in picked}

    async def _upstream(self, picked: Iterable[Picked]) -> Upstream:
        """The results that these tasks need, read together."""
        asked: dict[tuple[str, str], list[bytes]] = {}
        for each in picked:
            job = self.jobs[each.job_id]
            if isinstance(job, Job) and each.task.stage in job.plan.index:
                asked |= {(job.id, need.stage): [] for need in job.plan.stage(each.task.stage).needs}
        if asked:
            for id, stage, body in await self._session.look(SQL.upstream, *zip(*asked, strict=True)):
                asked[str(id), stage].append(body)
        return asked

    async def _start(self, picked: Picked, decide: Decide, upstream: Upstream) -> Claim | None:
        """Start one task in the job as it is now, which an earlier task of the same claim may have moved."""
        try:
            job = self.jobs[picked.job_id]
            if isinstance(job, PackhorseError):
                raise job
            if picked.turn is None and _is_regulated(job, picked.task):
                self._requeue(job, picked)
                return None
            change = decide(job, picked.task)
            if change is not None:
                await self._make(change)
                self.jobs[job.id] = change.after
                return claim_from(change.after, picked.task, picked.row["spec"], partial(_results, upstream, job.id))
        except SchemaTooNew:  # an upgrade is running: a newer worker will understand it
            if picked.turn is not None:
                await limits.give_back(self._session, picked.job_id, picked.task, picked.turn, self._clock)
            return None
        except PackhorseError as error:
            # A job nobody can read, or an entry the lifecycle will not start: it must not stop those behind it.
            log.entry_dropped(picked.job_id, picked.task.stage, error)
        self.batch.due_drops.add(picked.entry)
        if picked.turn is not None:
            self.batch.hold_drops.add((picked.job_id, *picked.task))
            self.batch.room |= dict.fromkeys(limits.keys_of(picked.turn))
        return None

    def _requeue(self, job: Job, picked: Picked) -> None:
        """An older packhorse, which knows no limits, has made it due. The next claim starts it, if it may."""
        stage, task = job.plan.stage(picked.task.stage), job.task(picked.task)
        self.batch.due_drops.add(picked.entry)
        if task is not None and task.ready_at is not None:
            share = share_of(job, picked.task, task.ready_at)
            effect = MakeDue(
                picked.task, stage.queue, stage.kind, job.priority, AT_ONCE, 0.0, uses_of(job, picked.task), share
            )
            self.batch.make_due(job.id, effect)

    async def _make(self, change: Change) -> None:
        if not self.facts.cover(change):
            await self.facts.look(self._session, [change], self._clock, is_trusting=False)
        refusal = judge(change, self.facts, self.batch, self._clock)
        if refusal is not None:
            raise refusal

    def latest(self, claim: Claim) -> Claim:
        job = self.jobs[claim.job.id]
        assert isinstance(job, Job)
        return claim if claim.job is job else replace(claim, job=job)


def _is_regulated(job: Job, task: TaskId) -> bool:
    return task.stage in job.plan.index and job.plan.stage(task.stage).is_regulated


def _results(upstream: Upstream, job_id: str, stage: str) -> tuple[Result, ...]:
    return tuple(json.result_from(body, job_id) for body in upstream[job_id, stage])

"""Claiming: one script starts what is most urgent, as the lifecycle has prepared it when it was queued.

What was not prepared, or whose job has changed since, is reserved: the lifecycle decides here, and a commit under the
reservation starts it. Until then the reservation keeps the entry from everybody else; it is no lease and counts
nothing. If its process dies, the next claim takes the entry.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.models import Job, Result, Spec, TaskId
from packhorse.errors import CorruptRecord, PackhorseError, SchemaTooNew, StoreError, StoreUnavailable
from packhorse.log import log
from packhorse.store.base import Claim, Decide, Starter
from packhorse.store.batching import Group
from packhorse.store.redis import keys
from packhorse.store.redis.client import Link, ServerClock
from packhorse.store.redis.commit import MANY, pack_change
from packhorse.store.redis.rows import FIELDS, jobs_from
from packhorse.store.redis.session import Member, Writer, pack, pack_effects
from packhorse.store.redis.starts import Known as KnownPlans

RESERVED = 5.0
"""Seconds in which a claimer has decided and committed, or is taken for dead."""
BATCH = 500
"""Delayed entries made ready, and stale reservations undone, per script."""
MOST = 128
"""Entries reserved per queue in one round: what is decided at once is committed well within a reservation."""
ASKS = 64
"""Claims answered by one script."""
CUTS = 4
"""Rounds in a row that may look past tasks which limits stop, five hundred each; then the next claim continues."""
TRIES = 5
"""Decisions about one entry whose job keeps moving; then it is left to the next claim."""


class Entry(NamedTuple):
    queue: str
    kind: str
    rank: str
    text: str
    job_id: str
    task: TaskId
    token: str
    """Of the attempt that the script has started; empty if it has only reserved the entry."""

    @classmethod
    def of(cls, queue: bytes, kind: bytes, rank: bytes, text: bytes, token: bytes) -> Entry:
        entry = text.decode()
        return cls(queue.decode(), kind.decode(), rank.decode(), entry, *keys.entry_from(entry), token.decode())


class Ask(NamedTuple):
    token: str
    wants: Mapping[str, int]
    kinds: tuple[str, ...]
    start: Sequence[str] = ()
    """The worker, the seconds of its leases, and tokens for what may be started; empty if nothing may."""


class Reserved(NamedTuple):
    entries: list[Entry]
    rows: Mapping[str, Any]
    """Of their jobs."""
    is_cut: bool
    """Whether so many tasks were parked that there may be more."""


class Known:
    """What was read for the entries of one claim."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job | PackhorseError] = {}
        self.specs: dict[str, Spec] = {}
        self.results: dict[tuple[str, str], tuple[Result, ...]] = {}

    def spec(self, job_id: str) -> Spec:
        if job_id not in self.specs:
            raise CorruptRecord(what="spec", job_id=job_id, reason="it is missing, or cannot be read")
        return self.specs[job_id]

    def result(self, job_id: str, stage: str) -> tuple[Result, ...]:
        if (job_id, stage) not in self.results:
            raise CorruptRecord(what="result", job_id=job_id, reason=f"that of {stage} cannot be read")
        return self.results[job_id, stage]


class Claimer:
    def __init__(self, link: Link, clock: ServerClock, writer: Writer, plans: KnownPlans) -> None:
        self._link = link
        self._clock = clock
        self._writer = writer
        self._plans = plans
        self._reserve: Group[Ask, Reserved] = Group(self._send, ASKS)
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        await self._reserve.close()

    async def __call__(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        if self._is_closed:
            raise StoreUnavailable("The store is closed.")
        order = {queue: n for n, queue in enumerate(wants)}
        left = {queue: limit for queue, limit in wants.items() if limit > 0}
        started: list[Claim] = []
        passed: list[Entry] = []
        token = secrets.token_hex(8)
        rounds = 0
        try:
            while left and kinds:
                rounds += 1
                asked = {queue: min(limit, MOST) for queue, limit in left.items()}
                starts: Sequence[str] = ()
                tokens: list[str] = []
                if isinstance(decide, Starter):
                    tokens = decide.take(sum(asked.values()))
                    starts = [decide.worker, str(decide.lease), *tokens]
                [(entries, rows, is_cut)] = await self._reserve([Ask(token, asked, tuple(kinds), starts)])
                if isinstance(decide, Starter):
                    used = {entry.token for entry in entries}
                    decide.give_back(each for each in tokens if each not in used)
                claims, too_new = await self._start(entries, rows, token, decide)
                started += claims
                passed += too_new
                for queue, limit in asked.items():
                    found = sum(entry.queue == queue for entry in entries)
                    left[queue] -= sum(_queue(claim) == queue for claim in claims)
                    has_more = found == limit or (is_cut and rounds < CUTS)
                    if not has_more or left[queue] <= 0:
                        del left[queue]
        finally:
            if passed:  # a newer packhorse's jobs stay where they are, and must not hide the rest
                await self._give_back(passed, token)
        latest: dict[str, Job] = {}
        for claim in started:  # what the script has started came first, wherever it is in the order
            if (job := latest.get(claim.job.id)) is None or job.version < claim.job.version:
                latest[claim.job.id] = claim.job
        if len(order) > 1:
            started.sort(key=lambda claim: order[_queue(claim)])
        return [c if c.job is latest[c.job.id] else replace(c, job=latest[c.job.id]) for c in started]

    # Reserving

    async def _send(self, asks: list[Ask]) -> list[Reserved]:
        lists: dict[tuple[str, ...], int] = {}
        packed = [
            [
                ask.token,
                lists.setdefault(ask.kinds, len(lists) + 1),
                ask.start,
                *(part for want in ask.wants.items() for part in want),
            ]
            for ask in asks
        ]
        sent = time.monotonic()
        at, found, rows, cut = await self._link.run(
            "claim", self._clock.argument(), RESERVED, BATCH, pack([list(lists), packed]), self._writer.name,
            json.VERSION, *FIELDS, "spec", "limits", "lineage", "start",
        )  # fmt: skip
        self._clock.learn(float(at), sent)
        by_job = {rows[i].decode(): rows[i + 1] for i in range(0, len(rows), 2)}
        return [
            Reserved([Entry.of(*flat[i : i + 5]) for i in range(0, len(flat), 5)], by_job, bool(is_cut))
            for flat, is_cut in zip(found, cut, strict=True)
        ]

    async def _give_back(self, entries: Sequence[Entry], token: str) -> None:
        await self._writer.put(
            *(pack_effects(["unreserve", e.text], guards=[["reserved", e.text, token]]) for e in entries)
        )

    # Deciding

    async def _start(
        self, entries: list[Entry], rows: Mapping[str, Any], token: str, decide: Decide
    ) -> tuple[list[Claim], list[Entry]]:
        """The attempts that were started, and the entries that only a newer packhorse understands."""
        if not entries:
            return [], []
        known = Known()
        try:
            await self._learn({entry.job_id: rows[entry.job_id] for entry in entries}, known)
            started: dict[Entry, Claim] = {}
            too_new: list[Entry] = []
            begun = [entry for entry in entries if entry.token]
            waiting = [entry for entry in entries if not entry.token]
            await self._learn_upstream(begun, known)
            for entry in begun:
                await self._note_start(entry, known, started)
            for _ in range(TRIES if waiting else 0):
                await self._learn_upstream(waiting, known)
                again = await self._round(waiting, known, token, decide, started, too_new)
                if not again:
                    break
                await self._read_again({entry.job_id for entry in again}, known)
                waiting = again
            else:
                await self._give_back(waiting, token)
        except StoreError:
            raise  # the server is away: what is reserved goes back by itself
        except BaseException:
            await asyncio.shield(self._give_back(entries, token))
            raise
        return [started[entry] for entry in entries if entry in started], too_new

    async def _round(
        self,
        entries: Sequence[Entry],
        known: Known,
        token: str,
        decide: Decide,
        started: dict[Entry, Claim],
        too_new: list[Entry],
    ) -> list[Entry]:
        """Decide about each entry on its job as the ones before will leave it, commit, and say which to try again."""
        jobs = dict(known.jobs)
        decided: list[tuple[Entry, Claim | None, Member]] = []
        for entry in entries:
            try:
                claim, member = self._decide(entry, jobs, known, token, decide)
            except SchemaTooNew:  # an upgrade is running: a newer worker will understand it
                too_new.append(entry)
                continue
            if claim is not None:
                jobs[entry.job_id] = claim.job
            decided.append((entry, claim, member))
        again: list[Entry] = []
        stopped: list[Entry] = []
        outcomes = await self._writer([member for _, _, member in decided])
        for (entry, claim, _), outcome in zip(decided, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                raise outcome
            if not outcome and claim is not None:
                started[entry] = claim
                known.jobs[entry.job_id] = claim.job
            elif outcome and claim is not None and outcome[0] in (b"version", b"behind"):
                again.append(entry)
            elif outcome and outcome[0] == b"not_lowered":
                stopped.append(entry)
        if stopped:
            await self._give_back(stopped, token)
        return again

    def _decide(
        self, entry: Entry, jobs: Mapping[str, Job | PackhorseError], known: Known, token: str, decide: Decide
    ) -> tuple[Claim | None, Member]:
        try:
            job = jobs.get(entry.job_id)
            if isinstance(job, PackhorseError):
                raise job
            change = decide(job, entry.task) if job is not None else None
            if change is not None:
                return self._claim(change.after, entry, known), pack_change(change, self._plans, token)
        except SchemaTooNew:
            raise
        except PackhorseError as error:
            # A job nobody can read, or an entry the lifecycle will not start: it must not stop those behind it.
            log.entry_dropped(entry.job_id, entry.task.stage, error)
        gone = ["drop", entry.queue, entry.kind, entry.rank, entry.text]
        return None, pack_effects(gone, guards=[["reserved", entry.text, token]])

    async def _note_start(self, entry: Entry, known: Known, started: dict[Entry, Claim]) -> None:
        job = known.jobs.get(entry.job_id)
        if isinstance(job, Job) and (task := job.task(entry.task)) is not None and task.token == entry.token:
            started[entry] = self._claim(job, entry, known)
            return
        # The record cannot be read, so no worker can end this attempt: give up its lease.
        error = CorruptRecord(what="record", job_id=entry.job_id, reason="it was damaged while it was claimed")
        log.entry_dropped(entry.job_id, entry.task.stage, job if isinstance(job, PackhorseError) else error)
        await self._writer.put(pack_effects(["finish", entry.text], guards=[["holds", entry.text, entry.token]]))

    def _claim(self, job: Job, entry: Entry, known: Known) -> Claim:
        task = entry.task
        try:
            upstream = {need.stage: known.result(job.id, need.stage) for need in job.plan.stage(task.stage).needs}
            return Claim(job, task, known.spec(job.id), upstream)
        except CorruptRecord as error:
            return Claim(job, task, Spec(b"null"), {}, trouble=error)

    # Reading

    async def _learn(self, rows: Mapping[str, Any], known: Known) -> None:
        found = [(job_id, row[:-1]) for job_id, row in rows.items() if row]
        known.jobs |= dict(await jobs_from(found, self._plans, self._link.ask))
        for job_id, row in rows.items():
            if row and row[-1] is not None:
                with suppress(CorruptRecord):  # a stage that needs it fails without it
                    known.specs[job_id] = json.spec_from(row[-1], job_id)

    async def _read_again(self, job_ids: Collection[str], known: Known) -> None:
        ids = list(job_ids)
        rows = await self._link.ask([["HMGET", keys.job(job_id), *FIELDS] for job_id in ids])
        for job_id in ids:
            known.jobs.pop(job_id, None)
        known.jobs |= dict(await jobs_from(list(zip(ids, rows, strict=True)), self._plans, self._link.ask))

    async def _learn_upstream(self, entries: Sequence[Entry], known: Known) -> None:
        wanted: dict[tuple[str, str], list[str]] = {}
        for entry in entries:
            job = known.jobs.get(entry.job_id)
            if isinstance(job, Job) and entry.task.stage in job.plan.index:
                for need in job.plan.stage(entry.task.stage).needs:
                    width = len(job.stage(need.stage).tasks or ())
                    wanted[job.id, need.stage] = [keys.task(TaskId(need.stage, n)) for n in range(width)]
        missing = {at: fields for at, fields in wanted.items() if at not in known.results}
        asked = [(at, first) for at, fields in missing.items() for first in range(0, len(fields), MANY)]
        questions = [["HMGET", keys.result(at[0]), *missing[at][first : first + MANY]] for at, first in asked]
        bodies: dict[tuple[str, str], list[bytes | None]] = {at: [] for at in missing}
        for (at, _), page in zip(asked, await self._link.ask(questions), strict=True):
            bodies[at] += page
        for at, found in bodies.items():
            with suppress(CorruptRecord):  # a stage that needs it fails without it
                known.results[at] = tuple(json.result_from(body, at[0]) for body in found if body is not None)


def _queue(claim: Claim) -> str:
    return claim.job.plan.stage(claim.task.stage).queue

"""Fires schedules: claims due ticks and submits a job for each, or records why not. Also creates declared schedules.

A worker claims a tick by a compare-and-set on its schedule, which adds a run. The worker that holds the run decides it;
the commit that adds the job holds only while the run is undecided. If that worker dies, another one takes the run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain

from msgspec.structs import replace

from packhorse import errors
from packhorse.blobs.base import Blobs
from packhorse.core import json, lifecycle, schedules
from packhorse.core.plan import Definition, Plan
from packhorse.core.schedules import Declared, Move, Run, Schedule, Terms
from packhorse.crashpoints import reach
from packhorse.define.submit import Options
from packhorse.define.validation import unknown_pipeline
from packhorse.jobs.encryption import Encryptor, get_encryptor
from packhorse.jobs.submit import NewJob
from packhorse.jobs.transact import Transactor
from packhorse.log import log, new_trace, traced
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.collections import schedules as schedule_records
from packhorse.store.collections.base import get_readable
from packhorse.store.collections.workers import get_bookmark, list_definitions, plans_of, put_bookmark

BATCH = 100
POLL = 0.5
"""Seconds between reads: an edit may bring the next tick forward."""
HOLD = 3.0
"""Seconds after which any worker may take a run that was claimed and not decided."""
WAIT = 0.5
LONGEST_WAIT = 15.0
"""Bounds, in seconds, between checks of a run that waits for another one."""
TRIES = 5
FRESH = 1.0
"""Seconds for which definitions are cached."""
SHUN = 10.0
"""Seconds for which a schedule that failed here is left to other workers: they may know its time zone."""
LAP = 30.0
"""Seconds between pages of the check of all schedules, for all workers together."""
ROUND = "schedules"
ORIGIN = "schedule"
TENANT = "default"
"""Of declared schedules: apps do not know about tenants."""


class Scheduler:
    def __init__(self, store: Store, blobs: Blobs, settings: Settings, transact: Transactor) -> None:
        self._store = store
        self._blobs = blobs
        self._settings = settings
        self._transact = transact
        self._plans: dict[str, Plan] = {}
        self._shunned: dict[tuple[str, str], float] = {}
        self._read_at = -FRESH
        self._looked_at = -LAP

    async def tick(self) -> float:
        self._shunned = {key: until for key, until in self._shunned.items() if until > time.monotonic()}
        now = self._store.now()
        upcoming = await schedule_records.upcoming(self._store, now + POLL, BATCH + len(self._shunned))
        waiting = [each for each in upcoming if _key(each) not in self._shunned]
        due = [each for each in waiting if each.next_at is not None and each.next_at <= now]
        random.shuffle(due)  # workers that wake together should not all begin with the same one
        claimed = await asyncio.gather(*(self._claim_safely(schedule) for schedule in due))
        taken = await schedule_records.take_runs(self._store, BATCH, HOLD)
        await asyncio.gather(*(self._carry_safely(run) for run in [*chain.from_iterable(claimed), *taken]))
        await self._check_page()
        if len(due) >= BATCH or len(taken) == BATCH:
            return 0.0
        now = self._store.now()
        later = [each.next_at - now for each in upcoming if each.next_at is not None and each.next_at > now]
        return min([*later, POLL])

    # Claiming.

    async def _claim_safely(self, schedule: Schedule) -> list[Run]:
        try:
            return await self._claim(schedule)
        except Exception as error:  # broad: an error of one schedule must not stop the others
            log.background_failed(f"schedule {schedule.id}", error)
            self._shunned[_key(schedule)] = time.monotonic() + SHUN
            return []

    async def _claim(self, schedule: Schedule) -> list[Run]:
        """The runs that this worker holds now; none if another worker was faster."""
        move = schedules.claim(schedule, self._store.now(), HOLD)
        if move is None:
            return []
        try:
            await schedule_records.move(self._store, move)
        except errors.Conflict:  # another worker was faster, or the clock was set back to ticks that have runs
            found = await schedule_records.get(self._store, schedule.tenant, schedule.id)
            if found is not None and found.stamp == schedule.stamp:
                await self._try_move(schedules.pass_over(schedule))
            return []
        reach("schedule.claimed")
        for run in move.runs:
            if run.status == "missed":
                log.ticks_missed(run.schedule, run.count, run.message)
        return [run for run in move.runs if run.status == "due"]

    async def _try_move(self, move: Move) -> None:
        with suppress(errors.Conflict):  # another worker has done it
            await schedule_records.move(self._store, move)

    # Carrying on.

    async def _carry_safely(self, run: Run) -> None:
        with traced(run.trace_id or new_trace()):
            try:
                await self._carry(run)
            except errors.Conflict:
                return  # another worker has decided it
            except Exception as error:  # broad, as above; it is due again by itself
                log.background_failed(f"schedule {run.schedule}", error)

    async def _carry(self, run: Run) -> None:
        schedule = await schedule_records.get(self._store, run.tenant, run.schedule)
        before = run.version + 1
        pinned = await schedule_records.revisions(self._store, run.tenant, run.schedule, before=before, limit=1)
        if schedule is None or schedule.ended_at is not None:
            await self._skip(run, "The schedule was deleted.")
        elif not pinned or pinned[0].version != run.version:
            await self._skip(run, f"Version {run.version} of the schedule is not kept any more.")
        elif schedules.is_too_late(run, pinned[0].terms, self._store.now()):
            await self._close(run, "missed", schedules.MISSED)
            log.ticks_missed(run.schedule, run.count, schedules.MISSED)
        else:
            await self._decide(run, pinned[0].terms)

    async def _decide(self, run: Run, terms: Terms) -> None:
        others, since = await self._others(run)
        verdict, why = schedules.decide_overlap(run, others, terms.overlap)
        if verdict == "fire":
            await self._fire(run, terms)
            await self._call(others)
        elif verdict == "skip":
            await self._skip(run, why)
        else:
            if verdict == "cancel":
                await asyncio.gather(*(self._cancel(each.job_id) for each in others if each.job_id is not None))
            is_behind = verdict == "wait" and any(each.status == "due" and each.tick < run.tick for each in others)
            await self._wait(run, why, 0.0 if is_behind else since)

    async def _others(self, run: Run) -> tuple[list[Run], float]:
        """The schedule's other open runs, oldest first, and when the latest of their jobs was created."""
        found = (await schedule_records.runs(self._store, run.tenant, run.schedule, limit=BATCH, open_only=True))[::-1]
        fired = [each.job_id for each in found if each.job_id is not None]
        jobs = await get_readable(self._store, fired)  # without unreadable ones: they may be active
        others = []
        for each in found:
            if each.tick == run.tick:
                continue
            if each.job_id in jobs and jobs[each.job_id] is None:
                await self._close(each, "failed", "Its job is not there any more.")
            else:
                others.append(each)
        return others, max((job.created_at for job in jobs.values() if job is not None), default=run.tick)

    async def _fire(self, run: Run, terms: Terms) -> None:
        try:
            plan = await self._plan(terms.pipeline)
            parameters = get_encryptor(self._settings.secret_key).decrypt(terms.parameters, plan, run.tenant)
            async with NewJob(self._store, self._blobs, self._settings) as new_job:
                await new_job.admit(
                    plan, parameters, Options(user=terms.user), tenant=run.tenant, origin=ORIGIN, run=run
                )
        except errors.SlotTaken as taken:
            why = f"The user has an active job: {taken.facts['active_job_id']}."
            await (self._skip(run, why) if terms.overlap == "skip" else self._wait(run, why, run.tick))
        except (errors.InvalidInput, errors.TooMany, errors.NoSecretKey, errors.SecretUnreadable) as error:
            await self._skip(run, error.message)
        else:
            reach("schedule.fired")

    async def _call(self, others: Sequence[Run]) -> None:
        """Let the first waiting run check again soon. Those behind it are called in turn."""
        for waiting in [each for each in others if each.status == "due"][:1]:
            for _ in range(TRIES):  # it may be checking at this moment
                run = await schedule_records.run(self._store, waiting.tenant, waiting.schedule, waiting.tick)
                if run is None or run.status != "due":
                    return
                with suppress(errors.Conflict):
                    await self._wait(run, run.message, self._store.now())
                    return

    async def _skip(self, run: Run, why: str) -> None:
        await self._close(run, "skipped", why)
        log.tick_skipped(run.schedule, why)

    async def _close(self, run: Run, status: schedules.RunStatus, why: str) -> None:
        closed = schedules.close_run(run, status, why, self._store.now())
        await schedule_records.put_run(self._store, run, closed)

    async def _wait(self, run: Run, why: str, since: float) -> None:
        """The longer the previous run has lasted, the longer the pause."""
        now = self._store.now()
        pause = min(LONGEST_WAIT, max(WAIT, (now - since) / 10))
        await schedule_records.put_run(self._store, run, schedules.postpone_run(run, why, now + pause))

    async def _cancel(self, job_id: str) -> None:
        # It may have ended, or be unreadable.
        with suppress(errors.JobNotFound, errors.NotAllowed, errors.CorruptRecord, errors.SchemaTooNew):
            await self._transact(job_id, lambda job: lifecycle.cancel(job, now=self._store.now()))

    async def _plan(self, pipeline: str) -> Plan:
        if pipeline not in self._plans or time.monotonic() - self._read_at > FRESH:
            self._plans = plans_of(await list_definitions(self._store))
            self._read_at = time.monotonic()
        if pipeline not in self._plans:
            raise unknown_pipeline(pipeline, self._plans)
        return self._plans[pipeline]

    # The slow check of all schedules.

    async def _check_page(self) -> None:
        """One page of schedules: realign next ticks, drop old runs and ended schedules."""
        if time.monotonic() - self._looked_at < LAP:
            return
        self._looked_at = time.monotonic()
        now = self._store.now()
        at, after = _read_bookmark(await get_bookmark(self._store, ROUND))
        if abs(now - at) < LAP:  # another worker did it
            return
        page = await schedule_records.list_all(self._store, after=after, limit=BATCH)
        last = (page[-1].tenant, page[-1].id) if len(page) == BATCH else None
        await put_bookmark(self._store, ROUND, json.encode([now, last]).decode())
        oldest = now - self._settings.runs_keep
        for schedule in page:
            try:
                await self._check_schedule(schedule, now, oldest)
            except Exception as error:  # broad, as above
                log.background_failed(f"schedule {schedule.id}", error)

    async def _check_schedule(self, schedule: Schedule, now: float, oldest: float) -> None:
        await schedule_records.trim_runs(self._store, schedule, older_than=oldest, keep=self._settings.runs_limit)
        if schedule.ended_at is not None and schedule.ended_at < oldest:
            await schedule_records.drop(self._store, schedule)
        elif (move := schedules.realign(schedule, now)) is not None:
            await self._try_move(move)


def _key(schedule: Schedule) -> tuple[str, str]:
    return schedule.tenant, schedule.id


def _read_bookmark(text: str | None) -> tuple[float, tuple[str, str] | None]:
    try:
        return json.record(text or "", tuple[float, tuple[str, str] | None])
    except errors.CorruptRecord:  # or there is none yet: begin again
        return 0.0, None


# Schedules that the code of an app declares.


async def declare(
    store: Store, declared: Sequence[Declared], definitions: Sequence[Definition], encryptor: Encryptor
) -> None:
    """Create them, and update them until a person edits them.

    A schedule whose secrets cannot be encrypted, without a key, is logged and skipped.
    """
    plans = {each.pipeline: json.plan_from(each.plan) for each in definitions}
    for each in declared:
        try:
            await _declare(store, each, plans, encryptor)
        except errors.NoSecretKey as error:
            log.background_failed(f"schedule {each.id}", error)


async def _declare(store: Store, declared: Declared, plans: Mapping[str, Plan], encryptor: Encryptor) -> None:
    """Read, decide, write; repeat if another starting worker was faster."""
    while True:
        found, now = await schedule_records.get(store, TENANT, declared.id), store.now()
        terms = _encrypt_terms(declared.terms, found, plans[declared.terms.pipeline], encryptor)
        move: Move | None
        if found is None:
            move = schedules.create(TENANT, declared.id, terms, author=schedules.CODE, now=now, declared=terms)
        else:
            move = schedules.declare(found, terms, now=now)
        if move is None:
            return
        with suppress(errors.Conflict):
            await schedule_records.move(store, move)
            return


def _encrypt_terms(terms: Terms, found: Schedule | None, plan: Plan, encryptor: Encryptor) -> Terms:
    """With encrypted secrets. If the declaration has not changed, its stored bytes are kept."""
    if not plan.secrets:
        return terms
    kept = None if found is None else found.declared
    if kept is not None and kept.pipeline == terms.pipeline and _is_same(kept, terms, plan, encryptor):
        return replace(terms, parameters=kept.parameters)
    return replace(terms, parameters=encryptor.encrypt(terms.parameters, plan, TENANT))


def _is_same(kept: Terms, terms: Terms, plan: Plan, encryptor: Encryptor) -> bool:
    try:
        return bool(json.decode(encryptor.decrypt(kept.parameters, plan, TENANT)) == json.decode(terms.parameters))
    except errors.SecretUnreadable:  # encrypted with a key that is no longer used
        return False

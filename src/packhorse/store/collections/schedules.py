"""Schedules, their versions, and the runs of their ticks.

A schedule moves by one `put` on its stamp, together with its new version and the runs of the ticks that were claimed:
so a tick has one run, however many schedulers there are. The commit of a run's job notes the outcome of the run.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import asdict, replace

from packhorse.core import json
from packhorse.core.records import Drop, IndexEntry, Put, Record, time_place
from packhorse.core.schedules import (
    MAX_VERSIONS,
    RUN,
    Move,
    NotedRun,
    Revision,
    Run,
    Schedule,
    run_index,
    run_ref,
    schedule_key,
)
from packhorse.errors import Conflict
from packhorse.store.base import Records
from packhorse.store.collections.base import readable, readable_page

SCHEDULE, REVISION = "schedule", "revision"
ALL, NEXT = "all", "next"
"""Indexes of schedules: every one, by tenant and id; those with a next tick, by that tick."""
PAGE = 500
"""Runs that are read and dropped in one step at most."""


async def move(store: Records, move: Move, also: Put | None = None) -> None:
    """Make it whole or not at all: the schedule, its new version, and the runs of the ticks that were claimed.

    It is made if the stored schedule carries the stamp of ``before`` (None: there is none of that id) and none of the
    runs exists, and ``also`` can be written. Raises `Conflict`. Of the versions, `MAX_VERSIONS` are kept.
    """
    after, key = move.after, schedule_key(move.after.tenant, move.after.id)
    writes: list[Put | Drop] = [
        Put(
            SCHEDULE,
            key,
            json.encode(after),
            stamp=0 if move.before is None else move.before.stamp,
            index=tuple(_schedule_index(after, key)),
        )
    ]
    if (revision := move.revision) is not None:
        place = IndexEntry(key, time_place(revision.version))
        writes.append(Put(REVISION, f"{key}/{revision.version}", json.encode(revision), stamp=0, index=(place,)))
        writes.append(Drop(REVISION, f"{key}/{revision.version - MAX_VERSIONS}"))
    writes += [_put_run(run, stamp=0) for run in move.runs]
    writes += [] if also is None else [also]
    try:
        await store.put(writes, quiet=True)
    except Conflict as error:
        raise Conflict(f"The schedule {after.id} has moved on.", schedule_id=after.id) from error


async def get(store: Records, tenant: str, schedule_id: str) -> Schedule | None:
    """Ended ones too."""
    [found] = await store.fetch(SCHEDULE, [schedule_key(tenant, schedule_id)])
    return None if found is None else _schedule(found)


async def list_all(
    store: Records, tenant: str | None = None, *, after: tuple[str, str] | None = None, limit: int = 50
) -> list[Schedule]:
    """Those of the tenant, by id; or all, in an order of their own. Behind the one of that tenant and id.

    One that cannot be read is logged and left out.
    """
    first = schedule_key(*after) if after is not None else "" if tenant is None else schedule_key(tenant, "")
    last = None if tenant is None else schedule_key(tenant, "").removesuffix("/") + "0"
    return await readable_page(
        lambda most: store.scan(SCHEDULE, ALL, after=first, before=last, limit=most), limit, _schedule
    )


async def count_live(store: Records, tenant: str, most: int) -> int:
    """Schedules of the tenant that have not ended, counted no further than ``most``."""
    count, after = 0, None
    while count < most and (page := await list_all(store, tenant, after=after, limit=PAGE)):
        count += sum(each.ended_at is None for each in page)
        after = (tenant, page[-1].id)
    return min(count, most)


async def upcoming(store: Records, until: float, limit: int) -> list[Schedule]:
    """Those whose next tick comes up to that moment, the earliest first; without those that cannot be read."""
    last = time_place(until, "\x7f")
    return await readable_page(lambda most: store.scan(SCHEDULE, NEXT, before=last, limit=most), limit, _schedule)


async def revisions(
    store: Records, tenant: str, schedule_id: str, *, before: int | None = None, limit: int = 50
) -> list[Revision]:
    """Versions, newest first, with a number below ``before``; without those that cannot be read."""
    last = None if before is None else time_place(before)
    key = schedule_key(tenant, schedule_id)
    return await readable_page(
        lambda most: store.scan(REVISION, key, before=last, limit=most, newest=True),
        limit,
        lambda found: json.record(found.body, Revision),
    )


async def runs(
    store: Records,
    tenant: str,
    schedule_id: str,
    *,
    before: float | None = None,
    limit: int = 50,
    open_only: bool = False,
) -> list[Run]:
    """Runs, the newest tick first, of ticks before ``before``; only those that are not over, if ``open_only``.

    One that cannot be read is logged and left out.
    """
    [*entries] = run_index(tenant, schedule_id, 0.0, is_open=True)
    name, last = entries[open_only].name, None if before is None else time_place(before)
    return await readable_page(lambda most: store.scan(RUN, name, before=last, limit=most, newest=True), limit, _run)


async def run(store: Records, tenant: str, schedule_id: str, tick: float) -> Run | None:
    [found] = await store.fetch(RUN, [run_ref(tenant, schedule_id, tick).id])
    return None if found is None else _run(found)


async def put_run(store: Records, before: Run, after: Run) -> None:
    """Write it if the stored one carries the stamp of ``before``. Raises `Conflict`."""
    await store.put([_put_run(after, stamp=before.stamp)], quiet=True)


async def take_runs(store: Records, limit: int, seconds: float) -> list[Run]:
    """Those to be carried on by the store's clock, longest due first, each put off by ``seconds`` in the same step.

    Two takers never receive the same one at a time. What a taker that died has not decided is due again by itself.
    One that cannot be read is logged and left out.
    """
    return readable(await store.take(RUN, "", limit, seconds), _run)


async def trim_runs(store: Records, schedule: Schedule, *, older_than: float, keep: int) -> None:
    """Drop readable runs that are over: of ticks before that, and the oldest beyond so many; a page at a time."""
    name, last, is_more = run_index(schedule.tenant, schedule.id, 0.0, is_open=False)[0].name, "", True
    while is_more:
        page = await store.scan(RUN, name, after=last, limit=PAGE if last else 10)  # mostly there is nothing to drop
        found = readable(page, _run)
        old = [each for each in found if each.tick < older_than or each.n <= schedule.runs - keep]
        gone = [each for each in old if not each.is_open]
        is_more = len(old) == len(found) and len(page) > 0
        last = time_place(float(page[-1].id.rpartition("/")[2])) if page else last  # its body may be unreadable
        if gone:
            drops = [Drop(*run_ref(each.tenant, each.schedule, each.tick), stamp=each.stamp) for each in gone]
            with suppress(Conflict):  # one was retried meanwhile: the next round finds the others
                await store.put(drops, quiet=True)


async def drop(store: Records, schedule: Schedule) -> None:
    """Forget an ended schedule with its versions, if it is still as it was read and has no run left."""
    key = schedule_key(schedule.tenant, schedule.id)
    name = run_index(schedule.tenant, schedule.id, 0.0, is_open=False)[0].name
    if await store.scan(RUN, name, limit=1):
        return
    versions = await store.scan(REVISION, key, limit=2 * MAX_VERSIONS)
    with suppress(Conflict):  # who adds a run moves the schedule, too
        drops = [Drop(REVISION, each.id) for each in versions]
        await store.put([Drop(SCHEDULE, key, stamp=schedule.stamp), *drops], quiet=True)


def _schedule_index(schedule: Schedule, key: str) -> list[IndexEntry]:
    found = [IndexEntry(ALL, key)]
    if schedule.next_at is not None:
        found.append(IndexEntry(NEXT, time_place(schedule.next_at, key)))
    return found


def _schedule(record: Record) -> Schedule:
    return replace(json.record(record.body, Schedule), stamp=record.stamp)


def _put_run(run: Run, *, stamp: int) -> Put:
    index = run_index(run.tenant, run.schedule, run.tick, is_open=run.is_open)
    ref = run_ref(run.tenant, run.schedule, run.tick)
    return Put(*ref, json.encode(run), stamp=stamp, index=index, due_at=run.due_at)


def _run(record: Record) -> Run:
    found = json.record(record.body, Run)
    noted = asdict(json.record(record.note, NotedRun)) if record.note else {}
    return replace(found, **noted, stamp=record.stamp, due_at=record.due_at)

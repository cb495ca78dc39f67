"""Schedules and runs for the tests of the stores."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from packhorse.core import schedules
from packhorse.core.models import Firing, Job
from packhorse.core.schedules import Move, Run, Schedule, Terms
from packhorse.store.base import Store
from packhorse.store.collections import schedules as schedule_records
from tests.contract.builders import made, submission

EVERY_SECOND = "* * * * * *"
MIDNIGHT = "0 0 * * *"


def terms(**options: Any) -> Terms:
    given = {"pipeline": "convert", "parameters": b'{ "platform": "520" }', "cron": EVERY_SECOND, "user": "ann"}
    return Terms(**{**given, **options})


def creation(id: str = "nightly", *, tenant: str = "default", now: float, **options: Any) -> Move:
    return schedules.create(tenant, id, terms(**options), author="k1", reason="first", now=now)


async def created(store: Store, id: str = "nightly", **options: Any) -> Schedule:
    move = creation(id, **{"now": store.now(), **options})
    await schedule_records.move(store, move)
    return move.after


async def torn(store: Store, id: str, **options: Any) -> None:
    """A schedule that nobody can read any more."""
    made = await created(store, id, **options)
    await schedule_records.move(store, Move(made, replace(made, stamp=made.stamp + 1, created_at="torn")))


async def tear_run(store: Store, run: Run) -> None:
    """Make a run unreadable that is due and open."""
    await schedule_records.put_run(store, run, replace(run, version="torn"))


async def claimed(store: Store, schedule: Schedule, now: float, hold: float = 0.0) -> tuple[Schedule, Run]:
    """The schedule moved on, and the run of the tick that was due."""
    move = schedules.claim(schedule, now, hold)
    assert move is not None
    await schedule_records.move(store, move)
    return move.after, move.runs[0]


async def fired(store: Store, run: Run, **options: Any) -> Job:
    """The job of a run."""
    change = submission(
        now=store.now(), tenant=run.tenant, firing=Firing(run.schedule, run.tick), stamp=run.stamp, **options
    )
    return await made(store, change)


async def again(store: Store, run: Run) -> Run:
    found = await schedule_records.run(store, run.tenant, run.schedule, run.tick)
    assert found is not None
    return found


async def stored(store: Store, id: str = "nightly") -> Schedule:
    found = await schedule_records.get(store, "default", id)
    assert found is not None
    return found

"""Jobs for those measurements that need a store and no worker."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

import uuid_utils
from msgspec.structs import replace

from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Result, Spec
from packhorse.core.plan import Plan, StagePlan, fingerprint
from packhorse.store.base import Claim, Starter, Store
from packhorse.store.sqlite import SqliteStore
from packhorse.store.sqlite.commit import make
from packhorse.store.sqlite.connection import Session

QUEUE = "default"
PARAMETERS = json.encode({"n": 1, "text": "as much as a small job has"})
LEASE = 60.0


def plan(pipeline: str = "bench") -> Plan:
    made = Plan(pipeline, (StagePlan("only", QUEUE, kind=f"{pipeline}/only"),))
    return replace(made, fingerprint=fingerprint(made))


def submit(plan: Plan, now: float, *, user: str = "ann", priority: int = 0) -> Change:
    return lifecycle.submit(
        plan,
        Spec(PARAMETERS),
        job_id=str(uuid_utils.uuid7()),
        user=user,
        priority=priority,
        trace_id=secrets.token_hex(16),
        now=now,
    )


async def commit(store: Store, changes: Sequence[Change]) -> None:
    for refusal in await store.commit(changes):
        if refusal is not None:
            raise refusal


async def claim(store: Store, plans: Sequence[Plan], limit: int) -> list[Claim]:
    tokens = iter(partial(secrets.token_hex, 8), "")
    starter = Starter(tokens, "bench", LEASE, store.now)
    return await store.claim({QUEUE: limit}, [stage.kind for plan in plans for stage in plan.stages], starter)


def finish(claim: Claim, now: float) -> Change:
    change = lifecycle.finish(claim.job, claim.task, token=claim.token, result=Result(b"1"), now=now)
    return replace(change, id=claim.token)


async def seed(store: Store, changes: Iterable[Change], size: int = 10_000) -> None:
    """Leave the rows that as many submits would. SQLite commits thousands in one transaction, through its own SQL."""
    waiting = iter(changes)
    while some := list(islice(waiting, size)):
        if isinstance(store, SqliteStore):
            await store._writer.run(partial(_make_all, store, some))
        else:
            await commit(store, some)
        await store.trim()  # as every worker does all the time


def _make_all(store: SqliteStore, changes: Sequence[Change], db: Session) -> None:
    for change in changes:
        make(db, change, store.now())

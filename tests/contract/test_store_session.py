"""The handle itself: its clock, its self-check, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from packhorse.core.records import LogEntry, Put
from packhorse.errors import StoreUnavailable
from packhorse.store.base import Filter, Store
from packhorse.store.counters import Tally
from tests.contract.builders import KINDS, ONLY, UNKNOWN, claim, held, starter, submission, submit
from tests.contract.failures import ALL, BY_ANN
from tests.contract.stores import Clock, OpenStore

LIMIT = 60.0
"""Seconds after which a call is taken for one that never ends."""


CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "commit": lambda store: store.commit([submission(now=1.0)]),
    "get": lambda store: store.get([UNKNOWN]),
    "find": lambda store: store.find(Filter()),
    "count": lambda store: store.count([Filter()], most=1),
    "snapshot": lambda store: store.snapshot(UNKNOWN, events=1, lines=1),
    "specs": lambda store: store.specs([UNKNOWN]),
    "results": lambda store: store.results([UNKNOWN]),
    "events": lambda store: store.events(UNKNOWN),
    "has_change": lambda store: store.has_change(UNKNOWN, "c"),
    "find_by_key": lambda store: store.find_by_key("k"),
    "holder": lambda store: store.holder("s"),
    "line": lambda store: store.line("s", limit=1),
    "claim": lambda store: store.claim({"default": 1}, KINDS, starter(store)),
    "renew": lambda store: store.renew([], 1.0),
    "overdue": lambda store: store.overdue(1),
    "held_by": lambda store: store.held_by("w", 1),
    "expired": lambda store: store.expired(1),
    "ahead": lambda store: store.ahead(submission(now=1.0).after, ONLY),
    "report": lambda store: store.report([]),
    "log": lambda store: store.log([], keep=1),
    "sample": lambda store: store.sample([], keep=1),
    "progress": lambda store: store.progress([UNKNOWN]),
    "lines": lambda store: store.lines(UNKNOWN),
    "samples": lambda store: store.samples(UNKNOWN),
    "wait_for_change": lambda store: store.wait_for_change(None, 0),
    "changed_jobs": lambda store: store.changed_jobs(None),
    "purgeable": lambda store: store.purgeable(1),
    "jobs_with_litter": lambda store: store.jobs_with_litter(1),
    "erase": lambda store: store.erase(UNKNOWN),
    "existing_ids": lambda store: store.existing_ids([UNKNOWN]),
    "trim": lambda store: store.trim(),
    "spend": lambda store: store.spend([]),
    "refund": lambda store: store.refund([], 1.0),
    "failures": lambda store: store.failures(ALL),
    "failure_groups": lambda store: store.failure_groups("default"),
    "dismiss_failures": lambda store: store.dismiss_failures([UNKNOWN], BY_ANN),
    "forget_failures": lambda store: store.forget_failures(1.0, 1),
    "tally": lambda store: store.tally({Tally(60, 60, "p", "q", "finish"): 1}),
    "list_tallies": lambda store: store.list_tallies(60, 0.0),
    "heads": lambda store: store.heads({"default": ["k"]}),
    "count_by_status": lambda store: store.count_by_status(1),
    "ready": lambda store: store.ready({}),
    "put": lambda store: store.put([Put("pet", "a", b"1")]),
    "fetch": lambda store: store.fetch("pet", ["a"]),
    "scan": lambda store: store.scan("pet", "all"),
    "take": lambda store: store.take("pet", "", 1, 1.0),
    "append": lambda store: store.append("audit", [LogEntry(b"1")], keep=1),
    "tail": lambda store: store.tail("audit"),
    "set_limit": lambda store: store.set_limit("gpu", 1),
    "limit_states": lambda store: store.limit_states(),
    "check": lambda store: store.check(),
}


def test_every_method_of_the_contract_is_called_here() -> None:
    methods = {name for part in Store.__mro__ for name in vars(part) if not name.startswith("_")}

    assert methods - {"now", "close"} == set(CALLS)


@pytest.mark.cluster
async def test_a_closed_store_says_that_it_is_unavailable(store: Store) -> None:
    await store.close()

    ends = {name: await asyncio.wait_for(_end(call(store)), LIMIT) for name, call in CALLS.items()}

    assert {name: end for name, end in ends.items() if not isinstance(end, StoreUnavailable)} == {}


async def _end(call: Awaitable[object]) -> object:
    """What the call raises or returns; a commit returns its error per change."""
    try:
        returned = await call
    except Exception as error:  # whichever
        return error
    return returned[0] if isinstance(returned, list) and len(returned) == 1 else returned


async def test_closing_twice_is_harmless(store: Store) -> None:
    await store.close()

    await store.close()

    with pytest.raises(StoreUnavailable):
        await store.get([UNKNOWN])


async def test_closing_one_handle_leaves_the_others_open(store: Store, other: Store) -> None:
    await store.close()

    job = await submit(other)

    assert await held(other, job.id) == job


async def test_closing_finishes_what_was_asked_before(open_store: OpenStore) -> None:
    first = await open_store()
    changes = [submission(now=1.0) for _ in range(50)]
    asked = [asyncio.create_task(first.commit([change])) for change in changes]
    await asyncio.sleep(0)

    await first.close()

    outcomes = await asyncio.gather(*asked)
    known = await (await open_store()).existing_ids([change.after.id for change in changes])
    made = {change.after.id for change, outcome in zip(changes, outcomes, strict=True) if outcome == [None]}
    assert known == made


async def test_the_stores_time_is_that_of_its_clock(timed: Store, clock: Clock) -> None:
    clock.forward(5.0)

    assert timed.now() == clock()


async def test_the_self_check_says_what_each_setting_means(store: Store) -> None:
    findings = await store.check()

    assert findings
    assert all(finding.name and finding.value and finding.meaning for finding in findings)


async def test_the_self_check_moves_nothing(store: Store) -> None:
    job = await submit(store)

    await store.check()

    assert await held(store, job.id) == job
    assert [claimed.task for claimed in await claim(store)] == [ONLY]

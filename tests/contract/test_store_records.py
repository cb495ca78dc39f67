"""Records: compare-and-set, indexes, taking what is due, logs, and their part in the commit of a job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change, DropRecord, Effect, Guard, NoteRecord, PutRecord, RecordIs
from packhorse.core.records import Drop, IndexEntry, LogEntry, Put, Record, Ref
from packhorse.errors import Conflict, JobNotFound
from packhorse.store.base import Store
from tests.contract.builders import (
    RESULT,
    UNKNOWN,
    claim_one,
    completed,
    held,
    made,
    marked,
    started,
    submission,
    submit,
)
from tests.contract.stores import Clock

pytestmark = pytest.mark.cluster

MINUTE = 60.0


def put(id: str = "a", body: bytes = b"1", *, kind: str = "pet", **options: Any) -> Put:
    index = tuple(IndexEntry(name, place) for name, place in options.pop("index", ()))
    return Put(kind, id, body, index=index, **options)


def record(id: str = "a", body: bytes = b"1", *, kind: str = "pet", **options: Any) -> Record:
    return Record(kind, id, body, **options)


async def one(store: Store, id: str = "a", kind: str = "pet") -> Record | None:
    [found] = await store.fetch(kind, [id])
    return found


async def listed(store: Store, index: str = "all", **options: Any) -> list[str]:
    return [each.id for each in await store.scan("pet", index, **options)]


def with_records(change: Change, *effects: Effect, guards: tuple[Guard, ...] = ()) -> Change:
    return replace(change, effects=(*change.effects, *effects), guards=(*change.guards, *guards))


# Put and fetch


async def test_a_record_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    whole = put("ä/ö:{}", '{"é":"\\u0000 ☃"}'.encode(), due_at=1_800_000_000.25, lane="l", index=[("all", "ä")])

    assert await store.put([whole]) == [1]

    assert await one(other, whole.id) == record(whole.id, whole.body, due_at=1_800_000_000.25)


async def test_bodies_are_bytes_that_nobody_reads(store: Store) -> None:
    await store.put([put(body=bytes(range(256)))])

    assert await one(store) == record(body=bytes(range(256)))


async def test_records_come_in_the_order_asked_for_and_none_where_there_is_none(store: Store) -> None:
    await store.put([put("a"), put("b", b"2")])

    assert await store.fetch("pet", ["b", "x", "a", "no\0body", "b"]) == [
        record("b", b"2"), None, record("a"), None, record("b", b"2"),
    ]  # fmt: skip
    assert await store.fetch("pet", []) == []


async def test_kinds_are_apart(store: Store) -> None:
    await store.put([put(index=[("all", "a")]), put(kind="pet:a", body=b"2", index=[("all", "a")])])

    assert await one(store) == record()
    assert await one(store, kind="pet:a") == record(kind="pet:a", body=b"2")
    assert await store.scan("pet", "all") == [record()]
    await store.put([Drop("pet", "a")])
    assert await one(store, kind="pet:a") is not None


async def test_every_write_adds_one_to_the_stamp(store: Store, other: Store) -> None:
    assert await store.put([put()]) == [1]
    assert await other.put([put(body=b"2")]) == [2]
    assert await store.put([put(body=b"3"), put(body=b"4")]) == [3, 4]

    assert await one(store) == record(body=b"4", stamp=4)


async def test_a_put_without_a_time_is_due_never_again(timed: Store) -> None:
    await timed.put([put(due_at=timed.now())])
    await timed.put([put()])

    assert await timed.take("pet", "", 10, MINUTE) == []
    assert await one(timed) == record(stamp=2)


# Compare and set


@pytest.mark.parametrize("stamp", [None, 0])
async def test_a_new_record_needs_no_stamp_or_none_there(store: Store, stamp: int | None) -> None:
    assert await store.put([put(stamp=stamp)]) == [1]


async def test_a_new_record_does_not_replace_an_old_one(store: Store, other: Store) -> None:
    await store.put([put()])

    with pytest.raises(Conflict) as caught:
        await other.put([put(body=b"2", stamp=0)])

    assert (caught.value.facts["kind"], caught.value.facts["id"]) == ("pet", "a")
    assert await one(store) == record()


async def test_only_who_has_seen_the_last_write_replaces_or_drops(store: Store, other: Store) -> None:
    await store.put([put()])
    await store.put([put(body=b"2", stamp=1)])

    for stale in (put(body=b"3", stamp=1), put(body=b"3", stamp=3), Drop("pet", "a", stamp=1)):
        with pytest.raises(Conflict):
            await other.put([stale])

    assert await one(other) == record(body=b"2", stamp=2)
    assert await other.put([Drop("pet", "a", stamp=2)]) == [0]
    assert await one(store) is None


async def test_a_stamp_of_a_record_that_is_gone_does_not_hold(store: Store) -> None:
    with pytest.raises(Conflict):
        await store.put([put(stamp=1)])
    with pytest.raises(Conflict):
        await store.put([Drop("pet", "a", stamp=1)])

    assert await one(store) is None


async def test_of_many_who_replace_what_they_have_seen_one_does(store: Store, other: Store) -> None:
    await store.put([put()])

    async def replacing(handle: Store, n: int) -> bool:
        try:
            await handle.put([put(body=b"%d" % n, stamp=1)])
        except Conflict:
            return False
        return True

    won = await asyncio.gather(*(replacing(handle, n) for n in range(10) for handle in (store, other)))

    assert won.count(True) == 1
    assert (await one(store)) == record(body=b"%d" % (won.index(True) // 2), stamp=2)


# One call, all or nothing


async def test_a_call_makes_all_of_its_writes_or_none(store: Store) -> None:
    await store.put([put("old", index=[("all", "old")]), put("gone", index=[("all", "gone")])])

    with pytest.raises(Conflict):
        await store.put(
            [
                put("new", index=[("all", "new")]),
                put("old", b"2", index=[("all", "moved")]),
                Drop("pet", "gone"),
                put("old", stamp=1),
            ]
        )

    assert await store.fetch("pet", ["new", "old", "gone"]) == [None, record("old"), record("gone")]
    assert await listed(store) == ["gone", "old"]


async def test_writes_of_one_call_see_each_other(store: Store) -> None:
    stamps = await store.put(
        [put(stamp=0), put(body=b"2", stamp=1), Drop("pet", "a", stamp=2), put(body=b"3", stamp=0), put("b", stamp=0)]
    )

    assert stamps == [1, 2, 0, 1, 1]
    assert await one(store) == record(body=b"3")


async def test_a_refused_call_leaves_its_neighbours(store: Store) -> None:
    await store.put([put("taken")])

    outcomes = await asyncio.gather(
        *(store.put([put(f"n{n}"), put("taken" if n == 5 else f"m{n}", stamp=0)]) for n in range(10)),
        return_exceptions=True,
    )

    assert [isinstance(each, Conflict) for each in outcomes] == [n == 5 for n in range(10)]
    found = await store.fetch("pet", [f"n{n}" for n in range(10)])
    assert [each is None for each in found] == [n == 5 for n in range(10)]


async def test_nothing_to_write_is_nothing_written(store: Store) -> None:
    assert await store.put([]) == []


async def test_a_drop_takes_index_and_note_along_and_dropping_nothing_is_fine(store: Store) -> None:
    await store.put([put(index=[("all", "a")], due_at=1.0)])
    await made(store, with_records(submission(now=store.now()), NoteRecord(Ref("pet", "a"), b"n")))

    assert await store.put([Drop("pet", "a"), Drop("pet", "nobody"), Drop("pet", "no\0body")]) == [0, 0, 0]

    assert await listed(store) == []
    assert await store.take("pet", "", 10, MINUTE) == []
    await store.put([put()])
    assert await one(store) == record()


# What must be there


async def test_a_record_of_a_job_needs_the_job(store: Store) -> None:
    with pytest.raises(JobNotFound) as caught:
        await store.put([put("b"), put(job_id=UNKNOWN)])

    assert caught.value.facts["job_id"] == UNKNOWN
    assert await store.fetch("pet", ["a", "b"]) == [None, None]
    job = await submit(store)
    assert await store.put([put(job_id=job.id)]) == [1]


async def test_a_record_can_need_another(store: Store) -> None:
    with pytest.raises(Conflict) as caught:
        await store.put([put(needs=Ref("house", "h"))])
    assert (caught.value.facts["kind"], caught.value.facts["id"]) == ("pet", "a")

    await store.put([put("h", kind="house"), put(needs=Ref("house", "h"))])
    with pytest.raises(Conflict):
        await store.put([Drop("house", "h"), put(body=b"2", needs=Ref("house", "h"))])

    assert await one(store) == record()
    assert await one(store, "h", "house") is not None


async def test_a_drop_can_need_that_a_worker_holds_no_lease(store: Store, other: Store) -> None:
    await store.put([put("w", kind="rider"), put("v", kind="rider")])
    claimed = await started(store, worker="w")

    with pytest.raises(Conflict) as caught:
        await other.put([Drop("rider", "v"), Drop("rider", "w", leaseless="w")])
    assert (caught.value.facts["kind"], caught.value.facts["id"]) == ("rider", "w")
    assert None not in await store.fetch("rider", ["v", "w"])

    await other.put([Drop("rider", "v", leaseless="v")])
    await made(store, lifecycle.finish(claimed.job, claimed.task, token=claimed.token, result=RESULT, now=store.now()))
    await other.put([Drop("rider", "w", leaseless="w")])
    assert await store.fetch("rider", ["v", "w"]) == [None, None]


async def test_a_job_takes_its_records_along(store: Store, other: Store) -> None:
    job, neighbour = await completed(store), await completed(store)
    due = store.now() - 1
    await store.put(
        [
            put("a", job_id=job.id, index=[("all", "a")], due_at=due),
            put("b", job_id=job.id, kind="toy", index=[("all", "b")]),
            put("c", job_id=neighbour.id, index=[("all", "c")], due_at=due),
            put("d", index=[("all", "d")]),
        ]
    )
    await marked(store, job)

    await other.erase(job.id)

    assert await store.fetch("pet", ["a", "c", "d"]) == [None, record("c", due_at=due), record("d")]
    assert await one(store, "b", "toy") is None
    assert await store.scan("toy", "all") == []
    assert await listed(store) == ["c", "d"]
    assert [each.id for each in await store.take("pet", "", 10, MINUTE)] == ["c"]


async def test_a_job_that_is_not_erased_keeps_its_records(store: Store) -> None:
    job = await completed(store)
    await store.put([put(job_id=job.id)])

    await store.erase(job.id)

    assert await one(store) == record()


async def test_a_record_that_was_put_without_its_job_stays_when_the_job_goes(store: Store) -> None:
    job = await completed(store)
    await store.put([put(job_id=job.id)])
    await store.put([put(body=b"2")])
    await marked(store, job)

    await store.erase(job.id)

    assert await one(store) == record(body=b"2", stamp=2)


async def test_a_record_goes_with_the_job_it_was_last_put_for(store: Store) -> None:
    first, last = await completed(store), await completed(store)
    await store.put([put(job_id=first.id)])
    await store.put([put(job_id=last.id)])

    for job, stays in ((first, True), (last, False)):
        await marked(store, job)
        await store.erase(job.id)
        assert (await one(store) is not None) is stays


# Indexes


async def test_an_index_lists_by_place_and_backwards(store: Store, other: Store) -> None:
    await store.put([put(id, index=[("all", place)]) for id, place in (("x", "3"), ("y", "1"), ("z", "2"))])

    assert await listed(other) == ["y", "z", "x"]
    assert await listed(other, newest=True) == ["x", "z", "y"]
    assert await listed(other, "other") == []
    assert await listed(other, limit=0) == []


async def test_places_compare_as_bytes(store: Store) -> None:
    places = [" ", "-", "0", "10", "2", "A", "Z", "a", "a ", "aa", "aä", "b", "~", "Ä", "ä", "☃", "🐺"]
    assert sorted(places, key=lambda place: place.encode()) == places
    await store.put([put(f"{n}", index=[("all", place)]) for n, place in enumerate(places)][::-1])

    found = await listed(store)

    assert found == [str(n) for n in range(len(places))]
    assert await listed(store, newest=True) == found[::-1]
    assert await listed(store, after="a", before="~") == ["8", "9", "10", "11"]


@pytest.mark.parametrize("newest", [False, True])
async def test_pages_follow_each_other_without_gaps(store: Store, newest: bool) -> None:
    places = [f"{n:03}" for n in range(25)]
    await store.put([put(place, index=[("all", place)]) for place in places])
    found: list[str] = []

    while page := await listed(store, **_page(found, newest), limit=7, newest=newest):
        assert len(page) <= 7
        found += page

    assert found == sorted(places, reverse=newest)


def _page(found: list[str], newest: bool) -> dict[str, str]:
    return {"before" if newest else "after": found[-1]} if found else {}


async def test_both_ends_are_excluded(store: Store) -> None:
    await store.put([put(place, index=[("all", place)]) for place in "abcde"])

    assert await listed(store, after="a", before="d") == ["b", "c"]
    assert await listed(store, after="a", before="d", newest=True) == ["c", "b"]
    assert await listed(store, after="a", before="e", limit=1, newest=True) == ["d"]
    assert await listed(store, after="a", before="e", limit=1) == ["b"]
    assert await listed(store, after="aa", before="az") == []
    assert await listed(store, after="d", before="b") == []


async def test_a_put_replaces_the_index_entries(store: Store) -> None:
    await store.put([put(index=[("all", "1"), ("tenant/acme", "1"), ("open", "1")])])
    await store.put([put(index=[("all", "1"), ("all", "2"), ("tenant/beta", "1")])])

    assert await listed(store) == ["a", "a"]
    assert await listed(store, "tenant/acme") == await listed(store, "open") == []
    assert await listed(store, "tenant/beta") == ["a"]
    await store.put([put()])
    assert await listed(store) == await listed(store, "tenant/beta") == []


async def test_two_records_at_one_place_are_both_listed(store: Store) -> None:
    await store.put([put("a", index=[("all", "1")]), put("b", index=[("all", "1")])])

    assert sorted(await listed(store)) == ["a", "b"]
    await store.put([Drop("pet", "a")])
    assert await listed(store) == ["b"]


async def test_a_scan_returns_records_whole(store: Store) -> None:
    await store.put([put(index=[("all", "a")], due_at=5.5)])
    await made(store, with_records(submission(now=1.0), NoteRecord(Ref("pet", "a"), b"n", (IndexEntry("all", "a"),))))

    assert await store.scan("pet", "all") == [record(note=b"n", stamp=2)]


# Take


async def test_what_is_due_is_taken_longest_due_first(timed: Store, clock: Clock) -> None:
    now = clock()
    await timed.put([put(id, due_at=now + due) for id, due in (("a", -1), ("b", -3), ("c", 0), ("d", 1), ("e", -2))])

    first = await timed.take("pet", "", 2, MINUTE)
    rest = await timed.take("pet", "", 10, MINUTE)

    assert [each.id for each in first] == ["b", "e"]
    assert [each.id for each in rest] == ["a", "c"]
    assert first[0] == record("b", stamp=2, attempts=1, due_at=now + MINUTE)
    assert await one(timed, "b") == first[0]


async def test_lanes_and_kinds_are_taken_apart(timed: Store, clock: Clock) -> None:
    await timed.put(
        [
            put("a", lane="slow", due_at=clock()),
            put("b", lane="quick", due_at=clock()),
            put("c", kind="toy", due_at=clock()),
        ]
    )

    assert await timed.take("pet", "", 10, MINUTE) == []
    assert [each.id for each in await timed.take("pet", "slow", 10, MINUTE)] == ["a"]
    assert [each.id for each in await timed.take("pet", "quick", 10, MINUTE)] == ["b"]
    assert [each.id for each in await timed.take("toy", "", 10, MINUTE)] == ["c"]


async def test_a_record_that_changed_its_lane_is_in_one_lane(timed: Store, clock: Clock) -> None:
    await timed.put([put(lane="slow", due_at=clock())])
    await timed.put([put(lane="quick", due_at=clock())])

    assert await timed.take("pet", "slow", 10, MINUTE) == []
    assert len(await timed.take("pet", "quick", 10, MINUTE)) == 1


async def test_what_was_taken_is_put_off_and_then_anybodys(timed: Store, clock: Clock) -> None:
    await timed.put([put(due_at=clock())])
    [taken] = await timed.take("pet", "", 10, MINUTE)
    clock.forward(MINUTE - 1)
    assert await timed.take("pet", "", 10, MINUTE) == []

    clock.forward(1)
    [again] = await timed.take("pet", "", 10, MINUTE)

    assert again == replace(taken, stamp=3, attempts=2, due_at=clock() + MINUTE)
    for late in (put(stamp=taken.stamp), Drop("pet", "a", stamp=taken.stamp)):
        with pytest.raises(Conflict):
            await timed.put([late])
    await timed.put([Drop("pet", "a", stamp=again.stamp)])


async def test_who_took_it_may_put_it_off_and_keep_the_count(timed: Store, clock: Clock) -> None:
    await timed.put([put(due_at=clock())])
    [taken] = await timed.take("pet", "", 10, MINUTE)

    await timed.put([put(body=b"2", stamp=taken.stamp, due_at=clock() + 5, attempts=None)])
    assert await timed.take("pet", "", 10, MINUTE) == []
    clock.forward(5)

    [again] = await timed.take("pet", "", 10, MINUTE)
    assert (again.body, again.attempts) == (b"2", 2)


async def test_a_put_counts_from_what_it_says(timed: Store, clock: Clock) -> None:
    await timed.put([put(due_at=clock())])
    await timed.take("pet", "", 10, MINUTE)

    await timed.put([put(due_at=clock())])
    assert await one(timed) == record(stamp=3, due_at=clock())
    await timed.put([put(due_at=clock(), attempts=7)])
    assert await one(timed) == record(stamp=4, due_at=clock(), attempts=7)
    await timed.put([put("new", due_at=clock() + 1, attempts=None)])
    assert await one(timed, "new") == record("new", due_at=clock() + 1)


async def test_two_takers_never_get_the_same(store: Store, other: Store) -> None:
    due = store.now() - 5
    await store.put([put(f"{n:03}", due_at=due) for n in range(60)])

    async def all_due(handle: Store) -> list[str]:
        found: list[str] = []
        while taken := await handle.take("pet", "", 3, 600.0):
            found += [each.id for each in taken]
        return found

    found = await asyncio.gather(*(all_due(handle) for handle in (store, other, store, other)))

    assert sorted(id for taken in found for id in taken) == [f"{n:03}" for n in range(60)]


async def test_taking_with_a_limit_of_none_takes_none(store: Store) -> None:
    await store.put([put(due_at=1.0)])

    assert await store.take("pet", "", 0, MINUTE) == []
    assert await one(store) == record(due_at=1.0)


# Logs


async def test_a_log_is_read_newest_first_and_by_topic(store: Store, other: Store) -> None:
    await store.append("audit", [LogEntry(b"1", "acme"), LogEntry(b"2")], keep=100)
    await other.append("audit", [LogEntry("3 ä".encode(), "beta"), LogEntry(b"4", "acme")], keep=100)

    assert await store.tail("audit") == [
        LogEntry(b"4", "acme", 4), LogEntry("3 ä".encode(), "beta", 3), LogEntry(b"2", "", 2), LogEntry(b"1", "acme", 1)
    ]  # fmt: skip
    assert [each.n for each in await store.tail("audit", topic="acme")] == [4, 1]
    assert [each.n for each in await store.tail("audit", topic="nobody")] == []
    assert [each.n for each in await store.tail("audit", before=4, limit=2)] == [3, 2]
    assert [each.n for each in await store.tail("audit", topic="acme", before=4)] == [1]
    assert await store.tail("audit", limit=0) == []


async def test_logs_are_apart(store: Store) -> None:
    await store.append("audit", [LogEntry(b"1")], keep=100)
    await store.append("other", [LogEntry(b"2")], keep=100)

    assert [each.body for each in await store.tail("audit")] == [b"1"]
    assert [each.body for each in await store.tail("other")] == [b"2"]
    assert await store.tail("nothing") == []


async def test_a_log_drops_the_oldest_of_each_topic(store: Store) -> None:
    for n in range(30):
        await store.append("audit", [LogEntry(b"%d" % n, "acme" if n % 2 else "")], keep=10)

    assert [each.body for each in await store.tail("audit", limit=100)] == [b"%d" % n for n in range(29, 9, -1)]
    assert [each.body for each in await store.tail("audit", topic="acme")] == [b"%d" % n for n in range(29, 9, -2)]


async def test_a_number_of_a_log_is_never_given_twice(store: Store, other: Store) -> None:
    await store.append("audit", [LogEntry(b"1"), LogEntry(b"2")], keep=0)
    assert await store.tail("audit") == []

    await other.append("audit", [LogEntry(b"3")], keep=10)

    assert await store.tail("audit") == [LogEntry(b"3", "", 3)]


async def test_entries_of_one_call_stay_together_in_order_whoever_else_appends(store: Store, other: Store) -> None:
    await asyncio.gather(
        *(
            handle.append("audit", [LogEntry(b"%d.%d" % (n, part)) for part in range(5)], keep=1000)
            for n, handle in enumerate([store, other] * 5)
        )
    )

    found = (await store.tail("audit", limit=100))[::-1]
    assert len({each.n for each in found}) == 50
    bodies = [each.body.split(b".") for each in found]
    assert all(bodies[at] == [bodies[at - at % 5][0], b"%d" % (at % 5)] for at in range(50))


# Effects of a job's commit


async def test_a_commit_writes_records_with_the_job(store: Store, other: Store) -> None:
    change = submission(now=store.now())
    write = put(job_id=change.after.id, index=[("all", "a")], due_at=store.now() - 1, lane="l", stamp=0)

    await made(store, with_records(change, PutRecord(write)))

    assert await one(other) == record(due_at=write.due_at)
    assert await listed(other) == ["a"]
    [taken] = await other.take("pet", "l", 10, MINUTE)
    assert taken.id == "a"


async def test_a_refused_commit_writes_no_records(store: Store) -> None:
    await store.put([put("dropped"), put("noted")])
    job = await submit(store)
    change = lifecycle.cancel(job, now=store.now())
    assert change is not None
    await made(store, change)

    effects = (PutRecord(put()), DropRecord(Ref("pet", "dropped")), NoteRecord(Ref("pet", "noted"), b"n"))
    [error] = await store.commit([with_records(change, *effects)])

    assert isinstance(error, Conflict)
    assert await store.fetch("pet", ["a", "dropped", "noted"]) == [None, record("dropped"), record("noted")]


@pytest.mark.parametrize(
    "write",
    [
        put(stamp=0, body=b"2", index=[("all", "2")]),
        put(stamp=2, body=b"2", index=[("all", "2")]),
        put(needs=Ref("house", "h"), body=b"2", index=[("all", "2")]),
        put(job_id=UNKNOWN, body=b"2", index=[("all", "2")]),
    ],
    ids=["there", "stamp", "needs", "job"],
)
async def test_a_record_that_cannot_be_written_is_left_out_of_the_commit(store: Store, write: Put) -> None:
    await store.put([put(index=[("all", "1")])])
    change = with_records(submission(now=store.now()), PutRecord(write), PutRecord(put("b")))

    job = await made(store, change)

    assert await held(store, job.id) == job
    assert await store.fetch("pet", ["a", "b"]) == [record(), record("b")]
    assert [each.stamp for each in await store.scan("pet", "all")] == [1]


async def test_a_commit_replaces_a_record_of_which_it_knows_the_stamp(store: Store) -> None:
    await store.put([put(index=[("all", "1")])])

    await made(
        store, with_records(submission(now=store.now()), PutRecord(put(body=b"2", stamp=1, index=[("all", "2")])))
    )

    assert await store.scan("pet", "all") == [record(body=b"2", stamp=2)]
    assert await listed(store, before="2") == []


async def test_a_commit_can_need_a_record_that_it_writes(store: Store) -> None:
    await made(
        store,
        with_records(
            submission(now=store.now()), PutRecord(put("h", kind="house")), PutRecord(put(needs=Ref("house", "h")))
        ),
    )

    assert await one(store) == record()


async def test_a_note_leaves_the_body_and_ends_the_time(store: Store) -> None:
    await store.put([put(due_at=1.0, lane="l", index=[("open", "a"), ("all", "a")])])
    note = NoteRecord(Ref("pet", "a"), b'{"status":"done"}', (IndexEntry("all", "a"),))

    await made(store, with_records(submission(now=store.now()), note))

    assert await one(store) == record(note=b'{"status":"done"}', stamp=2)
    assert await store.take("pet", "l", 1, MINUTE) == []
    assert await listed(store) == ["a"]
    assert await listed(store, "open") == []


async def test_a_put_replaces_the_note_too(store: Store) -> None:
    await store.put([put()])
    await made(store, with_records(submission(now=store.now()), NoteRecord(Ref("pet", "a"), b"n")))

    await store.put([put(body=b"2")])

    assert await one(store) == record(body=b"2", stamp=3)


async def test_a_note_about_nothing_is_left_out(store: Store) -> None:
    await made(
        store,
        with_records(submission(now=store.now()), NoteRecord(Ref("pet", "a"), b"n", (IndexEntry("all", "a"),))),
    )

    assert await one(store) is None
    assert await listed(store) == []


async def test_a_commit_drops_a_record_and_dropping_nothing_is_fine(store: Store) -> None:
    await store.put([put(index=[("all", "a")], due_at=1.0)])

    await made(
        store,
        with_records(submission(now=store.now()), DropRecord(Ref("pet", "a")), DropRecord(Ref("pet", "nobody"))),
    )

    assert await one(store) is None
    assert await listed(store) == []
    assert await store.take("pet", "", 1, MINUTE) == []


async def test_effects_on_one_record_follow_each_other(store: Store) -> None:
    ref = Ref("pet", "a")
    await made(
        store,
        with_records(
            submission(now=store.now()),
            PutRecord(put(stamp=0)),
            NoteRecord(ref, b"n"),
            PutRecord(put(body=b"2", stamp=2)),
            PutRecord(put(body=b"3", stamp=2)),
            PutRecord(put("b")),
            DropRecord(Ref("pet", "b")),
        ),
    )

    assert await store.fetch("pet", ["a", "b"]) == [record(body=b"2", stamp=3), None]


async def test_changes_of_one_group_see_each_others_records(store: Store) -> None:
    changes = [with_records(submission(now=store.now()), PutRecord(put(body=b"%d" % n, stamp=0))) for n in range(5)]
    stale = with_records(submission(now=store.now()), guards=(RecordIs(Ref("pet", "a"), 0),))

    outcomes = await store.commit([*changes, stale])

    assert [type(each) for each in outcomes] == [type(None)] * 5 + [Conflict]
    assert await one(store) == record(body=b"0")


async def test_records_go_along_when_a_task_is_finished(store: Store) -> None:
    await submit(store)
    claimed = await claim_one(store)
    change = lifecycle.finish(claimed.job, claimed.task, token=claimed.token, result=RESULT, now=store.now())

    await made(store, with_records(change, PutRecord(put(job_id=claimed.job.id))))

    assert await one(store) == record()


# Guards of a job's commit


async def test_a_commit_is_made_while_the_record_is_what_was_read(store: Store) -> None:
    await store.put([put()])
    guards = (RecordIs(Ref("pet", "a"), 1), RecordIs(Ref("pet", "nobody"), 0))

    await made(store, with_records(submission(now=store.now()), NoteRecord(Ref("pet", "a"), b"n"), guards=guards))

    assert await one(store) == record(note=b"n", stamp=2)


@pytest.mark.parametrize(
    "guard", [RecordIs(Ref("pet", "a"), 0), RecordIs(Ref("pet", "a"), 2), RecordIs(Ref("pet", "b"), 1)]
)
async def test_a_commit_is_refused_whole_when_the_record_is_another(store: Store, guard: RecordIs) -> None:
    await store.put([put()])
    change = with_records(submission(now=store.now()), PutRecord(put("c")), guards=(guard,))

    [error] = await store.commit([change])

    assert type(error) is Conflict
    assert await store.get([change.after.id]) == [None]
    assert await store.fetch("pet", ["a", "c"]) == [record(), None]


async def test_a_refused_member_of_a_group_leaves_its_neighbours(store: Store) -> None:
    await store.put([put()])
    changes = [
        with_records(
            submission(now=store.now()),
            PutRecord(put(f"n{n}")),
            guards=(RecordIs(Ref("pet", "a"), 2 if n == 3 else 1),),
        )
        for n in range(6)
    ]

    outcomes = await store.commit(changes)

    assert [type(each) for each in outcomes] == [Conflict if n == 3 else type(None) for n in range(6)]
    found = await store.get([change.after.id for change in changes])
    assert [job is None for job in found] == [n == 3 for n in range(6)]
    records = await store.fetch("pet", [f"n{n}" for n in range(6)])
    assert [each is None for each in records] == [n == 3 for n in range(6)]


async def test_of_many_commits_for_one_stamp_one_is_made(store: Store, other: Store) -> None:
    await store.put([put()])
    guard = RecordIs(Ref("pet", "a"), 1)
    note = NoteRecord(Ref("pet", "a"), b"n")

    async def decide(handle: Store) -> object:
        [error] = await handle.commit([with_records(submission(now=handle.now()), note, guards=(guard,))])
        return error

    outcomes = await asyncio.gather(*(decide(handle) for handle in [store, other] * 5))

    assert outcomes.count(None) == 1
    assert all(type(each) is Conflict for each in outcomes if each is not None)
    assert await one(store) == record(note=b"n", stamp=2)


async def test_a_take_between_reading_and_committing_refuses_the_commit(store: Store) -> None:
    await store.put([put(due_at=1.0)])
    await store.take("pet", "", 1, MINUTE)

    [error] = await store.commit([with_records(submission(now=store.now()), guards=(RecordIs(Ref("pet", "a"), 1),))])

    assert type(error) is Conflict


# The handle


async def test_a_put_wakes_who_watches(store: Store, other: Store) -> None:
    mark = await other.wait_for_change(None, 0)
    woken = asyncio.create_task(other.wait_for_change(mark, 30.0))

    await store.put([put()])

    assert await woken != mark


async def test_a_quiet_put_is_written_like_any_other(store: Store, other: Store) -> None:
    assert await store.put([put(index=[("all", "a")])], quiet=True) == [1]

    assert await one(other) == record()
    assert await listed(other) == ["a"]

"""The one thread that writes: what waits travels together, fails alone, and survives a full disk."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from packhorse.core.models import Spec
from packhorse.errors import Conflict, SlotTaken, StoreError, StoreUnavailable, UnknownOutcome
from packhorse.store.collections.workers import get_bookmark, put_bookmark
from packhorse.store.sqlite import SqliteStore
from packhorse.store.sqlite.connection import connect
from tests.contract.builders import SLOT, SLOTTED, dump, submission, submit, waiting
from tests.store.blocked import until
from tests.store.sqlite.inside import stopped, together, write

BIG = Spec(b'"' + b"x" * 2_000_000 + b'"')


# together


def note(db: apsw.Connection, name: str) -> None:
    """Write a bookmark beside the store's own methods."""
    row = ("bookmark", name, b'"x"')
    db.execute("INSERT INTO records (kind, id, body, lane, attempts) VALUES (?, ?, ?, '', 0)", row)


async def counted(store: SqliteStore) -> list[str]:
    """A list that grows by one with every transaction from now on."""
    commits: list[str] = []

    def hook() -> bool:
        commits.append("commit")
        return False

    await store._writer.run(lambda db: db.set_commit_hook(hook))
    commits.clear()
    return commits


async def test_what_waits_together_is_one_transaction(store: SqliteStore) -> None:
    commits = await counted(store)

    outcomes = await together(store, [store.commit([submission(now=1.0)]) for _ in range(50)])

    assert outcomes == [[None]] * 50
    assert len(commits) == 2  # the one that everybody waited for, and theirs


async def test_changes_of_one_call_are_one_transaction(store: SqliteStore) -> None:
    commits = await counted(store)

    outcomes = await store.commit([submission(now=1.0) for _ in range(50)])

    assert outcomes == [None] * 50
    assert len(commits) == 1


@pytest.fixture
async def statements(store: SqliteStore) -> list[str]:
    """What is executed from now on."""
    seen: list[str] = []

    def trace(_: object, statement: str, __: object) -> bool:
        seen.append(statement)
        return True

    await store._writer.run(lambda db: setattr(db, "exec_trace", trace))
    return seen


async def test_submits_that_wait_together_are_added_together(store: SqliteStore, statements: list[str]) -> None:
    changes = [submission(now=1.0) for _ in range(50)]

    outcomes = await together(store, [store.commit([change]) for change in changes])

    assert outcomes == [[None]] * 50
    assert [job and job.id for job in await store.get([each.after.id for each in changes])] == [
        each.after.id for each in changes
    ]
    assert 0 < sum("INTO jobs" in each for each in statements) < 10


async def test_of_submits_that_are_added_together_only_the_one_at_fault_is_refused(store: SqliteStore) -> None:
    first, last = submission(now=1.0), submission(now=1.0)

    outcomes = await together(store, [store.commit([change]) for change in (first, first, last)])

    assert [type(outcome) for [outcome] in outcomes] == [type(None), Conflict, type(None)]
    assert None not in await store.get([first.after.id, last.after.id])


@pytest.mark.parametrize("is_looked_at", [False, True])
async def test_what_cannot_even_be_asked_for_takes_nobody_along(store: SqliteStore, is_looked_at: bool) -> None:
    await submit(store)  # the plan is known: nothing is written before the row at fault
    first, last = submission(now=1.0), submission(now=1.0)
    bad = submission(now=1.0)
    bad = replace(bad, after=replace(bad.after, priority=2**70))
    looks = [put_bookmark(store, "looked", "x")] if is_looked_at else []

    outcomes = await together(store, [*(store.commit([change]) for change in (bad, first, last)), *looks])

    assert [type(outcome) for [outcome] in outcomes[:3]] == [StoreError, type(None), type(None)]
    assert outcomes[3:] == [None] * len(looks)
    assert None not in await store.get([first.after.id, last.after.id])
    assert await store.get([bad.after.id]) == [None]


async def test_who_looks_sees_what_is_still_to_be_added(store: SqliteStore) -> None:
    def count(db: apsw.Connection) -> int:
        [(found,)] = db.execute("SELECT count(*) FROM jobs")
        return int(found)

    outcomes = await together(
        store, [store.commit([submission(now=1.0)]), store._writer.run(count), store.commit([submission(now=1.0)])]
    )

    assert outcomes == [[None], 1, [None]]


async def test_a_refusal_behind_what_is_still_to_be_added_is_no_reason_to_do_it_again(
    store: SqliteStore, statements: list[str]
) -> None:
    await submit(store, SLOTTED)
    changes = [submission(now=1.0), submission(SLOTTED, now=1.0), submission(now=1.0)]

    outcomes = await together(store, [store.commit([change]) for change in changes])

    assert [type(outcome) for [outcome] in outcomes] == [type(None), SlotTaken, type(None)]
    assert not any("SAVEPOINT" in each for each in statements)


async def test_more_than_a_group_still_gets_through(store: SqliteStore) -> None:
    outcomes = await together(store, [put_bookmark(store, str(n), "x") for n in range(1200)])

    assert outcomes == [None] * 1200
    assert await get_bookmark(store, "1199") == "x"


async def test_a_member_that_fails_halfway_leaves_nothing_while_its_neighbours_are_there(store: SqliteStore) -> None:
    def halfway(db: apsw.Connection) -> None:
        note(db, "halfway")
        raise ZeroDivisionError

    outcomes = await together(
        store, [put_bookmark(store, "first", "x"), store._writer.run(halfway), put_bookmark(store, "last", "x")]
    )

    assert [type(outcome) for outcome in outcomes] == [type(None), ZeroDivisionError, type(None)]
    assert [await get_bookmark(store, name) for name in ("first", "halfway", "last")] == ["x", None, "x"]


async def test_a_refused_member_of_a_group_writes_none_of_its_neighbours_work_and_none_of_its_own(
    store: SqliteStore,
) -> None:
    first, second, third = (submission(SLOTTED, now=store.now(), key=key) for key in ("k", "k2", None))

    outcomes = await together(store, [store.commit([change]) for change in (first, second, third)])

    assert [type(error) for [error] in outcomes] == [type(None), SlotTaken, SlotTaken]
    assert [job.id for job in (await dump(store))["jobs"]] == [first.after.id]
    assert (await store.find_by_key("k"), await store.find_by_key("k2")) == ((first.after.id, ""), None)
    assert await waiting(store) == [(first.after.id, ("only", 0))]


async def test_an_error_of_sqlite_is_the_members_own(store: SqliteStore) -> None:
    outcomes = await together(
        store, [put_bookmark(store, "first", "x"), write(store, "NONSENSE"), put_bookmark(store, "last", "x")]
    )

    assert [type(outcome) for outcome in outcomes] == [type(None), StoreUnavailable, type(None)]
    assert [await get_bookmark(store, name) for name in ("first", "last")] == ["x", "x"]


def _releases_and_fails(db: apsw.Connection) -> None:
    note(db, "rude")
    db.execute("RELEASE one")
    raise ZeroDivisionError


def _releases_and_goes_on(db: apsw.Connection) -> None:
    note(db, "rude")
    db.execute("RELEASE one")


@pytest.mark.parametrize("rude", [_releases_and_fails, _releases_and_goes_on])
async def test_where_a_members_work_cannot_be_told_from_the_others_nobodys_stays(
    store: SqliteStore, rude: Callable[[apsw.Connection], None]
) -> None:
    outcomes = await together(store, [put_bookmark(store, "first", "x"), store._writer.run(rude)])

    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable, StoreUnavailable]
    assert [await get_bookmark(store, name) for name in ("first", "rude")] == [None, None]
    await put_bookmark(store, "next", "x")


async def test_a_caller_that_went_away_harms_nobody(store: SqliteStore) -> None:
    async with stopped(store):
        gone = asyncio.create_task(put_bookmark(store, "gone", "x"))
        there = asyncio.create_task(put_bookmark(store, "there", "x"))
        await until(lambda: store._writer._inbox.qsize() == 2)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)

    await there
    assert gone.cancelled()
    assert await get_bookmark(store, "there") == "x"


# locks


async def test_readers_see_only_what_is_committed(store: SqliteStore) -> None:
    async with stopped(store, lambda db: note(db, "b")):
        meanwhile = await get_bookmark(store, "b")

    assert meanwhile is None
    assert await get_bookmark(store, "b") == "x"


async def test_the_write_lock_is_taken_before_anything_is_read(store: SqliteStore, path: Path) -> None:
    """Else two processes read the same state, and one of them decides on it after the other has moved it."""
    rival = connect(path)
    rival.set_busy_handler(None)

    async with stopped(store, lambda db: db.execute("SELECT count(*) FROM jobs").fetchall()):
        with pytest.raises(apsw.BusyError):
            rival.execute("BEGIN IMMEDIATE")

    rival.execute("BEGIN IMMEDIATE")
    rival.close()


async def test_a_write_waits_for_the_lock_of_another_process(store: SqliteStore, path: Path) -> None:
    rival = connect(path)
    rival.execute("BEGIN IMMEDIATE")
    asked = asyncio.create_task(put_bookmark(store, "b", "x"))
    await until(lambda: store._writer._inbox.qsize() == 0)

    rival.execute("COMMIT")

    await asked
    rival.close()
    assert await get_bookmark(store, "b") == "x"


async def test_a_lock_that_is_never_released_is_told_to_everybody_who_waits(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.store.sqlite.connection.PATIENCE", 0.01)
    rival = connect(path)
    rival.execute("BEGIN IMMEDIATE")

    outcomes = await asyncio.gather(*(put_bookmark(store, name, "x") for name in "abc"), return_exceptions=True)

    rival.execute("COMMIT")
    rival.close()
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 3
    await put_bookmark(store, "a", "y")
    assert [await get_bookmark(store, name) for name in "abc"] == ["y", None, None]


# a full disk


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    """What a full disk does, without filling one: writing past this size fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def _limit_pages(store: SqliteStore, more: int | None) -> None:
    """Let the database grow by so many pages and no further."""

    def limit(db: apsw.Connection) -> None:
        pages = db.pragma("page_count")
        assert isinstance(pages, int)
        db.pragma("max_page_count", pages + more if more is not None else 1_000_000)

    await store._writer.run(limit)


async def test_on_a_full_disk_everybody_in_the_transaction_hears_that_it_was_not_made(store: SqliteStore) -> None:
    before = await dump(store)
    await _limit_pages(store, 2)
    changes = [
        submission(SLOTTED, spec, now=store.now(), user=user) for spec, user in ((Spec(b"1"), "ann"), (BIG, "b"))
    ]

    outcomes = await together(store, [store.commit([change]) for change in changes])

    assert [type(error) for [error] in outcomes] == [StoreUnavailable, StoreUnavailable]
    assert await dump(store) == before
    assert await store.holder(SLOT) is None


async def test_after_a_full_disk_the_same_can_be_asked_again(store: SqliteStore) -> None:
    change = submission(SLOTTED, BIG, now=store.now(), key="k")
    await _limit_pages(store, 2)
    assert [type(error) for error in await store.commit([change])] == [StoreUnavailable]
    assert (await store.holder(SLOT), await store.find_by_key("k")) == (None, None)

    await _limit_pages(store, None)

    assert await store.commit([change]) == [None]
    assert await store.specs([change.after.id]) == {change.after.id: BIG}
    assert await store.holder(SLOT) == change.after.id


async def test_a_full_disk_does_not_stop_reading(store: SqliteStore) -> None:
    job = await submit(store)
    await _limit_pages(store, 0)
    await store.commit([submission(SLOTTED, BIG, now=store.now())])

    assert await store.get([job.id]) == [job]
    assert await waiting(store) == [(job.id, ("only", 0))]


async def test_a_commit_whose_writing_fails_is_of_unknown_outcome_to_everybody_in_it(store: SqliteStore) -> None:
    job = await submit(store)
    before = await dump(store)
    changes = [submission(now=store.now()), submission(SLOTTED, BIG, now=store.now())]

    with no_file_grows_beyond(1_000_000):
        outcomes = await together(store, [store.commit([change]) for change in changes])

    assert [type(error) for [error] in outcomes] == [UnknownOutcome, UnknownOutcome]
    assert await dump(store) == before
    assert await store.commit(changes) == [None, None]
    assert await store.existing_ids([job.id, *(change.after.id for change in changes)]) == {
        job.id,
        *(change.after.id for change in changes),
    }

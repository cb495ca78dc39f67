"""Watching PostgreSQL: late commits are not missed, hints may be lost, and who listened listens again."""

from __future__ import annotations

import asyncio

import pytest

from packhorse.store.postgres import PostgresStore, watch
from packhorse.store.postgres.watch import Watch, advance, number, snapshot_of
from tests.contract.builders import UNKNOWN, cancel, ids, submit, submit_many
from tests.store.postgres.inside import LIMIT, Raw, backends, connected, until

NEVER = 1000.0


async def second_handle(url: str) -> PostgresStore:
    return await PostgresStore.open(url)


# a transaction that began early and commits late


async def test_a_change_that_commits_late_is_told_although_later_ones_were_told_before(
    url: str, pg: PostgresStore, raw: Raw
) -> None:
    cursor, _ = await pg.changed_jobs(None)
    late = raw.transaction()
    await late.start()
    await raw.execute("INSERT INTO feed VALUES (pg_current_xact_id(), $1)", [UNKNOWN])
    job = await submit(pg)
    cursor, before = await pg.changed_jobs(cursor)

    await late.commit()

    cursor, after = await pg.changed_jobs(cursor)
    assert (before, after) == ({job.id}, {UNKNOWN})
    assert (await pg.changed_jobs(cursor))[1] == set()


async def test_who_waits_is_woken_by_a_change_that_commits_late(pg: PostgresStore, raw: Raw) -> None:
    late = raw.transaction()
    await late.start()
    await raw.execute("INSERT INTO feed VALUES (pg_current_xact_id(), $1)", [UNKNOWN])
    await submit(pg)
    mark = await pg.wait_for_change(None, 0)
    assert await pg.wait_for_change(mark, 0.05) == mark

    await late.commit()

    assert await asyncio.wait_for(pg.wait_for_change(mark, 2 * LIMIT), LIMIT) != mark


async def test_a_change_that_was_taken_back_is_not_told(pg: PostgresStore, raw: Raw) -> None:
    cursor, _ = await pg.changed_jobs(None)
    late = raw.transaction()
    await late.start()
    await raw.execute("INSERT INTO feed VALUES (pg_current_xact_id(), $1)", [UNKNOWN])

    await late.rollback()

    assert (await pg.changed_jobs(cursor))[1] == set()


async def test_a_transaction_elsewhere_on_the_server_makes_nobody_hear_twice(pg: PostgresStore, raw: Raw) -> None:
    elsewhere = raw.transaction()
    await elsewhere.start()
    await raw.execute("CREATE TABLE elsewhere (x integer)")
    first, second = await submit_many(pg, 2)
    cursor, _ = await pg.changed_jobs(None)

    await cancel(pg, first.id)
    cursor, heard = await pg.changed_jobs(cursor)
    await cancel(pg, second.id)
    _, heard_next = await pg.changed_jobs(cursor)

    assert (heard, heard_next) == ({first.id}, {second.id})
    await elsewhere.rollback()


# cursors


@pytest.mark.parametrize("since", [0, -1, 7, 10**40])
async def test_a_cursor_that_is_none_of_ours_is_told_to_look_at_everything(pg: PostgresStore, since: int) -> None:
    await submit(pg)

    cursor, found = await pg.changed_jobs(since)

    assert found is None
    assert await pg.wait_for_change(since, NEVER) != since
    assert (await pg.changed_jobs(cursor))[1] == set()


@pytest.mark.parametrize("snapshot", ["5:5:", "5:9:6,8"])
def test_a_snapshot_is_a_number_and_back(snapshot: str) -> None:
    assert snapshot_of(number(snapshot)) == snapshot


async def test_a_cursor_of_one_handle_is_good_for_another(url: str, pg: PostgresStore) -> None:
    other = await second_handle(url)
    cursor, _ = await pg.changed_jobs(None)

    job = await submit(pg)

    assert (await other.changed_jobs(cursor))[1] == {job.id}
    await other.close()


# the feed is trimmed


async def test_the_feed_is_trimmed_from_the_front(pg: PostgresStore, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FEED", 5)
    jobs = [await submit(pg) for _ in range(20)]

    await pg.trim()

    found = await raw.fetch("SELECT jobs FROM feed ORDER BY xid")
    assert [[str(id) for id in row["jobs"]] for row in found] == [[job.id] for job in jobs[15:]]


async def test_a_watcher_behind_what_was_trimmed_is_told_to_look_at_everything(
    pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FEED", 2)
    cursors = []
    for _ in range(6):
        cursors.append((await pg.changed_jobs(None))[0])
        await submit(pg)

    await pg.trim()

    found = [(await pg.changed_jobs(cursor))[1] for cursor in cursors]
    assert found[:4] == [None] * 4
    assert [None if ids is None else len(ids) for ids in found[4:]] == [2, 1]


async def test_a_watcher_far_behind_is_told_to_look_at_everything(
    pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MANY", 5)
    start, _ = await pg.changed_jobs(None)
    jobs = [await submit(pg) for _ in range(5)]
    assert (await pg.changed_jobs(start))[1] == set(ids(jobs))

    await submit(pg)

    assert (await pg.changed_jobs(start))[1] is None


async def test_a_late_commit_below_what_was_trimmed_is_not_lost(
    pg: PostgresStore, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FEED", 1)
    late = raw.transaction()
    await late.start()
    await raw.execute("INSERT INTO feed VALUES (pg_current_xact_id(), $1)", [UNKNOWN])
    cursor, _ = await pg.changed_jobs(None)
    for _ in range(3):
        await submit(pg)
    await pg.trim()

    await late.commit()

    assert (await pg.changed_jobs(cursor))[1] is None


async def test_a_feed_copied_from_another_server_is_not_taken_for_news(pg: PostgresStore, raw: Raw) -> None:
    """Its numbers are far above any that this server has given: they would be new for ever."""
    await raw.execute("INSERT INTO feed VALUES ('4000000000', $1)", [UNKNOWN])
    await raw.execute("UPDATE trimmed SET xid = '4000000000'")
    mark = await pg.wait_for_change(None, 0)
    assert await pg.wait_for_change(mark, 0.05) == mark

    await pg.trim()
    cursor, _ = await pg.changed_jobs(None)
    job = await submit(pg)

    assert (await pg.changed_jobs(cursor))[1] == {job.id}
    assert await raw.fetchval("SELECT count(*) FROM feed WHERE xid = '4000000000'") == 0


async def test_a_copy_of_another_servers_database_takes_commits_when_its_numbers_come_up(
    url: str, pg: PostgresStore, raw: Raw
) -> None:
    ahead = (
        "INSERT INTO feed SELECT (pg_current_xact_id()::text::bigint + n)::text::xid8, $1 FROM generate_series(1, 9) n"
    )
    await raw.execute(ahead, [UNKNOWN])

    restored = await second_handle(url)
    jobs = [await submit(restored) for _ in range(9)]
    await restored.close()

    assert [job.id for job in await pg.get([job.id for job in jobs]) if job] == [job.id for job in jobs]


# hints


@pytest.mark.parametrize(
    ("before", "xid", "after"),
    [
        ("10:10:", 10, "11:11:"),
        ("10:10:", 12, "10:13:10,11"),
        ("8:12:8,10", 8, "10:12:10"),
        ("8:12:8,10", 14, "8:15:8,10,12,13"),
        ("8:12:8,10", 9, None),
        ("8:12:8,10", 3, None),
        ("10:10:", 10_000, None),
    ],
)
def test_a_transaction_that_was_told_of_is_seen_and_no_other(before: str, xid: int, after: str | None) -> None:
    assert advance(before, xid) == after


async def test_who_was_told_whose_change_it_was_hears_once_and_of_all_that_was_not_told(
    url: str, pg: PostgresStore, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number comes with the notification: who waits need not look, and a late commit in between is not skipped."""
    monkeypatch.setattr(watch, "POLL", NEVER)
    other = await second_handle(url)
    late = raw.transaction()
    await late.start()
    mark = await pg.wait_for_change(None, 0)
    await raw.execute("INSERT INTO feed VALUES (pg_current_xact_id(), $1)", [UNKNOWN])
    woken = asyncio.create_task(pg.wait_for_change(mark, NEVER))
    async with connected(url) as beside:
        await listening(beside)
    await submit(other)
    told = await asyncio.wait_for(woken, LIMIT)

    again = await pg.wait_for_change(told, 0.05)
    await late.commit()

    assert (told != mark, again) == (True, told)
    assert await pg.wait_for_change(told, 0.05) != told
    await other.close()


async def test_who_waits_finds_what_nobody_told_it_of(
    url: str, pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notification is a hint that may be lost; looking is what counts."""
    monkeypatch.setattr(Watch, "tell", lambda _self, **_: None)
    monkeypatch.setattr(Watch, "may_tell", lambda _self: False)
    other = await second_handle(url)
    mark = await pg.wait_for_change(None, 0)
    woken = asyncio.create_task(pg.wait_for_change(mark, NEVER))

    await submit(other)

    assert await asyncio.wait_for(woken, LIMIT) != mark
    await other.close()


async def listening(raw: Raw, *, but: int = 0) -> int:
    """The process of the server that serves the listener; ``but`` is one that it is not."""
    found: list[int] = []

    async def is_there() -> bool:
        found[:] = [pid for pid in await backends(raw, "LISTEN %") if pid != but]
        return bool(found)

    await until(is_there)
    return found[0]


async def test_a_notification_wakes_who_waits(
    url: str, pg: PostgresStore, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL", NEVER)
    other = await second_handle(url)
    mark = await pg.wait_for_change(None, 0)
    woken = asyncio.create_task(pg.wait_for_change(mark, NEVER))
    await listening(raw)

    await submit(other)

    assert await asyncio.wait_for(woken, LIMIT) != mark
    await other.close()


async def test_a_listener_that_was_cut_off_listens_again(
    url: str, pg: PostgresStore, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL", NEVER)
    other = await second_handle(url)
    mark = await pg.wait_for_change(None, 0)
    woken = asyncio.create_task(pg.wait_for_change(mark, NEVER))
    first = await listening(raw)
    await raw.execute("SELECT pg_terminate_backend($1)", first)
    await listening(raw, but=first)
    assert not woken.done()

    await submit(other)

    assert await asyncio.wait_for(woken, LIMIT) != mark
    await other.close()


async def test_what_was_committed_while_nobody_listened_is_found_when_somebody_does(
    url: str, pg: PostgresStore, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL", NEVER)
    monkeypatch.setattr(watch, "RETRY", 0.5)
    other = await second_handle(url)
    mark = await pg.wait_for_change(None, 0)
    woken = asyncio.create_task(pg.wait_for_change(mark, NEVER))
    first = await listening(raw)
    await raw.execute("SELECT pg_terminate_backend($1)", first)

    async def is_gone() -> bool:
        return first not in await backends(raw)

    await until(is_gone)
    await submit(other)

    assert await asyncio.wait_for(woken, LIMIT) != mark
    await other.close()


async def test_many_commits_are_told_of_at_once_and_then_together(
    url: str, pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PAUSE", NEVER)
    monkeypatch.setattr(watch, "BURST", 1)
    heard: list[str] = []

    def hear(*_: object) -> None:
        heard.append("told")

    async with connected(url) as raw:
        await raw.add_listener(pg._watch._channel, hear)
        await submit(pg)
        await until(lambda: _has(heard, 1))

        for _ in range(20):
            await submit(pg)
        await raw.fetchval("SELECT 1")
        first = list(heard)
        await pg.close()

        await until(lambda: _has(heard, 2))
        await raw.fetchval("SELECT 1")
        assert (first, heard) == (["told"], ["told", "told"])
        await raw.remove_listener(pg._watch._channel, hear)


async def _has(heard: list[str], count: int) -> bool:
    return len(heard) >= count


async def test_a_handle_that_never_waits_does_not_listen(pg: PostgresStore, raw: Raw) -> None:
    await submit(pg)

    assert await backends(raw, f"LISTEN %{pg.address.schema}%") == []

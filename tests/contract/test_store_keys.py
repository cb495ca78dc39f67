"""Who may ask: keys, and the tokens of jobs."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from packhorse.errors import Conflict, JobNotFound
from packhorse.store.base import Store
from packhorse.store.collections import keys
from packhorse.store.collections.keys import Key
from tests.contract.builders import UNKNOWN, completed, marked, submit
from tests.contract.keys import key

# add_key, keys


async def test_a_key_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    whole = key(
        scopes=("admin",), name="ci · ä", user="ann", created_at=1_800_000_000.25, created_by="cli", ends_at=2e9,
        ended_by="x",
    )  # fmt: skip

    await keys.add(store, whole)

    assert await keys.get(other, [whole.id]) == [whole]


async def test_keys_come_in_the_order_asked_for_with_none_where_there_is_none(store: Store) -> None:
    await keys.add(store, key(1))
    await keys.add(store, key(2))

    found = await keys.get(store, [key(2).id, "nobody", key(1).id, key(2).id])

    assert found == [key(2), None, key(1), key(2)]
    assert await keys.get(store, []) == []


async def test_an_id_is_given_once(store: Store, other: Store) -> None:
    await keys.add(store, key(1, name="first"))

    with pytest.raises(Conflict):
        await keys.add(other, key(1, name="second"))

    assert await keys.get(store, [key(1).id]) == [key(1, name="first")]


# list_keys


async def test_keys_are_listed_newest_first_for_one_tenant_or_for_all(store: Store) -> None:
    mine, foreign, newer = key(1), key(2, tenant="acme"), key(3)
    for each in (foreign, newer, mine):
        await keys.add(store, each)

    assert await keys.list_newest(store, "default") == [newer, mine]
    assert await keys.list_newest(store, "acme") == [foreign]
    assert await keys.list_newest(store, None) == [newer, foreign, mine]
    assert await keys.list_newest(store, "nobody") == []


async def test_a_list_of_keys_goes_on_behind_an_id(store: Store) -> None:
    for n in range(1, 6):
        await keys.add(store, key(n, tenant="acme" if n == 2 else "default"))

    assert await keys.list_newest(store, None, limit=2) == [key(5), key(4)]
    assert await keys.list_newest(store, None, before=key(4).id, limit=2) == [key(3), key(2, tenant="acme")]
    assert await keys.list_newest(store, "default", before=key(3).id, limit=2) == [key(1)]


async def test_a_tenant_cannot_spell_the_keys_of_another(store: Store) -> None:
    await keys.add(store, key(1, tenant="a"))

    for name in ("a:b", "a/b", "A", "", "a "):
        assert await keys.list_newest(store, name) == []


# Tokens of jobs


async def test_the_token_of_a_job_is_found_by_its_id_and_by_its_job_and_not_listed(store: Store) -> None:
    job, neighbour = await submit(store), await submit(store)
    token = key(1, job_id=job.id, scopes=("read",))
    await keys.add(store, token)

    assert await keys.get(store, [token.id]) == [token]
    assert await keys.list_of_job(store, job.id) == [token]
    assert await keys.list_of_job(store, neighbour.id) == await keys.list_of_job(store, UNKNOWN) == []
    assert await keys.list_newest(store, None) == await keys.list_newest(store, "default") == []


async def test_the_tokens_of_a_job_come_newest_first(store: Store) -> None:
    job = await submit(store)
    for n in (2, 3, 1):
        await keys.add(store, key(n, job_id=job.id))

    assert await keys.list_of_job(store, job.id) == [key(n, job_id=job.id) for n in (3, 2, 1)]


async def test_the_tokens_of_a_job_are_listed_to_the_last(store: Store) -> None:
    job = await submit(store)
    for begin in range(0, 1001, 100):  # more at once would wait for each other longer than a store lets them
        await asyncio.gather(*(keys.add(store, key(n, job_id=job.id)) for n in range(begin, min(begin + 100, 1001))))

    assert [each.id for each in await keys.list_of_job(store, job.id)] == [key(n).id for n in reversed(range(1001))]


async def test_there_is_no_token_for_a_job_that_is_not_there(store: Store) -> None:
    for missing in (UNKNOWN, "no id at all"):
        with pytest.raises(JobNotFound):
            await keys.add(store, key(1, job_id=missing))

        assert await keys.get(store, [key(1).id]) == [None]


async def test_tokens_go_with_their_job_and_other_keys_stay(store: Store, other: Store) -> None:
    job, neighbour = await completed(store), await completed(store)
    gone, kept, plain = key(1, job_id=job.id), key(2, job_id=neighbour.id), key(3)
    for each in (gone, kept, plain):
        await keys.add(store, each)

    await store.erase((await marked(store, job)).id)

    assert await keys.get(other, [gone.id, kept.id, plain.id]) == [None, kept, plain]
    assert await keys.list_of_job(other, job.id) == []
    assert await keys.list_of_job(other, neighbour.id) == [kept]


# end_key


async def test_an_ended_key_says_when_and_by_whom(store: Store, other: Store) -> None:
    await keys.add(store, key(1))

    ended = await keys.end(store, key(1).id, 500.5, "admin")

    assert ended == replace(key(1), ends_at=500.5, ended_by="admin")
    assert await keys.get(other, [key(1).id]) == await keys.list_newest(other, None) == [ended]


async def test_an_end_is_moved_earlier_and_never_later(store: Store) -> None:
    await keys.add(store, key(1, ends_at=1_000.0))

    earlier = await keys.end(store, key(1).id, 500.0, "admin")
    later = await keys.end(store, key(1).id, 900.0, "another")
    again = await keys.end(store, key(1).id, 500.0, "another")

    assert earlier == later == again == key(1, ends_at=500.0, ended_by="admin")
    assert await keys.get(store, [key(1).id]) == [earlier]


async def test_a_key_that_nobody_knows_is_not_ended(store: Store) -> None:
    assert await keys.end(store, "nobody", 1.0, "admin") is None
    assert await keys.get(store, ["nobody"]) == [None]


async def test_the_token_of_a_job_is_ended_like_any_key(store: Store) -> None:
    job = await submit(store)
    await keys.add(store, key(1, job_id=job.id))

    ended = await keys.end(store, key(1).id, 5.0, "ann")

    assert await keys.list_of_job(store, job.id) == [ended] == [key(1, job_id=job.id, ends_at=5.0, ended_by="ann")]


async def test_of_many_ends_at_once_the_earliest_stays(store: Store, other: Store) -> None:
    await keys.add(store, key(1))

    answers = await asyncio.gather(
        *(keys.end((store, other)[n % 2], key(1).id, 100.0 + n * 7 % 40, f"by-{n * 7 % 40}") for n in range(40))
    )

    assert await keys.get(store, [key(1).id]) == [key(1, ends_at=100.0, ended_by="by-0")]
    assert all(isinstance(each, Key) and each.ends_at is not None for each in answers)


async def test_of_many_who_add_one_id_at_once_exactly_one_does(store: Store, other: Store) -> None:
    async def add(n: int) -> bool:
        try:
            await keys.add((store, other)[n % 2], key(1, name=str(n)))
        except Conflict:
            return False
        return True

    answers = await asyncio.gather(*(add(n) for n in range(20)))

    [added] = [n for n, is_added in enumerate(answers) if is_added]
    assert await keys.get(store, [key(1).id]) == [key(1, name=str(added))]


async def test_a_token_that_is_added_while_its_job_is_erased_is_not_left_behind(store: Store, other: Store) -> None:
    jobs = [await marked(store, await completed(store)) for _ in range(10)]
    tokens = [key(n, job_id=job.id) for n, job in enumerate(jobs, 1)]

    await asyncio.gather(
        *(store.erase(job.id) for job in jobs), *(keys.add(other, each) for each in tokens), return_exceptions=True
    )

    assert await store.existing_ids([job.id for job in jobs]) == set()
    assert await keys.get(store, [each.id for each in tokens]) == [None] * 10

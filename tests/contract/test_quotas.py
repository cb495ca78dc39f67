"""Quotas of a tenant: what is admitted is the limit exactly, whoever submits, and everything is counted once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from packhorse.core import lifecycle
from packhorse.core.models import Artifact, Input, Job, Result, Spec, Stored
from packhorse.errors import AlreadySubmitted, PackhorseError, StorageFull, TooManyJobs
from packhorse.store.base import Store
from tests.contract.builders import (
    ONE,
    cancel,
    claim_one,
    finish,
    held,
    made,
    refused,
    settled,
    submission,
    submit,
)

ANY = 0


def files(size: int) -> Spec:
    return Spec(b"{}", (Input("model", 0, Stored("k", "m.onnx", size, "")),))


def result(size: int) -> Result:
    return Result(b"1", (Artifact("only/out", Stored("o", "out", size, "")),))


async def used(store: Store, tenant: str = "default") -> tuple[int, int]:
    found = await store.count_by_status(0, tenant=tenant)
    return found.active, found.bytes


async def retry(store: Store, job: Job, **options: Any) -> Job:
    return await settled(store, job.id, lambda now: lifecycle.retry(now, stage="*", now=store.now(), **options))


async def test_of_many_submits_at_once_the_limit_is_admitted_exactly(store: Store, other: Store) -> None:
    changes = [submission(now=store.now(), quotas=(7, ANY), user=f"u{n}") for n in range(24)]

    outcomes = await asyncio.gather(*((store, other)[n % 2].commit([each]) for n, each in enumerate(changes)))

    errors = [error for [error] in outcomes if error is not None]
    assert (len(errors), {type(each) for each in errors}) == (17, {TooManyJobs})
    assert len(await store.existing_ids([each.after.id for each in changes])) == 7
    assert await used(other) == (7, 0)


async def test_of_one_group_the_first_are_admitted(store: Store) -> None:
    changes = [submission(now=store.now(), quotas=(3, ANY)) for _ in range(5)]

    outcomes = await store.commit(changes)

    assert [type(each) for each in outcomes] == [type(None)] * 3 + [TooManyJobs] * 2
    assert await used(store) == (3, 0)


async def test_a_refusal_says_the_numbers_and_leaves_nothing(store: Store) -> None:
    await submit(store, quotas=(1, ANY))
    change = submission(now=store.now(), quotas=(1, ANY), key="k", fingerprint="f")

    error = await refused(store, change)

    assert isinstance(error, TooManyJobs)
    assert (error.facts["used"], error.facts["limit"], error.status) == (1, 1, 429)
    assert (await store.existing_ids([change.after.id]), await store.find_by_key("k")) == (set(), None)


@pytest.mark.parametrize("end", ["finish", "cancel"])
async def test_a_job_counts_until_it_has_ended_and_again_when_it_is_retried(store: Store, end: str) -> None:
    job = await submit(store, quotas=(1, ANY))
    if end == "finish":
        await finish(store, await claim_one(store))
    else:
        await cancel(store, job.id)
    ended = await used(store)

    await retry(store, job)

    assert (ended, await used(store)) == ((0, 0), (1, 0))
    assert isinstance(await refused(store, submission(now=store.now(), quotas=(1, ANY))), TooManyJobs)


async def test_uploads_and_results_count_until_the_job_is_purged(store: Store) -> None:
    job = await submit(store, ONE, files(40), quotas=(ANY, 100))
    await finish(store, await claim_one(store), result(70))
    full = await refused(store, submission(spec=files(1), now=store.now(), quotas=(ANY, 100)))
    over = await used(store)

    await settled(store, job.id, lambda now: lifecycle.delete(now, now=store.now()))

    assert isinstance(full, StorageFull)
    assert (full.facts["used"], over, await used(store)) == (110, (0, 110), (0, 0))
    await submit(store, ONE, files(100), quotas=(ANY, 100))


async def test_results_of_a_run_before_count_until_they_are_deleted(store: Store) -> None:
    job = await submit(store, ONE, files(10), quotas=(ANY, 100))
    await finish(store, await claim_one(store), result(50))
    await retry(store, job)
    await finish(store, await claim_one(store), result(20))
    before = await used(store)

    await settled(store, job.id, lambda now: lifecycle.tidy(now, now=store.now(), stored=30))

    assert (before, await used(store)) == ((0, 80), (0, 30))
    assert (await held(store, job.id)).counted == 30


async def test_tenants_do_not_count_for_each_other(store: Store) -> None:
    await submit(store, quotas=(1, ANY), tenant="acme")
    await submit(store, quotas=(1, ANY))

    assert (await used(store, "acme"), await used(store), await used(store, "none")) == ((1, 0), (1, 0), (0, 0))


async def test_a_request_that_is_repeated_is_not_refused_for_want_of_room(store: Store) -> None:
    await submit(store, quotas=(1, ANY), key="k", fingerprint="f")

    assert isinstance(
        await refused(store, submission(now=store.now(), quotas=(1, ANY), key="k", fingerprint="f")), AlreadySubmitted
    )


async def test_jobs_from_before_there_was_a_quota_are_not_counted(store: Store) -> None:
    job = await submit(store, ONE, files(50))
    await submit(store, quotas=(1, ANY))

    await cancel(store, job.id)

    assert await used(store) == (1, 0)


async def test_ends_and_submits_in_one_group_are_counted_together(store: Store) -> None:
    await submit(store, quotas=(1, ANY))
    claimed = await claim_one(store)
    end = lifecycle.finish(claimed.job, claimed.task, token=claimed.token, result=result(5), now=store.now())
    new = submission(now=store.now(), quotas=(1, ANY))

    outcomes: list[PackhorseError | None] = await store.commit([end, new])

    assert outcomes == [None, None]
    assert await used(store) == (1, 5)


async def test_without_a_quota_nothing_is_asked_or_written_beside_the_job(store: Store) -> None:
    change = submission(now=store.now())

    await made(store, change)

    assert (change.guards, change.after.counted, len(change.effects)) == ((), None, 2)
    assert await used(store) == (0, 0)

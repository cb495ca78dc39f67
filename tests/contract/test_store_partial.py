"""Elements that are left out are kept as such, and can be run again."""

from __future__ import annotations

from functools import partial

import pytest

from packhorse.core import lifecycle
from packhorse.core.models import Job, Result
from packhorse.core.plan import Status, Tolerance
from packhorse.store.base import Store
from tests.contract.builders import (
    HOPELESS,
    claim,
    each,
    fail,
    finish,
    gather,
    held,
    needs,
    page,
    plan,
    settled,
    split,
    stage,
)

pytestmark = pytest.mark.cluster

SCAN = plan(
    stage("split"),
    stage("page", each("split"), tolerate=Tolerance(1)),
    stage("left", each("page")),
    stage("book", gather("page"), gather("left")),
    stage("only", needs("book")),
)


async def run_all(store: Store) -> dict[str, list[Result]]:
    """What each stage was given, until nothing is due."""
    given: dict[str, list[Result]] = {}
    while claims := await claim(store):
        for each_claim in claims:
            needed = [need.stage for need in each_claim.job.plan.stage(each_claim.task.stage).needs]
            given[each_claim.task.stage] = [result for name in needed for result in each_claim.upstream[name]]
            await finish(store, each_claim, Result(f'"{each_claim.task.stage} {each_claim.task.element}"'.encode()))
    return given


async def scanned(store: Store) -> tuple[Job, dict[str, list[Result]]]:
    """A job whose second page of three was left out, and what its later stages were given."""
    await split(store, 3, SCAN)
    first, second, third = await claim(store)
    await fail(store, second)
    await finish(store, first)
    job = await finish(store, third)
    given = await run_all(store)
    return await held(store, job.id), given


async def test_what_gathers_is_given_an_error_in_the_place_of_the_element(store: Store) -> None:
    job, given = await scanned(store)

    assert job.status is Status.COMPLETED
    assert [result.error and result.error.code for result in given["book"]] == [None, HOPELESS.code, None] + [None] * 3
    assert [result.is_skipped for result in given["book"]] == [False] * 4 + [True, False]
    assert job.partial is not None
    assert (job.partial.failed, job.partial.of) == (1, 3)


async def test_elements_run_again_replace_what_was_left_out(store: Store, other: Store) -> None:
    job, _ = await scanned(store)

    await settled(store, job.id, partial(lifecycle.retry, failed_elements=True, now=store.now()))
    [again] = await claim(other)
    assert again.task == page(1)
    await finish(other, again)
    given = await run_all(other)

    assert [(result.error, result.is_skipped) for result in given["book"]] == [(None, False)] * 6
    assert (await held(store, job.id)).partial is None
    results = (await store.results([job.id]))[job.id]
    assert {at.stage: result.value for at, result in results.items() if at.stage == "only"} == {"only": b'"only 0"'}
    assert not any(result.error or result.is_skipped for result in results.values())


async def test_stage_that_runs_again_leaves_out_the_same_elements(store: Store) -> None:
    job, _ = await scanned(store)

    await settled(store, job.id, partial(lifecycle.retry, stage="left", now=store.now()))
    given = await run_all(store)

    assert [result.is_skipped for result in given["book"]] == [False] * 4 + [True, False]
    assert (await held(store, job.id)).status is Status.COMPLETED

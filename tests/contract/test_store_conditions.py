"""Stages that are skipped on purpose, kept and read back by every store."""

from __future__ import annotations

from functools import partial

import pytest

from packhorse.core import lifecycle
from packhorse.core.conditions import contains
from packhorse.core.models import Spec
from packhorse.core.plan import Status, TaskStatus
from packhorse.store.base import Store
from tests.contract.builders import claim, claim_one, finish, held, needs, plan, settled, stage, submit

pytestmark = pytest.mark.cluster

ASIDE = plan(
    stage("onnx"),
    stage("bie", needs("onnx"), when=contains("tags", "bie")),
    stage("nef", needs("bie"), optional=("bie",)),
    stage("only", needs("bie")),
)


async def test_stage_whose_condition_is_not_met_is_kept_as_skipped(store: Store, other: Store) -> None:
    job = await submit(store, ASIDE, Spec(b'{"tags":[]}'))

    seen = await held(other, job.id)
    first = await claim_one(other)
    assert seen == job
    assert seen.stage_status("bie") is TaskStatus.SKIPPED
    assert first.task.stage == "onnx"
    await finish(other, first)
    [last] = await claim(store)
    assert (last.task.stage, last.upstream) == ("nef", {"bie": ()})
    assert (await finish(store, last)).status is Status.COMPLETED


async def test_stage_that_returns_skip_runs_again_after_a_retry(store: Store, other: Store) -> None:
    job = await submit(store, ASIDE, Spec(b'{"tags":["bie"]}'))
    await finish(store, await claim_one(store))
    second = await claim_one(store)
    skip = partial(lifecycle.skip, at=second.task, token=second.token, reason="none", now=store.now())
    await settled(store, job.id, skip)

    [last] = await claim(other)
    assert (last.task.stage, last.upstream) == ("nef", {"bie": ()})
    await finish(other, last)
    assert (await held(other, job.id)).stage("only").reason == "stage bie was skipped"
    await settled(other, job.id, partial(lifecycle.retry, stage="bie", now=other.now()))
    await finish(other, await claim_one(other))
    both = await claim(store)
    assert {each.task.stage: len(each.upstream["bie"]) for each in both} == {"nef": 1, "only": 1}


async def test_job_completes_although_one_of_its_last_stages_does_not_run(store: Store) -> None:
    apart = plan(stage("left"), stage("right", when=contains("tags", "right")))
    job = await submit(store, apart, Spec(b'{"tags":[]}'))

    ended = await finish(store, await claim_one(store))

    assert (ended.id, ended.status) == (job.id, Status.COMPLETED)
    assert (await held(store, job.id)).stage_status("right") is TaskStatus.SKIPPED

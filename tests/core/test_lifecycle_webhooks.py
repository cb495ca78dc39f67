"""Who is told of the end of a run: decided by every verb that brings it about, and by no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from packhorse.core import lifecycle
from packhorse.core.changes import Change, PutRecord
from packhorse.core.webhooks import DELIVERY, job_delivery, put_delivery
from tests.core.plans import (
    BROKEN,
    HOPELESS,
    NOW,
    ONLY,
    RESULT,
    SPEC,
    cancelled,
    failed,
    plan,
    retried,
    running,
    stage,
    started,
    submitted,
    sure,
)

LATER = NOW + 100.0
TOLD = ("e1", "e2")
ONCE = plan(stage("only", retries=0), deadline=50.0)

ENDS: dict[str, Callable[..., Change | None]] = {
    "finish": lambda **to: lifecycle.finish(running(ONCE, **to), ONLY, token="t", result=RESULT, now=LATER),
    "fail": lambda **to: lifecycle.fail(running(**to), ONLY, token="t", error=HOPELESS, luck=0.0, now=LATER),
    "stall": lambda **to: lifecycle.fail(
        running(ONCE, **to), ONLY, token="t", error=lifecycle.STALLED, luck=0.0, now=LATER
    ),
    "time out": lambda **to: lifecycle.fail(
        running(ONCE, **to), ONLY, token="t", error=lifecycle.TIMED_OUT, luck=0.0, now=LATER
    ),
    "lose": lambda **to: lifecycle.lose(running(ONCE, **to), ONLY, token="t", now=LATER),
    "cancel": lambda **to: lifecycle.cancel(submitted(**to), now=LATER),
    "stop": lambda **to: lifecycle.hand_back(cancelled(running(**to)), ONLY, token="t", now=LATER),
    "expire": lambda **to: lifecycle.expire(submitted(ONCE, **to), now=LATER),
}

GOES_ON: dict[str, Callable[..., Change | None]] = {
    "submit": lambda **to: lifecycle.submit(ONCE, SPEC, job_id="j", user="ann", now=LATER, **to),
    "start": lambda **to: lifecycle.start(submitted(**to), ONLY, token="t", worker="w", lease=15.0, now=LATER),
    "fail": lambda **to: lifecycle.fail(running(**to), ONLY, token="t", error=BROKEN, luck=0.0, now=LATER),
    "hand back": lambda **to: lifecycle.hand_back(running(**to), ONLY, token="t", now=LATER),
    "cancel": lambda **to: lifecycle.cancel(running(**to), now=LATER),
    "retry": lambda **to: lifecycle.retry(cancelled(submitted(**to)), now=LATER),
}


def notices(change: Change | None) -> list[PutRecord]:
    effects = [effect for effect in sure(change).effects if isinstance(effect, PutRecord)]
    return [effect for effect in effects if effect.put.kind == DELIVERY]


def expected(run: int) -> list[PutRecord]:
    return [PutRecord(put_delivery(job_delivery("j", run, endpoint, LATER))) for endpoint in TOLD]


@pytest.mark.parametrize("verb", ENDS)
def test_every_verb_that_ends_a_run_tells_everybody_once(verb: str) -> None:
    change = ENDS[verb](webhooks=TOLD)

    assert notices(change) == expected(run=1)
    assert sure(change).after.status.is_terminal


@pytest.mark.parametrize("verb", ENDS)
def test_a_job_without_webhooks_tells_nobody(verb: str) -> None:
    assert notices(ENDS[verb]()) == []


@pytest.mark.parametrize("verb", GOES_ON)
def test_nobody_is_told_of_what_is_no_end(verb: str) -> None:
    change = GOES_ON[verb](webhooks=TOLD)

    assert notices(change) == []
    assert sure(change).after.webhooks == TOLD


def test_the_end_of_another_run_is_told_under_its_number() -> None:
    again = started(retried(failed(running(ONCE, webhooks=TOLD), ONLY)), ONLY)

    change = lifecycle.finish(again, ONLY, token="t", result=RESULT, now=LATER)

    assert notices(change) == expected(run=2)

"""Failures, decided without a store: what makes two of them the same, and what a run that fails leaves."""

from __future__ import annotations

import errno

import pytest
from msgspec.structs import replace

from packhorse.core import error_codes, failures, lifecycle
from packhorse.core.changes import RecordFailure, SettleFailures
from packhorse.core.failures import fingerprint, normalize
from packhorse.core.models import Failure, FailureStatus, Firing
from packhorse.core.plan import MAX_REVIVE_DELAY, Defaults, Revive, Status, fill_plan, keep_periods
from tests.contract.builders import plan, stage
from tests.core.plans import NOW, ONLY, RESULT, SPEC, failed, retried, running, started, submitted, sure

HOPELESS = Failure("BROKEN", "It broke.", permanent=True)
LATER = NOW + 60.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("took 3 s", "took 12.5 s"),
        ("job 0199a7e2-0000-7000-8000-000000000001", "job 0199a7e2-ffff-7000-8000-00000000000a"),
        ("no file '/tmp/a b.onnx'", "no file '/srv/x.onnx'"),
        ('unknown voice "ann"', 'unknown voice "bob"'),
        ("cannot open /tmp/abc/1.png", "cannot open /var/lib/packhorse/7/x.jpeg"),
        ("at 0x7f2b11", "at 0xdeadbeef"),
        ("commit 9dddc99f1b2c", "commit 7429c07aaa01"),
        ("since 2026-01-31T12:00:00Z", "since 2027-02-01 13:30:01.123+02:00"),
        ("GET https://a.example/x?y=1 failed", "GET http://b.example:8080/z failed"),
        ("no route for ann@x.org", "no route for bob.b+c@y.example.com"),
        ("a\n  b", "a b"),
    ],
)
def test_what_differs_from_time_to_time_makes_no_difference(one: str, other: str) -> None:
    assert normalize(one) == normalize(other)
    assert fingerprint("p", "s", "C", one) == fingerprint("p", "s", "C", other)


def test_pipeline_stage_code_and_words_tell_failures_apart() -> None:
    found = {
        fingerprint("p", "s", "C", "no answer"),
        fingerprint("q", "s", "C", "no answer"),
        fingerprint("p", "t", "C", "no answer"),
        fingerprint("p", None, "C", "no answer"),
        fingerprint("p", "s", "D", "no answer"),
        fingerprint("p", "s", "C", "no space left"),
    }

    assert len(found) == 6


def test_a_message_of_any_length_and_content_has_a_fingerprint() -> None:
    for message in ("", "'" * 100_000, "/a" * 100_000, "\ud800\0", "1" * 100_000):
        assert len(fingerprint("p", "s", "C", message)) == 24
        assert len(normalize(message)) <= failures.MAX_MESSAGE


def test_a_run_that_fails_is_recorded_with_its_end() -> None:
    job = replace(running(), trace_id="t1", firing=Firing("nightly", 1.0))

    change = lifecycle.fail(job, ONLY, token="t", error=HOPELESS, luck=0.0, now=LATER)

    [record] = [effect.failure for effect in change.effects if isinstance(effect, RecordFailure)]
    assert (record.job_id, record.run, record.stage, record.code, record.attempts) == (job.id, 1, "only", "BROKEN", 1)
    assert (record.at, record.trace_id, record.schedule, record.status) == (LATER, "t1", "nightly", FailureStatus.OPEN)
    assert record.id == failures.failure_id(LATER, job.id, 1)


def test_an_attempt_that_is_retried_is_no_failure_and_a_completed_first_run_settles_none() -> None:
    again = lifecycle.fail(running(), ONLY, token="t", error=Failure("BROKEN", "x"), luck=0.0, now=LATER)

    done = lifecycle.finish(running(), ONLY, token="t", result=RESULT, now=LATER)

    effects = (*again.effects, *done.effects)
    assert not [effect for effect in effects if isinstance(effect, RecordFailure | SettleFailures)]


def test_the_next_run_that_completes_resolves_what_was_retried() -> None:
    job = retried(failed(running(), ONLY, error=HOPELESS), now=LATER)

    change = lifecycle.finish(started(job, ONLY), ONLY, token="t", result=RESULT, now=LATER)

    assert SettleFailures(FailureStatus.RETRIED, FailureStatus.RESOLVED) in change.effects


def test_ids_sort_by_time_and_a_moment_lies_between() -> None:
    ids = [failures.failure_id(at, "j", 1) for at in (1.0, 1.5, 2.0, 1_800_000_000.0)]

    assert ids == sorted(ids)
    assert ids[0] < failures.first_id(1.5) <= ids[1]


# Pending too long


def test_a_run_that_nobody_starts_in_time_is_orphaned() -> None:
    slow = plan(stage("only"), pending=10.0, deadline=100.0)
    job = submitted(slow)

    assert job.deadline_at == NOW + 10.0
    assert lifecycle.expire(job, now=NOW + 9.9) is None
    ended = sure(lifecycle.expire(job, now=NOW + 10.0)).after
    assert (ended.status, ended.error) == (Status.FAILED, lifecycle.ORPHANED)


def test_one_that_was_started_has_until_its_deadline() -> None:
    job = running(plan(stage("only"), pending=10.0, deadline=100.0))

    assert job.deadline_at == NOW + 100.0


def test_a_deadline_counts_from_the_submit_and_not_from_the_start() -> None:
    job = started(submitted(plan(stage("only"), pending=50.0, deadline=100.0)), ONLY, now=NOW + 30.0)

    assert job.deadline_at == NOW + 100.0
    assert lifecycle.expire(job, now=NOW + 99.0) is None
    assert sure(lifecycle.expire(job, now=NOW + 100.0)).after.stopping == "expire"


def test_a_run_timeout_counts_from_the_first_start_however_long_the_job_waited() -> None:
    shape = plan(stage("only"), pending=500.0, deadline=1000.0, run_timeout=60.0)
    waiting = submitted(shape)
    job = started(waiting, ONLY, now=NOW + 400.0)
    again = started(failed(job, ONLY, now=NOW + 420.0), ONLY, now=NOW + 450.0)

    assert waiting.deadline_at == NOW + 500.0
    assert sure(lifecycle.expire(waiting, now=NOW + 500.0)).after.error == lifecycle.ORPHANED
    assert (job.deadline_at, again.deadline_at) == (NOW + 460.0, NOW + 460.0)
    assert lifecycle.expire(again, now=NOW + 459.9) is None
    ended = sure(lifecycle.expire(again, now=NOW + 460.0)).after
    assert (ended.stopping, ended.error) == ("expire", lifecycle.RUN_TIMED_OUT)


def test_a_deadline_before_the_run_timeout_still_ends_the_run() -> None:
    job = started(submitted(plan(stage("only"), deadline=100.0, run_timeout=60.0)), ONLY, now=NOW + 50.0)

    assert job.deadline_at == NOW + 100.0
    assert sure(lifecycle.expire(job, now=NOW + 100.0)).after.error == lifecycle.DEADLINE


def test_each_run_has_a_timeout_of_its_own() -> None:
    shape = plan(stage("only"), run_timeout=60.0)
    job = started(retried(failed(running(shape), ONLY, error=HOPELESS), now=LATER), ONLY, now=LATER + 5.0)

    assert job.deadline_at == LATER + 65.0


def test_a_delayed_job_is_waited_for_from_when_it_may_start() -> None:
    change = lifecycle.submit(plan(stage("only"), pending=10.0), SPEC, job_id="j", user="ann", delay=1000.0, now=NOW)

    assert change.after.deadline_at == NOW + 1010.0


def test_a_retried_run_is_waited_for_anew() -> None:
    job = retried(failed(running(plan(stage("only"), pending=10.0)), ONLY, error=HOPELESS), now=LATER)

    assert job.deadline_at == LATER + 10.0
    assert sure(lifecycle.expire(job, now=LATER + 10.0)).after.error == lifecycle.ORPHANED


def test_a_deadline_that_comes_first_is_called_that() -> None:
    job = submitted(plan(stage("only"), pending=100.0, deadline=10.0))

    assert sure(lifecycle.expire(job, now=NOW + 10.0)).after.error == lifecycle.DEADLINE


# Policies and retention


def test_a_policy_waits_longer_each_time_and_never_for_ever() -> None:
    policy = Revive(("A",), backoff=300.0)

    assert [policy.delay(n) for n in range(3)] == [300.0, 600.0, 1200.0]
    assert policy.delay(10_000) == MAX_REVIVE_DELAY


def test_a_deployment_fills_in_what_a_pipeline_leaves_open() -> None:
    policy = Revive(("HTTP_500",))
    given = Defaults(keep=1.0, kept={Status.FAILED: 2.0}, pending=3.0, revive=policy)
    silent = plan(stage("only"), unset=("keep", "pending", "revive", "deadline"))
    partial = plan(stage("only"), keep={Status.CANCELLED: 9.0})

    assert fill_plan(silent, given).keep == {Status.COMPLETED: 1.0, Status.FAILED: 2.0, Status.CANCELLED: 1.0}
    assert (fill_plan(silent, given).pending, fill_plan(silent, given).revive) == (3.0, policy)
    assert fill_plan(partial, given).keep == {Status.COMPLETED: 1.0, Status.FAILED: 2.0, Status.CANCELLED: 9.0}
    assert fill_plan(partial, given).revive == Revive()


def test_each_end_has_a_time_of_its_own() -> None:
    kept = plan(stage("only"), keep={Status.COMPLETED: 30.0, Status.FAILED: 20.0, Status.CANCELLED: 7.0})

    assert keep_periods(kept) == {Status.COMPLETED: 30.0, Status.FAILED: 20.0, Status.CANCELLED: 7.0}
    assert failed(running(kept), ONLY, error=HOPELESS, now=LATER).purge_at == LATER + 20.0


# Codes


class _Answer(Exception):
    def __init__(self, **facts: object) -> None:
        super().__init__("it failed")
        self.__dict__.update(facts)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), "EXCEPTION"),
        (TimeoutError(), "CALL_TIMEOUT"),
        (OSError(errno.ENOMEM, "no"), "OUT_OF_MEMORY"),
        (MemoryError(), "OUT_OF_MEMORY"),
        (_Answer(code="NO_VOICE"), "NO_VOICE"),
        (_Answer(code="no voice"), "EXCEPTION"),
        (_Answer(code=7), "EXCEPTION"),
        (_Answer(response=_Answer(status_code=500)), "HTTP_500"),
        (_Answer(status=404), "HTTP_404"),
        (_Answer(status=200), "EXCEPTION"),
        (_Answer(status=True), "EXCEPTION"),
        (SystemExit("FAILED"), "EXCEPTION"),
    ],
)
def test_an_exception_has_a_code_that_stays_the_same(error: BaseException, code: str) -> None:
    assert error_codes.code_of(error) == code


def test_an_exception_that_cannot_be_looked_at_has_one_too() -> None:
    class Hostile(Exception):
        @property
        def code(self) -> str:
            raise RuntimeError

        @property
        def response(self) -> str:
            raise RuntimeError

    assert error_codes.code_of(Hostile()) == "EXCEPTION"

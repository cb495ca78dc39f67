"""What is decided about schedules: which ticks are claimed, what is missed, what a version is, and who may overlap."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.core import json, lifecycle, schedules
from packhorse.core.changes import NoteRecord, RecordIs
from packhorse.core.models import Firing
from packhorse.core.schedules import (
    LATE,
    MAX_WAITING,
    Move,
    NotedRun,
    Overlap,
    Run,
    Schedule,
    check_terms,
    diff_terms,
    run_index,
    run_ref,
)
from packhorse.errors import InvalidInput, NotAllowed
from tests.contract.builders import ONE, SPEC, sure
from tests.contract.schedules import terms

NOON = 1_800_014_400.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


def made(now: float = NOON - 0.5, **options: Any) -> Schedule:
    return schedules.create("default", "nightly", terms(**options), author="ann", reason="new", now=now).after


def claim(schedule: Schedule, now: float) -> Move:
    move = schedules.claim(schedule, now)
    assert move is not None
    return move


def run(tick: float, status: Any = "due") -> Run:
    return Run("default", "nightly", tick, 1, status)


# Ticks


def test_nothing_is_claimed_before_its_time_or_while_it_is_paused() -> None:
    assert schedules.claim(made(), NOON - 0.001) is None
    assert schedules.claim(made(active=False), NOON + HOUR) is None


def test_a_tick_is_claimed_with_the_version_of_that_moment() -> None:
    move = claim(made(), NOON)

    assert move.after.next_at == NOON + 1.0
    assert (move.after.last_at, move.after.version) == (NOON, 1)
    assert move.runs == (Run("default", "nightly", NOON, 1, due_at=NOON, n=1),)


def test_of_many_missed_ticks_one_is_run_and_the_rest_is_one_record() -> None:
    move = claim(made(), NOON + 10 * MINUTE)

    late, missed = move.runs
    assert (late.tick, late.status) == (NOON + 10 * MINUTE, "due")
    assert (missed.tick, missed.until, missed.count) == (NOON, NOON + 10 * MINUTE - 1, 600)
    assert (missed.status, missed.due_at) == ("missed", None)
    assert "600 ticks" in missed.message
    assert move.after.next_at == NOON + 10 * MINUTE + 1


def test_what_was_missed_for_years_is_counted_only_so_far() -> None:
    _, missed = claim(made(), NOON + 2 * 365 * DAY).runs

    assert missed.count == schedules.MAX_COUNTED
    assert "more than" in missed.message


@pytest.mark.parametrize(
    ("options", "late", "status"),
    [
        ({}, LATE, "due"),
        ({}, LATE + 1, "missed"),
        ({"misfire": "catch_up", "window": 2 * HOUR}, 2 * HOUR, "due"),
        ({"misfire": "catch_up", "window": 2 * HOUR}, 2 * HOUR + 1, "missed"),
        ({"misfire": "catch_up", "window": 0.0}, LATE, "due"),
    ],
)
def test_a_late_tick_is_run_if_it_is_young_enough(options: dict[str, Any], late: float, status: str) -> None:
    daily = made(cron="0 12 * * *", **options)

    [found] = claim(daily, NOON + late).runs

    assert (found.tick, found.status) == (NOON, status)


def test_catching_up_runs_one_tick_of_several() -> None:
    hourly = made(cron="0 * * * *", misfire="catch_up", window=DAY)

    late, missed = claim(hourly, NOON + 5 * HOUR + 10 * MINUTE).runs

    assert late.tick == NOON + 5 * HOUR
    assert (missed.tick, missed.until, missed.count) == (NOON, NOON + 4 * HOUR, 5)


def test_a_tick_that_has_a_run_already_is_passed_over() -> None:
    schedule = made()

    move = schedules.pass_over(schedule)

    assert move.runs == ()
    assert (move.after.next_at, move.after.stamp) == (NOON + 1, schedule.stamp + 1)


def test_a_clock_that_was_set_back_realigns_the_next_tick() -> None:
    ahead = claim(made(), NOON + 10 * DAY).after

    move = schedules.realign(ahead, NOON)

    assert move is not None
    assert move.after.next_at == NOON + 1
    assert schedules.realign(move.after, NOON) is None
    assert schedules.realign(made(active=False), NOON) is None
    assert schedules.realign(made(), NOON + 5) is None, "what is due is claimed, not realigned"


def test_a_run_by_hand_has_a_moment_of_its_own_and_leaves_the_ticks_alone() -> None:
    move = schedules.run_now(made(active=False), NOON + 0.1234567)

    [by_hand] = move.runs
    assert (by_hand.tick, by_hand.is_manual, by_hand.due_at) == (NOON + 0.123457, True, NOON + 0.1234567)
    assert move.after.next_at is None
    assert move.revision is None


# Versions


def test_an_edit_counts_from_the_next_tick_on_and_a_tick_that_is_due_has_the_old_version() -> None:
    schedule = made()

    early = schedules.edit(schedule, terms(user="ben"), author="ben", reason="why", now=NOON - 0.2)
    late = schedules.edit(schedule, terms(user="ben"), author="ben", reason="why", now=NOON + 0.2)

    assert (early.runs, early.after.next_at, early.after.version) == ((), NOON, 2)
    assert [(each.tick, each.version) for each in late.runs] == [(NOON, 1)]
    assert (late.after.next_at, late.after.version, late.after.stamp) == (NOON + 1, 2, schedule.stamp + 1)
    assert late.before == schedule


def test_an_edit_is_never_dated_before_a_tick_that_was_claimed() -> None:
    """The clocks of two processes differ by a moment: the version says from when on it counts all the same."""
    claimed = claim(made(), NOON).after

    move = schedules.edit(claimed, terms(user="ben"), author="ben", reason="", now=NOON - 0.01)

    assert move.revision is not None
    assert move.revision.at == move.after.updated_at == NOON
    assert move.after.next_at == NOON + 1


def test_an_ended_schedule_has_no_ticks_and_takes_no_edits() -> None:
    ended = schedules.end(made(), author="ann", reason="enough", now=NOON - 0.1).after

    assert (ended.next_at, ended.ended_at) == (None, NOON - 0.1)
    with pytest.raises(NotAllowed):
        schedules.edit(ended, terms(), author="ben", reason="", now=NOON)
    with pytest.raises(NotAllowed):
        schedules.run_now(ended, NOON)

    revived = schedules.revive(ended, terms(), author="ben", reason="", now=NOON + 0.5)
    assert (revived.after.version, revived.after.ended_at, revived.after.next_at) == (3, None, NOON + 1)
    assert revived.before == ended


def test_code_keeps_up_what_nobody_has_changed() -> None:
    first = schedules.create("default", "n", terms(), author="code", now=NOON, declared=terms()).after

    same = schedules.declare(first, terms(), now=NOON)
    newer = schedules.declare(first, terms(user="ben"), now=NOON)

    assert same is None
    assert newer is not None
    assert (newer.after.terms, newer.after.version, newer.after.is_adrift) == (terms(user="ben"), 2, False)
    assert newer.revision is not None
    assert (newer.revision.author, newer.revision.action) == ("code", "declared")


def test_what_people_have_changed_is_left_to_them_and_the_drift_is_seen() -> None:
    first = schedules.create("default", "n", terms(), author="code", now=NOON, declared=terms()).after
    edited = schedules.edit(first, terms(user="cleo"), author="ann", reason="", now=NOON).after
    ended = schedules.end(first, author="ann", reason="", now=NOON).after

    kept = schedules.declare(edited, terms(user="ben"), now=NOON)
    gone = schedules.declare(ended, terms(user="ben"), now=NOON)

    assert kept is not None
    assert (kept.after.terms, kept.after.version, kept.revision) == (edited.terms, 2, None)
    assert kept.after.is_adrift
    assert gone is not None
    assert (gone.after.ended_at, gone.after.version) == (NOON, 2)


def test_a_difference_names_the_fields_that_differ() -> None:
    found = diff_terms(terms(), terms(user="ben", labels={"a": "b"}))

    assert found == [("user", "ann", "ben"), ("labels", {}, {"a": "b"})]


@pytest.mark.parametrize(
    ("options", "field"),
    [({"user": ""}, "user_id"), ({"user": "a\0"}, "user_id"), ({"window": -1.0}, "window"),
     ({"overlap": "x"}, "overlap"), ({"misfire": "x"}, "misfire"),
     ({"labels": {str(n): "" for n in range(33)}}, "labels"),
     ({"labels": {"": "x"}}, "labels"), ({"labels": {"x": 1}}, "labels"), ({"cron": "x"}, "cron")],
)  # fmt: skip
def test_terms_that_make_no_sense_are_refused_with_their_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_terms(terms(**options), NOON)

    assert refused.value.errors[0]["field"] == field


# Overlaps


@pytest.mark.parametrize(
    ("overlap", "others", "verdict"),
    [
        ("skip", [], "fire"),
        ("skip", [run(1.0, "fired")], "skip"),
        ("skip", [run(1.0)], "skip"),
        ("skip", [run(9.0)], "fire"),
        ("queue", [], "fire"),
        ("queue", [run(1.0, "fired")], "wait"),
        ("queue", [run(1.0)], "wait"),
        ("queue", [run(9.0)], "fire"),
        ("queue", [run(float(n)) for n in range(-MAX_WAITING, 0)], "skip"),
        ("cancel", [], "fire"),
        ("cancel", [run(1.0, "fired")], "cancel"),
        ("cancel", [run(1.0)], "fire"),
        ("cancel", [run(9.0)], "skip"),
        ("cancel", [run(1.0, "fired"), run(9.0)], "skip"),
    ],
)
def test_who_may_go_while_another_is_not_over(overlap: Overlap, others: list[Run], verdict: str) -> None:
    found, why = schedules.decide_overlap(run(5.0), others, overlap)

    assert found == verdict
    assert bool(why) == (verdict != "fire")


# The job of a run


def note(said: NotedRun, *, is_open: bool = True) -> NoteRecord:
    index = run_index("default", "nightly", NOON, is_open=is_open)
    return NoteRecord(run_ref("default", "nightly", NOON), json.encode(said), index)


def test_a_job_for_a_tick_holds_only_if_nobody_else_decided_and_tells_the_run() -> None:
    change = lifecycle.submit(ONE, SPEC, job_id="j", user="ann", now=NOON, firing=Firing("nightly", NOON), stamp=7)

    assert RecordIs(run_ref("default", "nightly", NOON), 7) in change.guards
    assert note(NotedRun("fired", "j", "")) in change.effects
    assert change.after.firing == Firing("nightly", NOON)


def test_a_job_that_nobody_scheduled_tells_no_run() -> None:
    job = lifecycle.submit(ONE, SPEC, job_id="j", user="ann", now=NOON).after

    ended = sure(lifecycle.cancel(job, now=NOON + 1))

    assert not [effect for effect in ended.effects if isinstance(effect, NoteRecord)]


def test_the_end_of_a_job_is_the_end_of_its_run_and_a_retry_opens_it() -> None:
    job = lifecycle.submit(ONE, SPEC, job_id="j", user="ann", now=NOON, firing=Firing("nightly", NOON), stamp=1).after
    job = replace(job, started_at=NOON + 0.5)

    ended = sure(lifecycle.cancel(job, now=NOON + 1))
    again = sure(lifecycle.retry(ended.after, now=NOON + 2))

    assert note(NotedRun("cancelled", "j", "", "", NOON + 0.5, NOON + 1), is_open=False) in ended.effects
    assert note(NotedRun("fired", "j", "")) in again.effects


def test_a_result_says_what_its_run_shows() -> None:
    found = schedules.summarize(b'{"message": "Stored.", "output": {"job_id": "j", "artifact": "a/b.txt"}, "x": [1]}')

    assert (found.message, found.address) == ("Stored.", "j/a/b.txt")


@pytest.mark.parametrize("result", [b"1", b"[]", b'{"message": 1}', b'{"output": "x"}', b"null"])
def test_a_result_that_has_something_else_there_says_nothing(result: bytes) -> None:
    assert schedules.summarize(result) == schedules.Summary()


@pytest.mark.parametrize(("artifact", "kept"), [("a", 3), ("a" * 5000, 0)])
def test_a_long_message_of_a_result_is_cut_to_what_its_output_leaves(artifact: str, kept: int) -> None:
    found = schedules.summarize(json.encode({"message": "x" * 5000, "output": {"job_id": "j", "artifact": artifact}}))

    assert (len(found.message), len(found.address)) == (schedules.MAX_SUMMARY - kept, kept)

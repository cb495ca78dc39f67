"""What holds of every job in a store, after every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packhorse.core import json
from packhorse.core.changes import AT_ONCE, Change
from packhorse.core.models import Job, Task, TaskId
from packhorse.core.plan import Status, TaskStatus
from tests.core.memory import Entry, Memory

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status
TERMINAL = frozenset({COMPLETED, FAILED, CANCELLED})
STOPPED = frozenset({TaskStatus.CANCELLED, TaskStatus.SKIPPED})
TERMINAL_EVENTS = frozenset(status.value for status in TERMINAL)
ORDER = {PENDING: 0, RUNNING: 1, COMPLETED: 2, FAILED: 2, CANCELLED: 2}

Starts = Mapping[tuple[Entry, int], int]
"""Attempts that count, by task and run."""


def tasks(job: Job) -> Iterator[tuple[TaskId, Task]]:
    for planned, stage in zip(job.plan.stages, job.stages, strict=True):
        for n, task in enumerate(stage.tasks or ()):
            yield TaskId(planned.name, n), task


def gaps(job: Job) -> set[TaskId]:
    """Elements without a value in stages that are done."""
    stages = zip(job.plan.stages, job.stages, strict=True)
    done = {plan.name for plan, stage in stages if stage.is_done and plan.over is not None}
    return {at for at, task in tasks(job) if at.stage in done and task.status is not TaskStatus.COMPLETED}


def a_run_goes_on_while_its_stages_tolerate_what_failed(job: Job) -> None:
    for planned, stage in zip(job.plan.stages, job.stages, strict=True):
        bound = 0 if planned.tolerate is None else planned.tolerate.bound(len(stage.tasks or ()))
        if job.status is COMPLETED:
            assert stage.failed <= bound
        if stage.failed > bound:
            assert job.is_stopped


def what_needs_a_skipped_stage_is_skipped(job: Job) -> None:
    for planned, stage in zip(job.plan.stages, job.stages, strict=True):
        missing = [n for n in planned.needs if job.stage(n.stage).reason and n.parameter not in planned.optional]
        if missing and job.status is COMPLETED:
            assert stage.reason is not None


def goes_forward(change: Change) -> None:
    """Within a run nothing that has ended moves again; the next run begins only after the end of this one."""
    before, after = change.before, change.after
    if before is None:
        assert (after.version, after.run, after.status) == (1, 1, PENDING)
        return
    assert after.version == before.version + 1
    if after.run == before.run:
        assert ORDER[after.status] >= ORDER[before.status]
        assert before.status not in TERMINAL or after.status is before.status
        assert all(after.task(at) == task for at, task in tasks(before) if task.status.is_terminal)
    else:
        assert (after.run, before.status in TERMINAL) == (before.run + 1, True)


def everything_holds(store: Memory, starts: Starts) -> None:
    for job in store.jobs.values():
        a_run_ends_once_and_says_so(store, job)
        event_numbers_are_dense(store, job)
        attempts_stay_within_the_limit(starts, job)
        what_is_kept_is_what_completed(store, job)
        nothing_was_begun_before_what_it_needs(job)
        a_stage_has_as_many_elements_as_its_list(store, job)
        times_and_reasons_fit_the_status(job)
        what_never_started_is_skipped(job)
        a_run_goes_on_while_its_stages_tolerate_what_failed(job)
        what_needs_a_skipped_stage_is_skipped(job)
    a_slot_is_held_exactly_while_its_job_is_active(store)
    what_is_due_is_what_may_start(store)
    what_is_leased_is_what_runs(store)
    who_is_active_has_something_to_do(store)
    of_every_ended_run_all_are_told_who_asked(store)


def a_run_ends_once_and_says_so(store: Memory, job: Job) -> None:
    ends = [event for event in store.events[job.id] if event.type in TERMINAL_EVENTS]
    assert [event.data["run"] for event in ends] == list(range(1, job.run + (job.status in TERMINAL)))
    if job.status in TERMINAL:
        assert store.events[job.id][-1].type == job.status.value


def event_numbers_are_dense(store: Memory, job: Job) -> None:
    assert [event.n for event in store.events[job.id]] == list(range(1, job.events + 1))


def attempts_stay_within_the_limit(starts: Starts, job: Job) -> None:
    for at, task in tasks(job):
        counted = starts.get((Entry(job.id, at), job.run), 0)
        assert counted <= job.plan.stage(at.stage).retries + 1
        assert task.attempt == counted or task.status is TaskStatus.COMPLETED  # perhaps in an earlier run


def what_is_kept_is_what_completed(store: Memory, job: Job) -> None:
    kept = store.results.get(job.id, {})
    values = {at for at, result in kept.items() if result.error is None and not result.is_skipped}
    assert values == {at for at, task in tasks(job) if task.status is TaskStatus.COMPLETED}
    assert gaps(job) <= kept.keys() - values


def nothing_was_begun_before_what_it_needs(job: Job) -> None:
    for at, task in tasks(job):
        if task.ready_at is not None or task.status in {TaskStatus.RUNNING, TaskStatus.COMPLETED}:
            assert all(job.stage(need.stage).is_done for need in job.plan.stage(at.stage).needs)


def a_stage_has_as_many_elements_as_its_list(store: Memory, job: Job) -> None:
    for planned, stage in zip(job.plan.stages, job.stages, strict=True):
        if planned.when is not None and not planned.when.holds(json.decode(store.specs[job.id].parameters)):
            assert (stage.tasks, stage.status) == ((), TaskStatus.SKIPPED)
        elif planned.over is None:
            assert stage.tasks is not None
            assert len(stage.tasks) == 1
        elif stage.tasks is not None:
            listed = [result for at, result in store.results[job.id].items() if at.stage == planned.over]
            is_nested = job.plan.stage(planned.over).over is not None
            assert len(stage.tasks) == (len(listed) if is_nested else int(listed[0].value))
            assert len(stage.tasks) <= planned.elements


def times_and_reasons_fit_the_status(job: Job) -> None:
    has_ended = job.status in TERMINAL
    assert (job.completed_at is not None, job.purge_at is not None, job.deadline_at is None) == (has_ended,) * 3
    assert job.stopping is None or job.running_tasks()
    assert (job.error is not None) == (job.status is FAILED or job.stopping in {"fail", "expire"})


def what_never_started_is_skipped(job: Job) -> None:
    """Once nothing starts any more, no task waits; one that did not complete was cancelled if it had started."""
    for _, task in tasks(job):
        if job.is_stopped or job.status in TERMINAL:
            assert task.status is not TaskStatus.PENDING
        if task.status in STOPPED and not task.is_settled:
            assert job.is_stopped
        if task.status in STOPPED and not task.is_settled:
            assert (task.status is TaskStatus.SKIPPED) == (task.started_at is None)
    for planned in job.plan.stages:
        assert job.status not in TERMINAL or job.stage_status(planned.name).is_terminal


def a_slot_is_held_exactly_while_its_job_is_active(store: Memory) -> None:
    """Or the job waits in the line of a slot that another one holds."""
    active = [job for job in store.jobs.values() if job.slot is not None and job.status not in TERMINAL]
    taken = [(slot, job_id) for slot, line in store.lines.items() for job_id in line]
    assert all(store.jobs[job_id].status is PENDING and slot in store.slots for slot, job_id in taken)
    assert sorted([*store.slots.items(), *taken]) == sorted((job.slot or "", job.id) for job in active)


def what_is_due_is_what_may_start(store: Memory) -> None:
    """At its time, or at once if that had come when it was decided, whatever the clock says later."""
    may_start = {
        Entry(job.id, at): (task.ready_at, job.updated_at)
        for job in store.jobs.values()
        if job.status not in TERMINAL and job.stopping is None and job.id not in store.waiting
        for at, task in tasks(job)
        if task.status is TaskStatus.PENDING and task.ready_at is not None
    }
    assert store.due.keys() == may_start.keys()
    for at, (ready_at, decided_at) in may_start.items():
        not_before = store.due[at].not_before
        assert not_before == ready_at or (not_before == AT_ONCE and ready_at <= decided_at)


def what_is_leased_is_what_runs(store: Memory) -> None:
    assert {at: lease.token for at, lease in store.leases.items()} == {
        Entry(job.id, at): task.token
        for job in store.jobs.values()
        for at, task in tasks(job)
        if task.status is TaskStatus.RUNNING or task.token is not None
    }


def who_is_active_has_something_to_do(store: Memory) -> None:
    active = {job.id for job in store.jobs.values() if job.status not in TERMINAL}
    assert active == {at.job_id for at in (*store.due, *store.leases)} | store.waiting
    assert all(due for line in store.lines.values() for due in line.values())


def of_every_ended_run_all_are_told_who_asked(store: Memory) -> None:
    assert store.deliveries == {
        (job.id, run, endpoint)
        for job in store.jobs.values()
        for run in range(1, job.run + (job.status in TERMINAL))
        for endpoint in job.webhooks
    }

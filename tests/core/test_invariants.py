"""The invariants, held over random plans and verbs, late workers, overtaken decisions and passing time."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from packhorse.core import lifecycle
from packhorse.core.changes import Change, MakeDue, slot_to_wait_for
from packhorse.core.models import Job, Result
from packhorse.core.plan import Plan, Status, TaskStatus
from packhorse.errors import AlreadySubmitted, Conflict, JobNotFound, LeaseLost, NotAllowed, SlotTaken
from tests.core.graphs import WIDEST, plans
from tests.core.invariants import TERMINAL, everything_holds, goes_forward, tasks
from tests.core.memory import Entry, Memory
from tests.core.plans import BROKEN, HOPELESS, LEASE, SPEC, sure
from tests.tiers import examples

MOST_JOBS = 3
MOST_ROUNDS = 100
"""Of the fair scheduler: many times what the largest graph needs."""

Ending = Literal["finish", "skip", "fail", "fail for good", "stall", "time_out", "lose", "later", "hand_back"]
endings = st.sampled_from(get_args(Ending))


class Attempt(NamedTuple):
    """SecretCache for ever: a late worker may come back with its token at any time."""

    at: Entry
    token: str


class Jobs(RuleBasedStateMachine):
    """Keeps books of its own beside the store's, so that the core is not asked about itself."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Memory()
        self.submits = 0
        self.attempts: list[Attempt] = []
        self.starts: Counter[tuple[Entry, int]] = Counter()
        self.cancelled: set[tuple[str, int]] = set()
        self.put_off: list[Change] = []

    @invariant()
    def holds(self) -> None:
        everything_holds(self.store, self.starts)

    def teardown(self) -> None:
        """From any state, a fair scheduler whose work goes well brings every job to its end."""
        rounds = 0
        while (self.store.due or self.store.leases) and rounds < MOST_ROUNDS:
            rounds += 1
            self.go_on(width=1)

        assert [job.id for job in self.store.jobs.values() if job.status not in TERMINAL] == []
        assert (self.store.due, self.store.leases, self.store.slots) == ({}, {}, {})
        assert not self.store.waiting

    # submitting and attempting

    @initialize(plan=plans())
    def begin(self, plan: Plan) -> None:
        self.submit(plan, user="a", key=None, delay=0.0)

    @precondition(lambda self: len(self.store.jobs) < MOST_JOBS)
    @rule(
        plan=plans(), user=st.sampled_from("ab"), key=st.sampled_from([None, None, "k"]), delay=st.sampled_from([0, 50])
    )
    def submit(self, plan: Plan, user: str, key: str | None, delay: float) -> None:
        self.submits += 1
        job_id = f"j{self.submits}"
        webhooks = {"a": ("e", "f"), "b": ()}[user]
        change = lifecycle.submit(
            plan, SPEC, job_id=job_id, user=user, key=key, delay=delay, webhooks=webhooks, now=self.store.now
        )
        if key in self.store.keys:  # whether or not the slot is taken as well
            self.refused(change, AlreadySubmitted)
        else:
            self.take_slot(change)

    @precondition(lambda self: self.store.due)
    @rule(data=st.data())
    def start_what_is_due(self, data: st.DataObject) -> None:
        self.start(data.draw(st.sampled_from(sorted(self.store.due))))

    @precondition(lambda self: self.store.jobs)
    @rule(data=st.data())
    def start_what_is_not_due(self, data: st.DataObject) -> None:
        job = self.draw_job(data)
        at = Entry(job.id, data.draw(st.sampled_from([at for at, _ in tasks(job)])))
        if at not in self.store.due:
            task = job.task(at.task)
            waits = task is not None and task.ready_at is not None and job.id in self.store.waiting
            with pytest.raises(Conflict if waits else NotAllowed):
                self.start(at)

    @precondition(lambda self: self.store.leases)
    @rule(data=st.data(), ending=endings, width=st.none() | st.integers(0, WIDEST + 1))
    def end_what_runs(self, data: st.DataObject, ending: Ending, width: int | None) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.store.leases))), ending, width)

    @precondition(lambda self: self.store.leases)
    @rule(data=st.data(), width=st.integers(1, WIDEST))
    def finish_and_go_on_with_what_follows(self, data: st.DataObject, width: int) -> None:
        at = data.draw(st.sampled_from(sorted(self.store.leases)))
        job, now = self.store.jobs[at.job_id], self.store.now
        finished = decide(job, Attempt(at, self.store.leases[at].token), "finish", width, now)
        due = [effect.task for effect in finished.effects if isinstance(effect, MakeDue)]
        if not due:
            self.commit(finished)
            return
        next_at, token = Entry(job.id, data.draw(st.sampled_from(due))), f"t{len(self.attempts)}"
        followed = lifecycle.follow(finished, next_at.task, kinds=[""], token=token, worker="w", lease=LEASE, now=now)
        ready = [other for other, effect in self.store.due.items() if effect.not_before <= now]
        if any(other.job_id < job.id for other in ready):  # all have one queue, kind and priority
            self.refused(followed, Conflict)
            self.commit(finished)
            return
        self.commit(followed)
        self.attempts.append(Attempt(next_at, token))
        self.starts[next_at, job.run] += 1

    @precondition(lambda self: self.store.due or self.store.leases)
    @rule(width=st.integers(0, WIDEST))
    def go_on(self, width: int) -> None:
        """Everything that can move goes well: this is what brings a run into the depth of its graph."""
        for at in sorted(self.store.due):
            self.start(at)
        for at in sorted(self.store.leases):
            self.end(at, "finish", width)
            self.holds()

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), ending=endings)
    def come_back_late(self, data: st.DataObject, ending: Ending) -> None:
        at, token = data.draw(st.sampled_from(self.attempts))
        lease, job = self.store.leases.get(at), self.store.jobs.get(at.job_id)
        if job is not None and (lease is None or lease.token != token):
            with pytest.raises(LeaseLost):
                decide(job, Attempt(at, token), ending, None, self.store.now)

    @precondition(lambda self: self.store.leases)
    @rule(data=st.data(), is_renewed=st.booleans())
    def reap(self, data: st.DataObject, is_renewed: bool) -> None:
        at = data.draw(st.sampled_from(sorted(self.store.leases)))
        lease = self.store.leases[at]
        self.wait_until(lease.until)
        change = lifecycle.lose(self.store.jobs[at.job_id], at.task, token=lease.token, now=self.store.now)
        if is_renewed:  # between the look and the commit
            self.store.renew(at, LEASE)
            self.refused(change, Conflict)
        else:
            self.commit(change)

    # asking for an end, or for another run

    @precondition(lambda self: self.store.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self.draw_job(data)
        if job.status in {Status.COMPLETED, Status.FAILED}:
            with pytest.raises(NotAllowed):
                lifecycle.cancel(job, now=self.store.now)
        else:
            self.commit(lifecycle.cancel(job, now=self.store.now))
            self.cancelled.add((job.id, job.run))

    @precondition(lambda self: self.store.jobs)
    @rule(data=st.data(), is_over=st.booleans())
    def expire(self, data: st.DataObject, is_over: bool) -> None:
        job = self.draw_job(data)
        if is_over:
            self.wait_until(job.deadline_at)
        self.commit(lifecycle.expire(job, now=self.store.now))

    @precondition(lambda self: self.ended())
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job = self.draw_ended(data)
        stage = data.draw(st.sampled_from([None, "*", *job.plan.index]))
        if job.is_purging:
            with pytest.raises(JobNotFound):
                lifecycle.retry(job, stage=stage, now=self.store.now)
        elif job.status is Status.COMPLETED and stage is None:
            with pytest.raises(NotAllowed):
                lifecycle.retry(job, stage=stage, now=self.store.now)
        else:
            self.take_slot(sure(lifecycle.retry(job, stage=stage, now=self.store.now)))

    @precondition(lambda self: self.ended())
    @rule(data=st.data())
    def retry_failed_elements(self, data: st.DataObject) -> None:
        job = self.draw_ended(data)
        if not job.partial:
            with pytest.raises((NotAllowed, JobNotFound)):
                lifecycle.retry(job, failed_elements=True, now=self.store.now)
        elif not job.is_purging:
            failed = {at for at, task in tasks(job) if task.status is TaskStatus.FAILED}
            change = sure(lifecycle.retry(job, failed_elements=True, now=self.store.now))
            kept = {at for at, task in tasks(change.after) if task.status is TaskStatus.FAILED}
            assert failed.isdisjoint(kept)
            self.take_slot(change)

    @precondition(lambda self: self.ended())
    @rule(data=st.data())
    def put_off_a_retry(self, data: st.DataObject) -> None:
        job = self.draw_ended(data)
        if not job.is_purging:
            self.put_off.append(sure(lifecycle.retry(job, stage="*", now=self.store.now)))

    @precondition(lambda self: self.put_off)
    @rule()
    def commit_what_was_put_off(self) -> None:
        change = self.put_off.pop()
        if self.store.jobs.get(change.after.id) != change.before:
            self.refused(change, Conflict)
        else:  # the job has not moved, but its slot may have
            self.take_slot(change)

    # keeping and deleting

    @precondition(lambda self: self.ended())
    @rule(data=st.data(), is_over=st.booleans())
    def purge(self, data: st.DataObject, is_over: bool) -> None:
        job = self.draw_ended(data)
        if job.is_purging:
            self.store.erase(job.id)
            return
        if is_over:
            self.wait_until(job.purge_at)
        self.commit(lifecycle.purge(job, now=self.store.now))

    @precondition(lambda self: self.ended())
    @rule(data=st.data())
    def tidy(self, data: st.DataObject) -> None:
        job = self.draw_ended(data)
        if not job.is_purging:
            self.commit(lifecycle.tidy(job, now=self.store.now))

    # how it is done

    def start(self, at: Entry) -> None:
        job = self.store.jobs[at.job_id]
        if at in self.store.due:
            self.wait_until(self.store.due[at].not_before)
        token = f"t{len(self.attempts)}"
        self.commit(lifecycle.start(job, at.task, token=token, worker="w", lease=LEASE, now=self.store.now))
        assert (job.id, job.run) not in self.cancelled
        self.attempts.append(Attempt(at, token))
        self.starts[at, job.run] += 1

    def end(self, at: Entry, ending: Ending, width: int | None) -> None:
        job = self.store.jobs[at.job_id]
        self.commit(decide(job, Attempt(at, self.store.leases[at].token), ending, width, self.store.now))
        if ending in {"later", "hand_back"} and not job.stopping:
            self.starts[at, job.run] -= 1

    def take_slot(self, change: Change) -> None:
        waits = slot_to_wait_for(change) is not None
        if change.after.slot in self.store.slots and not waits:
            self.refused(change, SlotTaken)
        else:
            self.commit(change)

    def commit(self, change: Change | None) -> None:
        if change is not None:
            self.store.commit(change)
            goes_forward(change)

    def refused(self, change: Change, error: type[Exception]) -> None:
        with pytest.raises(error):
            self.store.commit(change)

    def wait_until(self, moment: float | None) -> None:
        self.store.now = max(self.store.now, moment or 0.0)

    def ended(self) -> list[str]:
        return [job.id for job in self.store.jobs.values() if job.status in TERMINAL]

    def draw_job(self, data: st.DataObject) -> Job:
        return self.store.jobs[data.draw(st.sampled_from(list(self.store.jobs)))]

    def draw_ended(self, data: st.DataObject) -> Job:
        return self.store.jobs[data.draw(st.sampled_from(self.ended()))]


def decide(job: Job, attempt: Attempt, ending: Ending, width: int | None, now: float) -> Change:
    at, token = attempt.at.task, attempt.token
    match ending:
        case "finish":
            result = Result(b"%d" % (width or 0))
            return lifecycle.finish(job, at, token=token, result=result, width=width, now=now)
        case "skip":
            return lifecycle.skip(job, at, token=token, reason="nothing to do", now=now)
        case "fail":
            return lifecycle.fail(job, at, token=token, error=BROKEN, luck=0.5, alone=True, now=now)
        case "fail for good":
            return lifecycle.fail(job, at, token=token, error=HOPELESS, luck=0.5, now=now)
        case "stall":
            return lifecycle.fail(job, at, token=token, error=lifecycle.STALLED, luck=0.5, now=now)
        case "time_out":
            return lifecycle.fail(job, at, token=token, error=lifecycle.TIMED_OUT, luck=0.5, now=now)
        case "lose":
            return lifecycle.lose(job, at, token=token, witnessed=True, now=now)
        case "later":
            return lifecycle.later(job, at, token=token, seconds=30.0, now=now)
        case "hand_back":
            return lifecycle.hand_back(job, at, token=token, now=now)


TestJobs = Jobs.TestCase
TestJobs.settings = settings(max_examples=examples(600), stateful_step_count=50, deadline=None)

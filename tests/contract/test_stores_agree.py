"""One random program against a plain model and every store, side by side: nobody can tell them apart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change, MakeDue
from packhorse.core.models import Job, Result, TaskId
from packhorse.core.plan import Plan, Status, fingerprint
from packhorse.errors import PackhorseError
from packhorse.store.base import Claim, Filter, Lease, Line, Report, Store
from packhorse.store.collections.webhooks import add_endpoint, list_deliveries
from tests.contract import keys
from tests.contract.builders import BROKEN, HOPELESS, LEASE, ONE, SPEC, job_id
from tests.contract.conftest import EPOCH
from tests.contract.stores import STORES, Clock, quick_folder
from tests.core.graphs import WIDEST, plans
from tests.core.memory import Entry, Memory
from tests.tiers import is_release

pytestmark = pytest.mark.cluster

T = TypeVar("T")

MOST_JOBS = 5
USERS = ("ann", "bob")
KEYS = ("k", "k2")
ENDINGS = ("finish", "go on", "go on", "fail", "fail for good", "later", "hand back", "lose")
VERBS = ("cancel", "retry", "retry all", "expire", "promote", "purge", "tidy")
WORKER = "w"
ENDPOINTS = ("e1", "e2")


def token_of(job: Job, at: TaskId) -> str:
    """The same in every store, and never the same twice."""
    return f"{at.stage}.{at.element}.{job.version}"


def start(job: Job, at: TaskId, now: float) -> Change:
    return lifecycle.start(job, at, token=token_of(job, at), worker=WORKER, lease=LEASE, now=now)


class Stores(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Memory()
        self.model.now = EPOCH
        self.clock = Clock(EPOCH)
        self.open = contextlib.ExitStack()
        self.loop = self.open.enter_context(asyncio.Runner())
        folder = self.open.enter_context(quick_folder())
        self.stores: dict[str, Store] = {
            name: self.wait(sort.open(sort.fresh(folder), self.clock)) for name, sort in STORES.items()
        }
        for endpoint in ENDPOINTS:
            self.on_all(lambda store, id=endpoint: add_endpoint(store, keys.endpoint(id)))
        self.ids: list[str] = []
        self.put_off: list[Change] = []
        self.progress: dict[Entry, float] = {}
        self.log: dict[str, list[str]] = {}

    def teardown(self) -> None:
        with self.open:
            for store in self.stores.values():
                self.wait(store.close())

    def wait(self, something: Awaitable[T]) -> T:
        async def waited() -> T:
            return await something

        return self.loop.run(waited())

    # The program

    @initialize(first=st.lists(st.tuples(plans(), st.integers(-1, 1)), min_size=1, max_size=3))
    def begin(self, first: list[tuple[Plan, int]]) -> None:
        for n, (plan, priority) in enumerate(first):
            self.submit(plan, f"user {n}", None, 0.0, priority)

    @precondition(lambda self: len(self.ids) < MOST_JOBS)
    @rule(
        plan=plans(),
        user=st.sampled_from(USERS),
        key=st.sampled_from([None, None, *KEYS]),
        delay=st.sampled_from([0.0, 0.0, 50.0]),
        priority=st.integers(-1, 1),
    )
    def submit(self, plan: Plan, user: str, key: str | None, delay: float, priority: int) -> None:
        kinds = replace(plan, stages=tuple(replace(stage, kind=stage.name) for stage in plan.stages))
        named = replace(kinds, fingerprint=fingerprint(kinds))
        change = lifecycle.submit(
            named, SPEC, job_id=job_id(len(self.ids) + 1), user=user, key=key, fingerprint="f", delay=delay,
            priority=priority, webhooks=ENDPOINTS[: 1 + priority], now=self.clock.now,
        )  # fmt: skip
        self.ids.append(change.after.id)
        self.commit(change)

    @precondition(lambda self: self.model.due)
    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        kinds = sorted({effect.kind for effect in self.model.due.values()})
        found = [self.wait(store.claim({"default": limit}, kinds, self.start)) for store in self.stores.values()]
        expected = self.claimed_by_the_model(limit)
        assert all(_told(claims) == expected for claims in found), (found, expected)

    @precondition(lambda self: self.model.due)
    @rule(data=st.data(), limit=st.integers(1, 3), width=st.integers(1, WIDEST))
    def work(self, data: st.DataObject, limit: int, width: int) -> None:
        """What brings jobs into the depth of their graphs."""
        self.claim(limit)
        for at in sorted(self.model.leases):
            if at in self.model.leases:  # another may have ended it with its job
                self.commit(self.ending(at, data.draw(st.sampled_from(ENDINGS)), width))
                self.agree()

    def claimed_by_the_model(self, limit: int) -> list[Any]:
        entries = [at for at, effect in self.model.due.items() if effect.not_before <= self.clock.now]
        entries.sort(key=lambda at: (-self.model.jobs[at.job_id].priority, at.job_id, at.task))
        for at in entries[:limit]:
            self.model.commit(self.start(self.model.jobs[at.job_id], at.task))
        return [self.given(at) for at in entries[:limit]]

    def given(self, at: Entry) -> Any:
        job, results = self.model.jobs[at.job_id], self.model.results.get(at.job_id, {})
        upstream = {
            need.stage: tuple(result for task, result in sorted(results.items()) if task.stage == need.stage)
            for need in job.plan.stage(at.task.stage).needs
        }
        return job, at.task, self.model.specs[job.id], upstream

    def start(self, job: Job, at: TaskId) -> Change:
        return start(job, at, self.clock.now)

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), ending=st.sampled_from(ENDINGS), width=st.integers(0, WIDEST), is_put_off=st.booleans())
    def end(self, data: st.DataObject, ending: str, width: int, is_put_off: bool) -> None:
        at = data.draw(st.sampled_from(sorted(self.model.leases)))
        change = self.ending(at, ending, width)
        if is_put_off:
            self.put_off.append(change)
        else:
            self.commit(change)

    @precondition(lambda self: len(self.model.leases) > 1)
    @rule(width=st.integers(0, WIDEST))
    def end_all_in_one_call(self, width: int) -> None:
        """Those of one job are each decided on what the one before leaves."""
        changes: list[Change] = []
        jobs = dict(self.model.jobs)
        for at in sorted(self.model.leases):
            change = self.ending(at, "finish", width, jobs[at.job_id])
            jobs[at.job_id] = change.after
            changes.append(change)
        self.commit(*changes)

    @precondition(lambda self: self.put_off)
    @rule(data=st.data())
    def come_late(self, data: st.DataObject) -> None:
        """With something else in the same call: a refusal is nobody else's."""
        late = self.put_off.pop(data.draw(st.integers(0, len(self.put_off) - 1)))
        others = [self.cancelling(job) for job in self.model.jobs.values() if job.id != late.after.id]
        self.commit(*[other for other in others if other is not None][:1], late)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), verb=st.sampled_from(VERBS))
    def ask(self, data: st.DataObject, verb: str) -> None:
        job = self.model.jobs[data.draw(st.sampled_from(sorted(self.model.jobs)))]
        change = self.decided_or_none(job, verb)
        if change is not None:
            self.commit(change)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), first=st.sampled_from(VERBS), second=st.sampled_from(VERBS))
    def ask_twice_at_once(self, data: st.DataObject, first: str, second: str) -> None:
        """Two who have decided on the same version of a job: the second writes nothing, in no store."""
        job = self.model.jobs[data.draw(st.sampled_from(sorted(self.model.jobs)))]
        for change in [self.decided_or_none(job, verb) for verb in (first, second)]:
            if change is not None:
                self.commit(change)

    @precondition(lambda self: any(job.is_purging for job in self.model.jobs.values()))
    @rule()
    def erase(self) -> None:
        for job in [job for job in self.model.jobs.values() if job.is_purging]:
            self.model.erase(job.id)
            self.log.pop(job.id, None)
            self.progress = {at: value for at, value in self.progress.items() if at.job_id != job.id}
            self.on_all(lambda store, erased=job.id: store.erase(erased))

    @rule(seconds=st.sampled_from([1.0, 10.0, 20.0, 60.0, 1_000.0, 7_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.forward(seconds)
        self.model.now = self.clock.now

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), is_right=st.booleans())
    def renew(self, data: st.DataObject, is_right: bool) -> None:
        at = data.draw(st.sampled_from(sorted(self.model.leases)))
        token = self.model.leases[at].token if is_right else "somebody else's"
        lease = Lease(at.job_id, at.task, token)
        if is_right:
            self.model.renew(at, LEASE)
        answers = [self.wait(store.renew([lease], LEASE)) for store in self.stores.values()]
        is_stopping = self.model.jobs[at.job_id].stopping is not None
        assert all(answer.lost == (frozenset() if is_right else {lease}) for answer in answers), answers
        assert all(answer.stopping == ({lease} if is_right and is_stopping else set()) for answer in answers), answers

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), current=st.integers(0, 100), is_right=st.booleans())
    def report(self, data: st.DataObject, current: int, is_right: bool) -> None:
        at = data.draw(st.sampled_from(sorted(self.model.leases)))
        job, token = self.model.jobs[at.job_id], self.model.leases[at].token if is_right else "another"
        report = Report(at.job_id, at.task, token, job.run, self.clock.now, float(current), 100.0, "m")
        self.on_all(lambda store: store.report([report]))
        if is_right:
            self.progress[at] = float(current)

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
    def say(self, data: st.DataObject, text: str) -> None:
        """Also of a job that is gone."""
        spoken = data.draw(st.sampled_from(self.ids))
        line = Line(spoken, TaskId("s"), 1, self.clock.now, text)
        self.on_all(lambda store: store.log([line], keep=10_000))
        if spoken in self.model.jobs:
            self.log.setdefault(spoken, []).append(text)

    # What everybody says

    @invariant()
    def agree(self) -> None:
        for name, store in self.stores.items():
            seen = self.wait(self.seen(store))
            for what, expected in self.expected().items():
                assert seen[what] == expected, (name, what, seen[what], expected)

    async def seen(self, store: Store) -> dict[str, Any]:
        jobs = await store.get(self.ids)
        there = [job.id for job in jobs if job is not None]
        results = await store.results(self.ids)
        progress = await store.progress(self.ids)
        return {
            "jobs": jobs,
            "specs": await store.specs(self.ids),
            "results": {job_id: kept for job_id, kept in results.items() if kept},
            "events": {job_id: await store.events(job_id) for job_id in self.ids},
            "slots": {slot: await store.holder(slot) for slot in self.slots()},
            "keys": {key: await store.find_by_key(key) for key in KEYS},
            "held": _tasks(await store.held_by(WORKER, limit=100)),
            "overdue": _tasks((await store.overdue(limit=100)).tasks),
            "expired": {job.id for job in await store.expired(limit=100)},
            "purgeable": {job.id for job in await store.purgeable(limit=100)},
            "littered": {job.id for job in await store.jobs_with_litter(limit=100)},
            "known": await store.existing_ids(self.ids),
            "deliveries": {
                (each.job_id, each.run, each.endpoint) for id in ENDPOINTS for each in await list_deliveries(store, id)
            },
            "listed": [job.id for job in await store.find(Filter("default"))],
            "by status": {status: await self.listed(store, status) for status in Status},
            "progress": {
                Entry(job_id, at): each.current for job_id, kept in progress.items() for at, each in kept.items()
            },
            "log": {job_id: [line.text for line in await store.lines(job_id)] for job_id in there},
        }

    @staticmethod
    async def listed(store: Store, status: Status) -> list[str]:
        return [job.id for job in await store.find(Filter("default", status=status))]

    def expected(self) -> dict[str, Any]:
        model, now = self.model, self.clock.now
        jobs = model.jobs
        return {
            "jobs": [jobs.get(job_id) for job_id in self.ids],
            "specs": model.specs,
            "results": {job_id: kept for job_id, kept in model.results.items() if kept},
            "events": {job_id: model.events.get(job_id, []) for job_id in self.ids},
            "slots": {slot: model.slots.get(slot) for slot in self.slots()},
            "keys": {key: (model.keys[key], "f") if key in model.keys else None for key in KEYS},
            "held": set(model.leases),
            "overdue": {at for at, lease in model.leases.items() if lease.until <= now},
            "expired": {
                job.id for job in jobs.values() if job.deadline_at is not None and job.deadline_at <= now
                and job.stopping is None
            },
            "purgeable": {
                job.id for job in jobs.values() if job.is_purging or (job.purge_at is not None and job.purge_at <= now)
            },
            "littered": {
                job.id for job in jobs.values() if job.has_litter and job.status.is_terminal and not job.is_purging
            },
            "known": set(jobs),
            "deliveries": model.deliveries,
            "listed": sorted(jobs, reverse=True),
            "by status": {
                status: sorted((job.id for job in jobs.values() if job.status is status), reverse=True)
                for status in Status
            },
            "progress": self.progress,
            "log": {job_id: self.log.get(job_id, []) for job_id in self.ids if job_id in jobs},
        }  # fmt: skip

    # How it is done

    def commit(self, *changes: Change) -> None:
        """Made by the model and by every store, or refused by all for the same reason."""
        expected = self.made_by_the_model(changes)
        answers = {name: self.wait(store.commit(changes)) for name, store in self.stores.items()}
        for name, answer in answers.items():
            assert [refusal is None for refusal in answer] == expected, (name, answer, expected)
        assert len({tuple(type(refusal) for refusal in answer) for answer in answers.values()}) == 1, answers
        for change, is_made in zip(changes, expected, strict=True):
            if is_made:
                self.forget_progress(change)

    def made_by_the_model(self, changes: tuple[Change, ...]) -> list[bool]:
        made: list[bool] = []
        refused: set[str] = set()
        for change in changes:
            try:
                if change.after.id not in refused:
                    self.model.commit(change)
                made.append(change.after.id not in refused)
            except PackhorseError:
                refused.add(change.after.id)
                made.append(False)
        return made

    def forget_progress(self, change: Change) -> None:
        dropped = [stage for effect in change.effects for stage in getattr(effect, "stages", ())]
        for at in [at for at in self.progress if at.job_id == change.after.id and at.task.stage in dropped]:
            del self.progress[at]

    def ending(self, at: Entry, ending: str, width: int, job: Job | None = None) -> Change:
        job = job or self.model.jobs[at.job_id]
        token, task, now = self.model.leases[at].token, at.task, self.clock.now
        match ending:
            case "finish" | "go on":
                result = Result(b"[%s]" % b",".join([b"1"] * width))
                finished = lifecycle.finish(job, task, token=token, result=result, width=width, now=now)
                due = [effect.task for effect in finished.effects if isinstance(effect, MakeDue)]
                if ending == "finish" or not due:
                    return finished
                kinds = sorted({stage.name for each in self.model.jobs.values() for stage in each.plan.stages})
                following = token_of(finished.after, due[0])
                return lifecycle.follow(
                    finished, due[0], kinds=kinds, token=following, worker=WORKER, lease=LEASE, now=now
                )
            case "fail":
                return lifecycle.fail(job, task, token=token, error=BROKEN, luck=0.5, now=now)
            case "fail for good":
                return lifecycle.fail(job, task, token=token, error=HOPELESS, luck=0.5, now=now)
            case "later":
                return lifecycle.later(job, task, token=token, seconds=30.0, now=now)
            case "hand back":
                return lifecycle.hand_back(job, task, token=token, now=now)
        return lifecycle.lose(job, task, token=token, now=now)

    def cancelling(self, job: Job) -> Change | None:
        with contextlib.suppress(PackhorseError):
            return lifecycle.cancel(job, now=self.clock.now)
        return None

    def decided_or_none(self, job: Job, verb: str) -> Change | None:
        with contextlib.suppress(PackhorseError):  # the lifecycle's own refusals: its tests know them
            return self.decided(job, verb)
        return None

    def decided(self, job: Job, verb: str) -> Change | None:
        now = self.clock.now
        match verb:
            case "cancel":
                return lifecycle.cancel(job, now=now)
            case "retry" | "retry all":
                return lifecycle.retry(job, stage="*" if verb == "retry all" else None, now=now)
            case "expire":
                return lifecycle.expire(job, now=now)
            case "promote":
                return lifecycle.promote(job, to=f"folder {job.version}", run=job.run, now=now)
            case "purge":
                return lifecycle.purge(job, now=now)
        return lifecycle.tidy(job, now=now)

    def on_all(self, asked: Any) -> None:
        for store in self.stores.values():
            self.wait(asked(store))

    def slots(self) -> list[str]:
        return sorted({job.slot for job in self.model.jobs.values() if job.slot is not None} | self.model.slots.keys())


def _tasks(found: list[tuple[Job, TaskId]]) -> set[Entry]:
    return {Entry(job.id, task) for job, task in found}


def _told(claims: list[Claim]) -> list[Any]:
    return [(claim.job, claim.task, claim.spec, dict(claim.upstream)) for claim in claims]


def test_of_two_who_have_decided_on_one_job_every_store_refuses_the_second() -> None:
    """What `ask_twice_at_once` finds, in a short program. A promotion tells no event, whose number would be taken."""
    stores = Stores()
    try:
        stores.submit(ONE, "ann", None, 0.0, 0)
        stores.claim(1)
        [at] = stores.model.leases
        stores.commit(stores.ending(at, "finish", 1))
        job = stores.model.jobs[stores.ids[0]]

        for place in ("here", "there"):
            promoted = lifecycle.promote(job, to=place, run=1, now=stores.clock.now)
            assert promoted is not None
            stores.commit(promoted)

        stores.agree()
        assert stores.model.jobs[job.id].promoted == ("here",)
    finally:
        stores.teardown()


TestStores = Stores.TestCase
TestStores.settings = settings(
    max_examples=50 if is_release() else 5,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

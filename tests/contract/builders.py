"""Small plans, and jobs brought to a point in a store by the verbs themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Failure, Job, Result, Spec, TaskId
from packhorse.core.plan import Need, Plan, StagePlan, fingerprint
from packhorse.errors import Conflict
from packhorse.store.base import Claim, Decide, Filter, Lease, Line, Report, Sample, Starter, Store
from packhorse.store.collections.workers import WorkerCard

LEASE = 15.0
TRIES = 1000
HOUR = 3_600.0
SPEC = Spec(b'{"platform":"520"}')
RESULT = Result(b'"done"')
BROKEN = Failure("EXCEPTION", "It broke.")
HOPELESS = Failure("INVALID", "It can never work.", permanent=True)


# Plans


def needs(stage: str) -> Need:
    return Need(stage, stage, "needs")


def each(stage: str) -> Need:
    return Need(stage, stage, "each")


def gather(stage: str) -> Need:
    return Need(stage, stage, "gather")


def stage(name: str, *needed: Need, kind: str | None = None, **options: Any) -> StagePlan:
    return StagePlan(name, needs=needed, kind=kind or name, **options)


def plan(*stages: StagePlan, pipeline: str = "convert", **options: Any) -> Plan:
    bare = Plan(pipeline, stages, **{"deadline": HOUR, **options})
    return replace(bare, fingerprint=fingerprint(bare))


ONE = plan(stage("only"))
SLOTTED = plan(stage("only"), slot="convert")
CHAIN = plan(stage("onnx"), stage("bie", needs("onnx")), stage("nef", needs("bie")))
APART = plan(stage("left"), stage("right"), slot="apart")
FAN = plan(stage("split"), stage("page", each("split")), stage("book", gather("page")))
KINDS = ("only", "onnx", "bie", "nef", "left", "right", "split", "page", "book")

ONLY = TaskId("only")
ONNX, BIE, NEF = TaskId("onnx"), TaskId("bie"), TaskId("nef")
LEFT, RIGHT = TaskId("left"), TaskId("right")
SPLIT, BOOK = TaskId("split"), TaskId("book")


def page(element: int) -> TaskId:
    return TaskId("page", element)


# Ids


def job_id(n: int) -> str:
    """The n-th of a row of UUIDv7: a greater number is a younger job."""
    return str(UUID(int=(0x0199_0000_0000 + n) << 80 | 0x7 << 76 | 0b10 << 62 | n))


def id_at(moment: float) -> str:
    """As it is made when a job is submitted."""
    return str(UUID(int=int(moment * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | next(_numbers)))


_numbers = itertools.count(1)


def next_id() -> str:
    return job_id(next(_numbers))


UNKNOWN = job_id(0)
SLOT = lifecycle.slot_key("default", "ann", "convert")
KEYS = ("k", "k2")
WORKERS = ("w", "w2")


# Changes


def submission(plan: Plan = ONE, spec: Spec = SPEC, *, now: float, **options: Any) -> Change:
    return lifecycle.submit(plan, spec, **{"job_id": next_id(), "user": "ann", "now": now, **options})


def finishing(claim: Claim, result: Result = RESULT, *, now: float, width: int | None = None) -> Change:
    return lifecycle.finish(claim.job, claim.task, token=claim.token, result=result, width=width, now=now)


def start_of(at: TaskId, token: str, now: float) -> Callable[[Job], Change]:
    return lambda job: lifecycle.start(job, at, token=token, worker="w", lease=LEASE, now=now)


def finish_of(at: TaskId, token: str, now: float) -> Callable[[Job], Change]:
    return lambda job: lifecycle.finish(job, at, token=token, result=RESULT, now=now)


def sure(change: Change | None) -> Change:
    """A change that is expected to be there."""
    assert change is not None
    return change


def starter(store: Store, *, worker: str = "w", lease: float = LEASE) -> Decide:
    """What a worker decides about an entry: start it, under a token nobody else has."""
    return Starter((f"{worker}-{n}" for n in _numbers), worker, lease, store.now)


# In the store


async def made(store: Store, change: Change | None) -> Job:
    """Commit what must not be refused."""
    assert await store.commit([sure(change)]) == [None]
    return sure(change).after


async def refused(store: Store, change: Change | None) -> Exception:
    """Commit what must be refused; why it was."""
    [error] = await store.commit([sure(change)])
    assert error is not None
    return error


async def settled(store: Store, job_id: str, verb: Callable[[Job], Change | None]) -> Job:
    """Read, decide, commit, and look again while others are faster."""
    for _ in range(TRIES):
        job = await held(store, job_id)
        change = verb(job)
        if change is None:
            return job
        [error] = await store.commit([change])
        if error is None:
            return change.after
        assert type(error) is Conflict, error
    raise AssertionError("Somebody else was faster every time.")


async def held(store: Store, job_id: str) -> Job:
    """The job as the store has it."""
    [job] = await store.get([job_id])
    assert job is not None
    return job


async def submit(store: Store, plan: Plan = ONE, spec: Spec = SPEC, **options: Any) -> Job:
    return await made(store, submission(plan, spec, **{"now": store.now(), **options}))


async def submit_many(store: Store, n: int, plan: Plan = ONE, **options: Any) -> list[Job]:
    changes = [submission(plan, **{"now": store.now(), **options}) for _ in range(n)]
    assert await store.commit(changes) == [None] * n
    return [change.after for change in changes]


async def claim(
    store: Store, limit: int = 1000, *, queue: str = "default", kinds: Collection[str] = KINDS, **options: Any
) -> list[Claim]:
    return await store.claim({queue: limit}, kinds, starter(store, **options))


async def claim_one(store: Store, **options: Any) -> Claim:
    [claimed] = await claim(store, 1, **options)
    return claimed


async def started(store: Store, plan: Plan = ONE, *, worker: str = "w", lease: float = LEASE, **options: Any) -> Claim:
    """A new job whose first task a worker has claimed."""
    await submit(store, plan, **options)
    return await claim_one(store, worker=worker, lease=lease)


async def finish(store: Store, claim: Claim, result: Result = RESULT, *, width: int | None = None) -> Job:
    def verb(job: Job) -> Change:
        return lifecycle.finish(job, claim.task, token=claim.token, result=result, width=width, now=store.now())

    return await settled(store, claim.job.id, verb)


async def fail(store: Store, claim: Claim, error: Failure = HOPELESS) -> Job:
    def verb(job: Job) -> Change:
        return lifecycle.fail(job, claim.task, token=claim.token, error=error, luck=0.0, now=store.now())

    return await settled(store, claim.job.id, verb)


async def cancel(store: Store, job_id: str) -> Job:
    return await settled(store, job_id, lambda job: lifecycle.cancel(job, now=store.now()))


async def completed(store: Store, plan: Plan = ONE, **options: Any) -> Job:
    return await finish(store, await started(store, plan, **options))


async def failed(store: Store, plan: Plan = ONE, **options: Any) -> Job:
    return await fail(store, await started(store, plan, **options))


async def cancelled(store: Store, plan: Plan = ONE, **options: Any) -> Job:
    return await cancel(store, (await submit(store, plan, **options)).id)


async def split(store: Store, width: int, plan: Plan = FAN) -> Job:
    """A job whose first stage has returned a list."""
    return await finish(store, await started(store, plan), width=width)


async def marked(store: Store, job: Job) -> Job:
    """The ended job, marked as purging although its time may not be over."""
    assert job.purge_at is not None
    return await made(store, lifecycle.purge(job, now=job.purge_at))


def lease_of(claim: Claim) -> Lease:
    return Lease(claim.job.id, claim.task, claim.token)


def report(claim: Claim, current: float, total: float | None = 100.0, *, at: float = 1.0, message: str = "") -> Report:
    return Report(claim.job.id, claim.task, claim.token, claim.job.run, at, current, total, message)


def line(job: Job, text: str, *, task: TaskId = ONLY, attempt: int = 1, at: float = 1.0) -> Line:
    return Line(job.id, task, attempt, at, text)


def sample(job: Job, at: float, *, task: TaskId = ONLY, cpu: float = 0.5, memory: int = 1024) -> Sample:
    return Sample(job.id, task, at, cpu, memory)


def card(id: str = "w", **options: Any) -> WorkerCard:
    facts = {
        "host": "h",
        "boot": "b",
        "pid_space": "p",
        "pid": 7,
        "born": 1.5,
        "version": "0",
        "queues": {"default": 2},
        "kinds": ("only", "onnx"),
    }
    return WorkerCard(id, **{**facts, **options})


# What is there


def ids(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs]


def tasks(claims: Sequence[Claim]) -> list[tuple[str, TaskId]]:
    return [(claim.job.id, claim.task) for claim in claims]


def token_of(job: Job, at: TaskId) -> str:
    task = job.task(at)
    assert task is not None
    assert task.token is not None
    return task.token


def attempt_of(job: Job, at: TaskId = ONLY) -> int:
    task = job.task(at)
    assert task is not None
    return task.attempt


async def words(store: Store, job_id: str) -> list[str]:
    return [event.type for event in await store.events(job_id)]


async def dump(store: Store) -> dict[str, Any]:
    """All that can be read of the store without moving it, to be compared with what is there later."""
    jobs = await store.find(Filter(), limit=1000)
    found = ids(jobs)
    return {
        "jobs": jobs,
        "specs": await store.specs(found),
        "results": await store.results(found),
        "events": {id: await store.events(id) for id in found},
        "slots": {slot: await store.holder(slot) for slot in {SLOT, *(job.slot for job in jobs if job.slot)}},
        "keys": {key: await store.find_by_key(key) for key in KEYS},
        "leases": [(job.id, at) for worker in WORKERS for job, at in await store.held_by(worker, limit=1000)],
        "overdue": [(job.id, at) for job, at in (await store.overdue(limit=1000)).tasks],
        "expired": ids(await store.expired(limit=1000)),
        "purgeable": ids(await store.purgeable(limit=1000)),
        "littered": ids(await store.jobs_with_litter(limit=1000)),
        "progress": await store.progress(found),
        "lines": {id: await store.lines(id) for id in found},
        "samples": {id: await store.samples(id) for id in found},
    }


async def offered(store: Store) -> list[tuple[str, TaskId]]:
    """What a claim would ask to be decided. Whatever it is, it is not started, and not asked again."""
    found: list[tuple[str, TaskId]] = []
    await store.claim({"default": 1000}, KINDS, lambda job, at: found.append((job.id, at)))
    return found


async def waiting(store: Store) -> list[tuple[str, TaskId]]:
    """What is due, read in the only way there is: by claiming it."""
    return tasks(await claim(store))

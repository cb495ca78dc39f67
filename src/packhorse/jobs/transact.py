"""Every change of a job: read it, decide, commit, and decide again if it has changed meanwhile.

Requests that arrive during a commit share the next one. Those about one job follow each other in it, each decided on
the result of the one before, so parallel stages of one job do not compete for its record.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from packhorse.core.changes import Change
from packhorse.core.models import Job, TaskId
from packhorse.errors import Conflict, CorruptRecord, JobNotFound, PackhorseError, Refused, StoreError, UnknownOutcome
from packhorse.store.base import Store

Verb = Callable[[Job], Change | None]
Then = Callable[[Job | None, Exception | None], object]
"""Gets the job after the commit, or why there was none. Raises nothing."""

TRIES = 20
"""Decisions on a job that keeps changing. Each time another change got through, so this many means a bug."""

REMEMBERED, PER_SLOT = 100, 4
"""Jobs whose latest state is cached: so many, or so many per slot of the worker if that is more. A stale one costs a
refused commit, never a wrong write; a missing one costs a read."""


class _Request:
    __slots__ = ("change_id", "is_answered", "job_id", "refusals", "then", "tries", "verb", "was_doubted")

    def __init__(self, job_id: str, verb: Verb, change_id: str, then: Then) -> None:
        self.job_id = job_id
        self.verb = verb
        self.change_id = change_id
        self.then = then
        self.tries = 0
        self.refusals = 0
        self.was_doubted = False
        """Whether a refusal was checked against a look-up of the change that came after it."""
        self.is_answered = False
        """Or nobody waits for the answer any more."""

    def answer(self, job: Job | None, error: Exception | None) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.then(job, error)


class Transactor:
    def __init__(self, store: Store, ended: Callable[[Job], None] = lambda _: None, slots: int = 0) -> None:
        """``ended`` is called for every run that a commit of this transactor ends. ``slots`` are those of a worker.

        A job that another worker continues stays in the cache until newer ones displace it, so the cache is small.
        """
        self._store = store
        self._ended = ended
        self._most_remembered = max(REMEMBERED, PER_SLOT * slots)
        self._waiting: list[_Request] = []
        self._pump: asyncio.Task[None] | None = None
        self._latest: dict[str, Job] = {}
        self._unknown: set[str] = set()

    async def __call__(self, job_id: str, verb: Verb, *, change_id: str | None = None) -> Job:
        """The job after the verb was committed, or as it is if there was nothing to do.

        Raises what the verb raises on the job as it really is. After `UnknownOutcome`, call again with the same
        ``change_id``: it is looked up before anything is decided.
        """
        done: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        request = self.post(job_id, verb, partial(_resolve, done), change_id=change_id or secrets.token_hex(8))
        try:
            return await done
        except asyncio.CancelledError:
            request.is_answered = True
            raise

    def post(self, job_id: str, verb: Verb, then: Then, *, change_id: str) -> _Request:
        """The same for who does not wait: ``then`` gets what the call would return or raise."""
        request = _Request(job_id, verb, change_id, then)
        self._waiting.append(request)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._work())
        return request

    async def end_attempt(self, job: Job, task: TaskId, verb: Callable[..., Change | None], **facts: Any) -> bool:
        """End the attempt that the task has in ``job``; False if it has none, or one that has ended or was renewed."""
        held = job.task(task)
        if held is None or held.token is None:
            return False
        try:
            await self(job.id, partial(verb, at=task, token=held.token, now=self._store.now(), **facts))
        except (Conflict, Refused):
            return False
        return True

    def learn(self, jobs: Iterable[Job]) -> None:
        """Remember jobs as just read or committed."""
        for job in jobs:
            self._remember(job)

    def _remember(self, job: Job) -> None:
        """The latest last, so that the first is the least recently used."""
        self._latest.pop(job.id, None)
        if not job.status.is_terminal:
            self._latest[job.id] = job
            if len(self._latest) > self._most_remembered:
                del self._latest[next(iter(self._latest))]

    async def _work(self) -> None:
        while self._waiting:
            requests, self._waiting = self._waiting, []
            try:
                await self._round(requests)
            except Exception as error:  # broad: the callers must get it, and the next round must run
                for request in requests:
                    request.answer(None, error)

    async def _round(self, requests: list[_Request]) -> None:
        requests.sort(key=attrgetter("refusals"))  # refused ones go last: nothing shall be decided on top of them
        for request in requests:
            if request.change_id in self._unknown:
                await self._look_up(request)
        jobs = await self._load([request for request in requests if not request.is_answered])
        pending: set[str] = set()
        decided: list[tuple[_Request, Change]] = []
        for request in requests:
            change = None if request.is_answered else self._decide(request, jobs, pending)
            if change is not None:
                decided.append((request, change))
        if not decided:
            return
        try:
            outcomes = await self._store.commit([change for _, change in decided])
        except StoreError as error:
            outcomes = [error] * len(decided)
        refused: set[str] = set()
        for (request, change), outcome in zip(decided, outcomes, strict=True):
            if outcome is not None:
                request.refusals += request.job_id not in refused  # those behind it only depended on the refused one
                refused.add(request.job_id)
            self._conclude(request, change, outcome)

    async def _look_up(self, request: _Request) -> None:
        """After a lost answer, check whether the change is stored before doing anything else."""
        try:
            if not await self._store.has_change(request.job_id, request.change_id):
                return
            [job] = await self._store.get([request.job_id])
        except StoreError as error:
            request.answer(None, error)
            return
        self._unknown.discard(request.change_id)
        request.answer(job, None if job is not None else JobNotFound(job_id=request.job_id))

    async def _load(self, requests: list[_Request]) -> dict[str, Job]:
        """From the cache at first; after a refusal, from the store."""
        fresh = {request.job_id for request in requests if request.tries > 0}
        jobs = {
            a.job_id: self._latest[a.job_id] for a in requests if a.job_id in self._latest and a.job_id not in fresh
        }
        missing = list({request.job_id for request in requests} - jobs.keys())
        if missing:
            jobs |= await self._read(missing, requests)
            for request in requests:
                request.tries += request.job_id in missing
        return jobs

    async def _read(self, job_ids: list[str], requests: list[_Request]) -> dict[str, Job]:
        try:
            return {job.id: job for job in await self._store.get(job_ids) if job is not None}
        except CorruptRecord as error:
            if len(job_ids) > 1:  # only those who asked for the corrupt one get the error
                return {id: job for each in job_ids for id, job in (await self._read([each], requests)).items()}
            for request in requests:
                if request.job_id in job_ids:
                    request.answer(None, error)
            return {}

    def _decide(self, request: _Request, jobs: dict[str, Job], pending: set[str]) -> Change | None:
        """Decide on the job as the requests before this one will leave it, if they succeed."""
        job = jobs.get(request.job_id)
        if job is None:
            request.answer(None, JobNotFound(job_id=request.job_id))
            return None
        try:
            change = request.verb(job)
        except Exception as error:  # broad: an error of one verb goes to its caller, not to all who wait
            self._refuse(request, None, error, pending)
            return None
        if change is None:
            self._refuse(request, job, None, pending)
            return None
        jobs[request.job_id] = change.after
        pending.add(request.job_id)
        return replace(change, id=request.change_id)

    def _refuse(self, request: _Request, job: Job | None, error: Exception | None, pending: set[str]) -> None:
        """A refusal that was decided on a cached or not yet committed job is decided again on the stored one."""
        is_doubtful = request.change_id in self._unknown and not request.was_doubted
        if request.tries == 0 or request.job_id in pending:
            self._retry(request)
        elif is_doubtful:  # the change may have been made between the look-up and the read, and be the reason itself
            request.was_doubted = True
            self._retry(request)
        else:
            request.answer(job, error)

    def _conclude(self, request: _Request, change: Change, outcome: PackhorseError | None) -> None:
        if outcome is None:
            self._unknown.discard(request.change_id)
            self._remember(change.after)
            if change.after.status.is_terminal and change.before is not None and not change.before.status.is_terminal:
                self._ended(change.after)
            request.answer(change.after, None)
            return
        self._latest.pop(request.job_id, None)
        if isinstance(outcome, StoreError):  # who answers next may be another server, which lacks the last changes
            self._latest.clear()
        if isinstance(outcome, UnknownOutcome):
            self._unknown.add(request.change_id)
        if isinstance(outcome, Conflict) and request.tries < TRIES:
            self._retry(request)
        else:
            request.answer(None, outcome)

    def _retry(self, request: _Request) -> None:
        request.tries += 1
        self._latest.pop(request.job_id, None)
        self._waiting.append(request)


def _resolve(done: asyncio.Future[Job], job: Job | None, error: Exception | None) -> None:
    if done.done():
        return
    if job is not None:
        done.set_result(job)
    else:
        assert error is not None
        done.set_exception(error)

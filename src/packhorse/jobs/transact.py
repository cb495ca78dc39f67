"""The one door to a job: read, decide, commit, and look again when it moved meanwhile.

What is asked for while a commit is under way travels together in the next one. Verbs on one job follow each other in
it, each decided on what the one before left, so parallel stages of one job do not fight over its record.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from operator import attrgetter

from msgspec.structs import replace

from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.errors import Conflict, CorruptRecord, JobNotFound, PackhorseError, StoreError, UnknownOutcome
from packhorse.store.base import Store

Verb = Callable[[Job], Change | None]

TRIES = 20
"""Looks at a job that keeps moving. Each round somebody has got through, so this many means something is broken."""

REMEMBERED = 10_000
"""Jobs whose latest state is kept as a first guess. A wrong guess costs a refusal, never a wrong write."""


class _Ask:
    def __init__(self, job_id: str, verb: Verb, change_id: str) -> None:
        self.job_id = job_id
        self.verb = verb
        self.change_id = change_id
        self.tries = 0
        self.refusals = 0
        self.done: asyncio.Future[Job] = asyncio.get_running_loop().create_future()


class Transactor:
    def __init__(self, store: Store, ended: Callable[[Job], None] = lambda _: None) -> None:
        """``ended`` is told of every run that has ended through this door."""
        self._store = store
        self._ended = ended
        self._waiting: list[_Ask] = []
        self._pump: asyncio.Task[None] | None = None
        self._latest: dict[str, Job] = {}
        self._doubtful: set[str] = set()

    async def __call__(self, job_id: str, verb: Verb, *, change_id: str | None = None) -> Job:
        """The job after the verb was committed, or as it is if there was nothing to do.

        Raises what the verb raises on the job as it really is. After `UnknownOutcome`, call again with the same
        ``change_id``: it is looked up before anything is decided.
        """
        ask = _Ask(job_id, verb, change_id or secrets.token_hex(8))
        self._waiting.append(ask)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._work())
        return await ask.done

    def learn(self, jobs: Iterable[Job]) -> None:
        """Remember jobs as just read or committed."""
        for job in jobs:
            self._remember(job)

    def _remember(self, job: Job) -> None:
        """The latest last, so that the first is the one that was longest not heard of."""
        self._latest.pop(job.id, None)
        if not job.status.is_terminal:
            self._latest[job.id] = job
            if len(self._latest) > REMEMBERED:
                del self._latest[next(iter(self._latest))]

    async def _work(self) -> None:
        while self._waiting:
            asks, self._waiting = self._waiting, []
            try:
                await self._round(asks)
            except Exception as error:  # broad: whoever waits must hear of it, and the next round must run
                for ask in asks:
                    if not ask.done.done():
                        ask.done.set_exception(error)

    async def _round(self, asks: list[_Ask]) -> None:
        asks.sort(key=attrgetter("refusals"))  # nobody else shall be decided on what may be refused once more
        for ask in asks:
            if ask.change_id in self._doubtful:
                await self._look_up(ask)
        jobs = await self._load([ask for ask in asks if not ask.done.done()])
        hoped: set[str] = set()
        decided: list[tuple[_Ask, Change]] = []
        for ask in asks:
            change = None if ask.done.done() else self._decide(ask, jobs, hoped)
            if change is not None:
                decided.append((ask, change))
        if not decided:
            return
        outcomes = await self._commit([change for _, change in decided])
        refused: set[str] = set()
        for (ask, change), outcome in zip(decided, outcomes, strict=True):
            if outcome is not None:
                ask.refusals += ask.job_id not in refused  # those behind it were only decided on what was refused
                refused.add(ask.job_id)
            self._conclude(ask, change, outcome)

    async def _look_up(self, ask: _Ask) -> None:
        """After a lost answer, look whether the change is there before doing anything else."""
        try:
            if not await self._store.made(ask.job_id, ask.change_id):
                return
            [job] = await self._store.get([ask.job_id])
        except StoreError as error:
            self._answer(ask, None, error)
            return
        self._doubtful.discard(ask.change_id)
        self._answer(ask, job, JobNotFound(job_id=ask.job_id))

    async def _load(self, asks: list[_Ask]) -> dict[str, Job]:
        """A first guess may come from memory; who was refused once reads."""
        fresh = {ask.job_id for ask in asks if ask.tries > 0}
        jobs = {a.job_id: self._latest[a.job_id] for a in asks if a.job_id in self._latest and a.job_id not in fresh}
        missing = list({ask.job_id for ask in asks} - jobs.keys())
        if missing:
            jobs |= await self._read(missing, asks)
            for ask in asks:
                ask.tries += ask.job_id in missing
        return jobs

    async def _read(self, job_ids: list[str], asks: list[_Ask]) -> dict[str, Job]:
        try:
            return {job.id: job for job in await self._store.get(job_ids) if job is not None}
        except CorruptRecord as error:
            if len(job_ids) > 1:  # it is the trouble of those who asked for it, and of nobody else
                return {id: job for each in job_ids for id, job in (await self._read([each], asks)).items()}
            for ask in asks:
                if ask.job_id in job_ids:
                    self._answer(ask, None, error)
            return {}

    def _decide(self, ask: _Ask, jobs: dict[str, Job], hoped: set[str]) -> Change | None:
        """Decide on the job as the asks before this one will leave it, if all goes well."""
        job = jobs.get(ask.job_id)
        if job is None:
            self._answer(ask, None, JobNotFound(job_id=ask.job_id))
            return None
        try:
            change = ask.verb(job)
        except Exception as error:  # broad: what is wrong with one verb is told to its caller, not to all who wait
            self._disappoint(ask, None, error, hoped)
            return None
        if change is None:
            self._disappoint(ask, job, None, hoped)
            return None
        jobs[ask.job_id] = change.after
        hoped.add(ask.job_id)
        return replace(change, id=ask.change_id)

    def _disappoint(self, ask: _Ask, job: Job | None, error: Exception | None, hoped: set[str]) -> None:
        """A no that was decided on a remembered or only hoped-for job is decided again on the real one."""
        if ask.tries == 0 or ask.job_id in hoped:
            self._again(ask)
        else:
            self._answer(ask, job, error)

    async def _commit(self, changes: list[Change]) -> list[PackhorseError | None]:
        try:
            return await self._store.commit(changes)
        except StoreError as error:
            return [error] * len(changes)

    def _conclude(self, ask: _Ask, change: Change, outcome: PackhorseError | None) -> None:
        if outcome is None:
            self._doubtful.discard(ask.change_id)
            self._remember(change.after)
            if change.after.status.is_terminal and change.before is not None and not change.before.status.is_terminal:
                self._ended(change.after)
            self._answer(ask, change.after, None)
            return
        self._latest.pop(ask.job_id, None)
        if isinstance(outcome, UnknownOutcome):
            self._doubtful.add(ask.change_id)
        if isinstance(outcome, Conflict) and ask.tries < TRIES:
            self._again(ask)
        else:
            self._answer(ask, None, outcome)

    def _again(self, ask: _Ask) -> None:
        ask.tries += 1
        self._latest.pop(ask.job_id, None)
        self._waiting.append(ask)

    @staticmethod
    def _answer(ask: _Ask, job: Job | None, error: Exception | None) -> None:
        if ask.done.done():
            return
        if job is not None:
            ask.done.set_result(job)
        else:
            assert error is not None
            ask.done.set_exception(error)

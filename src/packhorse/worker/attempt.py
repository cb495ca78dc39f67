"""One attempt at one task: `run` the stage, `settle` how it ended, `close`.

Each step returns a value: `run` how the stage ended, `settle` what the job knows of it and what follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from packhorse import errors
from packhorse.blobs.base import Blobs
from packhorse.core import error_codes, json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Failure, Job, Result
from packhorse.core.redaction import redact, redact_json, secret_forms
from packhorse.crashpoints import reach
from packhorse.host import StageUser
from packhorse.jobs import artifacts
from packhorse.jobs.encryption import get_encryptor
from packhorse.jobs.transact import Transactor
from packhorse.log import log
from packhorse.settings import Settings
from packhorse.store.base import Claim, Lease, Line, Report, Store
from packhorse.worker import files
from packhorse.worker.child import messages
from packhorse.worker.claims import Handoff
from packhorse.worker.file_cache import FileCache, Files
from packhorse.worker.files import Inputs, previous_result, redact_filename
from packhorse.worker.pool import Pool, may_share
from packhorse.worker.process import Call, Child, ChildDied, ChildStuck, OverMemory, Then
from packhorse.worker.process import Outcome as Returned
from packhorse.worker.reporter import Reporter, Throttle

MOST = messages.FRAME - 1024 * 1024
"""Bytes of values a stage can be given: what fits into one message, with room for the rest of it."""
PATIENCE = 1.0
"""Seconds between tries to commit how the attempt ended, while the store is away."""
LOST = "lost"
"""The outcome of an attempt that has lost its lease: nobody waits for it any more."""


class StopReason(Enum):
    """Why we ended a running attempt."""

    LOST = "its lease was lost"
    STOPPED = "its job is being stopped"
    TIMEOUT = "it took too long"
    STALLED = "it reported no progress for too long"
    MEMORY = "it used too much memory"
    LEAVING = "its worker is leaving"


@dataclass(slots=True, kw_only=True)
class Resources:
    """What all attempts of a worker share."""

    store: Store
    blobs: Blobs
    transact: Transactor
    pool: Pool
    reporter: Reporter
    settings: Settings
    scratch: Path
    luck: Callable[[], float]
    user: StageUser | None = None
    cache: FileCache | None = None
    """None if the object store is a local folder, or if no files are to be kept."""

    def source(self, claim: Claim) -> Files:
        """Where the stage's input files come from. What no other stage needs is not worth keeping."""
        return self.blobs if self.cache is None or len(claim.job.plan.stages) == 1 else self.cache

    def target(self, claim: Claim) -> Files:
        """Where the stage's files go."""
        is_last = not claim.job.plan.followers[claim.task.stage]
        return self.blobs if self.cache is None or is_last else self.cache


@dataclass(slots=True)
class Ending:
    """How a stage ended: decides the change of its job that says so."""

    lease: Lease
    now: Callable[[], float]
    verb: Callable[..., Change] | None
    """None if the lease was lost: then there is nothing to commit."""
    name: str
    """Of the outcome."""
    facts: dict[str, Any]
    fault: str = ""
    """What went wrong, if it failed."""
    handoff: Handoff | None = None
    """What may take over the slot: until the commit is through, nobody else gets the slot."""

    def decide(self, job: Job) -> Change:
        assert self.verb is not None
        change = self.verb(job, self.lease.task, token=self.lease.token, now=self.now(), **self.facts)
        return change if self.handoff is None else self.handoff.extend(change)

    def outcome(self, job: Job) -> Outcome:
        """Of the job after the commit."""
        following = None if self.handoff is None else self.handoff.claim(job, self.facts["result"])
        is_only = following is not None and len(job.plan.followers[self.lease.task.stage]) == 1
        return Outcome(self.name, self.fault, following, not job.status.is_terminal and not is_only, True)


class Outcome(NamedTuple):
    """The outcome of an attempt, and what follows."""

    name: str
    """The verb of the lifecycle that ended it, but `time_out` and `stall` for those failures; or `LOST`."""
    fault: str = ""
    """What went wrong, if it failed."""
    following: Claim | None = None
    """The next stage of the job, which the same commit has started: it takes over the slot."""
    leaves_more: bool = False
    """Whether tasks may have become due that nobody has started: they can be claimed at once."""
    is_written: bool = False
    """Whether the job knows of it. If not, the store may still hold the lease."""


class Attempt:
    def __init__(self, claim: Claim, resources: Resources, handoff: Handoff | None = None) -> None:
        task = claim.job.task(claim.task)
        assert task is not None
        self.claim = claim
        self.plan = claim.job.plan.stage(claim.task.stage)
        self.lease = Lease(claim.job.id, claim.task, task.token or "")
        self.number = task.attempt
        self.is_alone = task.is_alone
        self.claimed_at = self.began = self.moved_at = time.monotonic()
        self.has_slot = True
        self.has_returned = False
        """Whether the stage is through and its files are stored: only the commit is left."""
        self.why: StopReason | None = None
        self.child: Child | None = None
        """The process that runs it, for as long as it does."""
        self.stuck: Child | None = None
        """Its process, if the system could not end it. The attempt ends anyway, but its slot is lost."""
        self.task: asyncio.Task[Any] | None = None
        self._has_inputs = False
        """Whether the scratch folder was made before the stage began."""
        self._was_ended = False
        self._is_preparing = False
        self.is_sent = False
        """Whether its process has the stage. Before, its inputs are fetched and the app is loaded."""
        self._call: Call | None = None
        """While it runs. Then None: the two refer to each other, and would wait for the cyclic collector."""
        self._returned: Returned | Exception | None = None
        """How the call ended, of a stage that no task waits for."""
        self._ending: Ending | None = None
        self._refusal: Exception | None = None
        """The same of its ending, and of the first try to commit that: a task continues from there."""
        self._resources = resources
        self._handoff = handoff
        self._made: list[messages.Made] = []
        self._has_spoken = False
        self._throttle: Throttle | None = None
        """Made for the first line: most stages print nothing."""
        self._scratch = f"{resources.scratch}/{task.token}"
        self._may_have_scratch = True
        """False when the child says that the stage left nothing there, and no inputs were put there."""
        self._stopping: asyncio.Task[None] | None = None
        self.secrets: tuple[str, ...] = ()
        """Redacted from everything that is stored or logged of it."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """Its own, and that of the stage which its commit may start."""
        return (self.lease.token,) if self._handoff is None else (self.lease.token, self._handoff.token)

    # Without a task. Most async stages need no files and return a value: nothing of them has to be waited for but their
    # process and the commit. Where anything else is to be done, a task continues there, with `run`.

    def begin(self, then: Callable[[], object]) -> bool:
        """Give the stage to the shared process at once; ``then`` is called when it has ended there.

        False, and nothing was done, if something has to be waited for before.
        """
        job, resources = self.claim.job, self._resources
        is_ready = (
            self.plan.is_async and may_share(self.plan) and not self.is_alone and self.claim.trouble is None
            and not job.plan.secrets and job.firing is None
            and resources.user is None and resources.settings.process_per == "worker"
        )  # fmt: skip
        child = resources.pool.warm_shared() if is_ready else None
        if child is None:
            return False
        try:
            inputs, parameters, arguments = self._gather_inputs()
            if inputs.has_files:
                return False
            message = self._message(child.number(), parameters, arguments, b"")
            reach("attempt.claimed", self)
            self._send(child, message, lambda how: self._on_return(child, how, then))
        except Exception:  # broad: a task meets the same error, and makes an ending of it
            return False
        return True

    def _on_return(self, child: Child, how: Returned | Exception, then: Callable[[], object]) -> None:
        self._returned = how
        if isinstance(how, ChildStuck):
            self.stuck = how.child
        elif not isinstance(how, Exception):
            self._note_scratch(how)
        self._detach(child)
        then()

    def end(self) -> Ending | None:
        """How the stage ended; None if there is more to do than to commit that."""
        outcome = self._returned
        if (
            outcome is None or isinstance(outcome, Exception) or self._stopping is not None or self._has_spoken
            or self._throttle is not None or self._made
            or (isinstance(outcome, messages.Returned) and outcome.result.files)
            or (self._may_have_scratch and os.path.lexists(self._scratch))
        ):  # fmt: skip
            return None
        self._may_have_scratch = False
        try:
            self._ending = self._end_with(outcome)
        except Exception as error:  # broad: a bug of ours must end as a failed attempt, not as a silent lease
            self._ending = self._break(error)
        self.has_returned = True
        return self._ending

    def post(self, ending: Ending, then: Callable[[Outcome | None], object]) -> None:
        """Commit how it ended; ``then`` gets the outcome, or None if that needs another try."""
        if ending.verb is None:
            then(Outcome(LOST))
            return

        def on_answer(job: Job | None, error: Exception | None) -> None:
            self._refusal, outcome = error, None
            if job is not None:
                try:
                    outcome = ending.outcome(job)
                except Exception as broken:  # broad: as everywhere here
                    self._refusal = broken
            then(outcome)

        self._resources.transact.post(self.lease.job_id, ending.decide, on_answer, change_id=self.lease.token)

    # In a task.

    async def run(self) -> Ending:
        """Run the stage and store its files. Whatever goes wrong is an ending, too."""
        self.task = asyncio.current_task()
        if self._ending is not None:
            return self._ending
        if not self.is_sent:
            reach("attempt.claimed", self)
        try:
            return await self._run()
        except Exception as error:  # broad: a bug of ours must end as a failed attempt, not as a silent lease
            return self._break(error)
        finally:
            self.has_returned = True

    async def settle(self, ending: Ending) -> Outcome:
        """Commit how it ended, however long the store is away."""
        try:
            if self._has_spoken:  # its log and progress are stored before anybody sees that it has ended
                await self._resources.reporter.flush()
            return await self._commit(ending)
        except Exception as error:  # broad, as above
            return await self._commit(self._break(error))

    async def close(self) -> None:
        """Remove what is left of it: a process that is being ended, the scratch folder."""
        reach("attempt.settled", self)
        if self._stopping is not None:
            await self._stopping
        if self.stuck is not None:  # what it has open may hang as well
            return
        if self._may_have_scratch and os.path.lexists(self._scratch):  # noqa: ASYNC240 (one system call)
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def stop(self, why: StopReason) -> None:
        """End it now. The first reason counts, except that a lost lease beats all."""
        if self.why is not None or self.has_returned:
            if why is StopReason.LOST:
                self.why = why
            return
        self.why = why
        if self._is_preparing and self.task is not None:
            self.task.cancel()
        if self.child is not None:
            self._stopping = asyncio.create_task(self._end(self.child, self._call))

    async def _end(self, child: Child, call: Call | None) -> None:
        """Ask a shared process to end this call alone; end the process if it does not in time."""
        if child.is_shared and call is not None:
            child.send(messages.Stop(call.number))
            done, _ = await asyncio.wait([call.outcome], timeout=self._resources.settings.grace)
            if done:
                return
        await self._resources.pool.end(child)

    # What the child reports while the stage runs.

    def on_progress(self, message: messages.Moved) -> None:
        self.moved_at = time.monotonic()
        self._has_spoken = True
        who = self.lease
        run, now = self.claim.job.run, self._resources.store.now()
        # A number that is not finite cannot be stored, and would fail the whole batch of reports.
        current = message.current if math.isfinite(message.current) else 0.0
        total = message.total if message.total is not None and math.isfinite(message.total) else None
        said = redact(message.message, self.secrets)
        self._resources.reporter.report(Report(who.job_id, who.task, who.token, run, now, current, total, said))

    def on_artifact(self, message: messages.Made) -> None:
        if len(self._made) > self._resources.settings.artifacts_limit:  # one too many is enough to fail
            return
        self._made.append(replace(message, name=redact_filename(message.name, self.secrets)))

    def on_lines(self, lines: Sequence[str], secrets: Sequence[str] = ()) -> None:
        if self._throttle is None:
            self._throttle = Throttle(self._resources.settings.log_rate)
        for line in self._throttle.admit(lines):
            self._write(redact(line, secrets))

    def _write(self, text: str) -> None:
        self._has_spoken = True
        text = redact(text, self.secrets)
        self._resources.reporter.line(
            Line(self.lease.job_id, self.lease.task, self.number, self._resources.store.now(), text)
        )

    # How it ends.

    async def _run(self) -> Ending:
        if self.claim.trouble is not None:
            return self._fail(error_codes.CORRUPT, str(self.claim.trouble), permanent=True)
        try:
            outcome = await self._call_stage()
        except errors.BlobError as error:
            return self._fail(error_codes.BLOB_UNAVAILABLE, f"The stage's inputs cannot be had: {error}")
        except errors.InvalidInput as error:
            return self._fail(error_codes.ARGUMENTS_TOO_LARGE, str(error), permanent=True)
        except (errors.SecretUnreadable, errors.NoSecretKey) as error:
            return self._fail(error_codes.SECRET_UNREADABLE, str(error))
        except errors.DefinitionError as error:
            if self.why is not None:  # its process was ended before it had loaded the app
                return self._end_stopped()
            self._write(f"The stage waits for a worker that can load it: {error}")
            return self._end_as(lifecycle.hand_back)
        except ChildDied as died:
            if self.why is not None or self._was_ended:
                return self._end_stopped()
            if isinstance(died, OverMemory):
                self.why = StopReason.MEMORY
                return self._end_stopped()
            return self._fail(error_codes.CRASHED, f"The stage's process {died}.", alone=self.plan.is_async)
        finally:
            for line in self._throttle.remainder() if self._throttle is not None else ():
                self._write(line)
        if isinstance(outcome, messages.Returned) and (outcome.result.files or self._made or self.secrets):
            reach("attempt.done", self)
            return self._end_as(None) if self.why is StopReason.LOST else await self._publish(outcome)
        return self._end_with(outcome)

    def _end_with(self, outcome: Returned) -> Ending:
        """Of a stage that has left no files."""
        reach("attempt.done", self)
        if self.why is StopReason.LOST:
            return self._end_as(None)
        match outcome:
            case messages.Returned():
                return self._finish(Result(outcome.result.value), outcome.width)
            case messages.Postponed():
                return self._end_as(lifecycle.later, seconds=outcome.seconds, until=outcome.until)
            case messages.Skipped():
                return self._end_as(lifecycle.skip, reason=redact(outcome.reason, self.secrets))
            case messages.Raised() if self.why is not None:
                return self._end_stopped()
            case messages.Raised():
                is_over = self.plan.memory is not None and outcome.code == error_codes.OUT_OF_MEMORY
                is_last = outcome.permanent or (is_over and "memory" not in self.plan.retry_on)
                return self._fail(outcome.code, outcome.message, permanent=is_last, detail=outcome.detail)

    async def _call_stage(self) -> Returned:
        if isinstance(self._returned, Exception):
            raise self._returned
        if self._returned is not None:
            return self._returned
        self._is_preparing = True
        try:
            parameters, arguments, previous, child = await self._prepare()
        except asyncio.CancelledError:
            if self.why is None or self.task is None or self.task.uncancel():
                raise  # not only this stage is cancelled, but the task
            raise ChildDied("was not given the stage, which had been ended before") from None
        finally:
            self._is_preparing = False
        try:
            if self.why is not None:
                raise ChildDied("was not given the stage, which had been ended before")
            self._send(child, self._message(child.number(), parameters, arguments, previous))
            assert self._call is not None
            outcome = await self._call.outcome
        except ChildStuck as error:
            self.stuck = error.child
            raise
        finally:
            self._detach(child)
        self._note_scratch(outcome)
        return outcome

    def _send(self, child: Child, message: messages.Run, then: Then | None = None) -> None:
        self._call = child.run(message, self, then)
        self.child = child
        self.began = self.moved_at = time.monotonic()
        self.is_sent = True
        reach("attempt.sent", self)

    def _detach(self, child: Child) -> None:
        """From here on another attempt may have the child: stopping this one must not end that one."""
        self._was_ended = child.is_ending
        self.child = self._call = None
        self._resources.pool.give_back(child)

    def _note_scratch(self, outcome: Returned) -> None:
        if isinstance(outcome, messages.Returned):
            self._may_have_scratch = outcome.has_scratch or self._has_inputs

    def _gather_inputs(self) -> tuple[Inputs, messages.Document, tuple[messages.Argument, ...]]:
        inputs = Inputs(self._resources.source(self.claim), self._scratch)
        parameters = self._decrypt(inputs.parameters(self.claim))
        arguments = inputs.arguments(self.claim)
        size = len(parameters.value)
        for argument in arguments:
            size += sum([len(value.value) for value in argument.values])
        if size > MOST:
            raise errors.InvalidInput(
                f"What the stage needs has {size} bytes besides files; at most {MOST} can be given to it."
            )
        return inputs, parameters, arguments

    async def _prepare(self) -> tuple[messages.Document, tuple[messages.Argument, ...], bytes, Child]:
        inputs, parameters, arguments = self._gather_inputs()
        user = self._resources.user
        self._has_inputs = inputs.has_files or user is not None
        if user is not None:  # that user may not create it
            os.mkdir(self._scratch, 0o700)
        await inputs.fetch()
        if user is not None:
            await asyncio.to_thread(files.give_to, self._scratch, user)
        previous = (
            b"" if self.claim.job.firing is None else await previous_result(self._resources.store, self.claim.job)
        )
        pool = self._resources.pool
        owner = self._owner()
        is_shared = may_share(self.plan) and not self.is_alone and not owner
        return parameters, arguments, previous, await (pool.shared() if is_shared else pool.single(owner))

    def _owner(self) -> str:
        """Whose stages alone may run in the same process; empty if any may."""
        job, per = self.claim.job, self._resources.settings.process_per
        if per == "worker":
            return ""
        return job.id if per == "job" else f"tenant {job.tenant}"

    def _decrypt(self, parameters: messages.Document) -> messages.Document:
        job = self.claim.job
        if not job.plan.secrets:
            return parameters
        encryptor = get_encryptor(self._resources.settings.secret_key)
        plain = encryptor.decrypt(parameters.value, job.plan, job.tenant)
        self.secrets = secret_forms(plain, job.plan.secrets)
        return replace(parameters, value=plain)

    def _message(
        self, number: int, parameters: messages.Document, arguments: tuple[messages.Argument, ...], previous: bytes
    ) -> messages.Run:
        job = self.claim.job
        return messages.Run(
            call=number,
            kind=self.plan.kind,
            job_id=job.id,
            user_id=job.user,
            trace_id=job.trace_id,
            attempt=self.number,
            element=self.claim.task.element,
            scratch=self._scratch,
            parameters=parameters,
            arguments=arguments,
            limit=self._resources.settings.result_limit,
            memory=self.plan.memory,
            artifacts=self._resources.settings.artifacts_limit,
            secrets=job.plan.secrets,
            schedule=None if job.firing is None else job.firing.schedule,
            tick=0.0 if job.firing is None else job.firing.tick,
            previous=previous,
        )

    async def _publish(self, returned: messages.Returned) -> Ending:
        value = self._redact(returned.result)
        if len(self._made) + len(value.files) > (limit := self._resources.settings.artifacts_limit):
            return self._fail(error_codes.TOO_MANY_ARTIFACTS, error_codes.too_many_artifacts(limit), permanent=True)
        try:
            target = self._resources.target(self.claim)
            result = await files.publish(target, self.claim, self._scratch, value, self._made, self._resources.user)
        except errors.BlobError as error:
            await self._discard()
            return self._fail(error_codes.BLOB_UNAVAILABLE, f"The stage's files cannot be stored: {error}")
        except errors.InvalidInput as error:
            await self._discard()
            return self._fail(error_codes.INVALID_RESULT, str(error), permanent=True)
        return self._finish(result, returned.width)

    def _finish(self, result: Result, width: int | None) -> Ending:
        reach("attempt.published", self)
        return self._end_as(lifecycle.finish, handoff=self._handoff, result=result, width=width)

    def _redact(self, document: messages.Document) -> messages.Document:
        if not self.secrets:
            return document
        value = json.encode(redact_json(json.decode(document.value), self.secrets))
        return messages.Document(
            value, tuple([(path, redact_filename(name, self.secrets)) for path, name in document.files])
        )

    def _end_stopped(self) -> Ending:
        """Of an attempt whose process we ended, because of itself or of another stage in the same process."""
        match self.why:
            case StopReason.LOST:
                return self._end_as(None)
            case StopReason.TIMEOUT:
                is_last = "timeout" not in self.plan.retry_on
                return self._end_failed(replace(lifecycle.TIMED_OUT, permanent=is_last), name="time_out")
            case StopReason.STALLED:
                return self._end_failed(lifecycle.STALLED, name="stall")
            case StopReason.MEMORY:
                message = error_codes.over_memory(self.plan.memory or 0)
                return self._fail(error_codes.OUT_OF_MEMORY, message, permanent="memory" not in self.plan.retry_on)
        return self._end_as(lifecycle.hand_back)

    def _fail(
        self, code: str, message: str, *, permanent: bool = False, detail: str = "", alone: bool = False
    ) -> Ending:
        code, message, detail = (redact(text, self.secrets) for text in (code, message, detail))
        return self._end_failed(Failure(code, message, permanent=permanent, detail=detail or None), alone=alone)

    def _end_failed(self, error: Failure, *, name: str = "fail", alone: bool = False) -> Ending:
        facts = {"error": error, "luck": self._resources.luck(), "alone": alone}
        fault = f"{error.code}: {error.message}"
        return Ending(self.lease, self._resources.store.now, lifecycle.fail, name, facts, fault)

    def _break(self, error: Exception) -> Ending:
        log.attempt_broke(self.lease, error)
        return self._fail(error_codes.INTERNAL, f"packhorse could not carry this attempt: {error!r}")

    def _end_as(self, verb: Callable[..., Change] | None, *, handoff: Handoff | None = None, **facts: Any) -> Ending:
        name = LOST if verb is None else verb.__name__
        return Ending(self.lease, self._resources.store.now, verb, name, facts, handoff=handoff)

    async def _commit(self, ending: Ending) -> Outcome:
        """The token names the change: after a lost answer, it is looked up before anything else is done."""
        if ending.verb is None:
            return Outcome(LOST)
        may_be_made = False
        while True:
            try:
                if (refusal := self._refusal) is not None:
                    self._refusal = None
                    raise refusal
                job = await self._resources.transact(self.lease.job_id, ending.decide, change_id=self.lease.token)
            except (errors.LeaseLost, errors.Refused):
                log.attempt_came_late(self.lease)
                if not may_be_made:  # else a server that lags behind may have refused what another one has made
                    await self._discard()
                return Outcome(LOST, ending.fault)
            except (errors.CorruptRecord, errors.SchemaTooNew) as error:  # trying again would not help
                log.attempt_broke(self.lease, error)
                return Outcome(ending.name, ending.fault)
            except (errors.StoreError, errors.Conflict) as error:  # keep the slot: the next stage may have it by now
                may_be_made = may_be_made or isinstance(error, errors.UnknownOutcome)
                await asyncio.sleep(PATIENCE)
            else:
                return ending.outcome(job)

    async def _discard(self) -> None:
        """Delete what it has published: nothing refers to it. What cannot be deleted now, a sweep finds."""
        with contextlib.suppress(errors.BlobError):
            prefix = artifacts.output_prefix(self.lease.job_id, self.lease.task.stage, self.lease.token)
            await self._resources.blobs.delete_all(prefix)

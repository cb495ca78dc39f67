"""One attempt at one task: from the claim to the settled outcome."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from packhorse.blobs.base import Blobs
from packhorse.core import error_codes, json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Failure, Job, Result
from packhorse.core.redaction import redact, redact_json, secret_forms
from packhorse.crashpoints import reach
from packhorse.errors import (
    BlobError,
    Conflict,
    CorruptRecord,
    DefinitionError,
    InvalidInput,
    LeaseLost,
    NoSecretKey,
    Refused,
    SchemaTooNew,
    SecretUnreadable,
    StoreError,
)
from packhorse.jobs import artifacts
from packhorse.jobs.encryption import Encryptor
from packhorse.jobs.transact import Transactor, Verb
from packhorse.log import log
from packhorse.store.base import Claim, Lease, Line, Report
from packhorse.worker import outputs
from packhorse.worker.child.messages import (
    FRAME,
    Argument,
    Document,
    Made,
    Moved,
    Postponed,
    Raised,
    Returned,
    Run,
    Stop,
)
from packhorse.worker.handoff import Heir
from packhorse.worker.inputs import Inputs
from packhorse.worker.outputs import redact_filename
from packhorse.worker.pool import Pool, may_share
from packhorse.worker.process import Call, Child, ChildDied
from packhorse.worker.reporter import Reporter, Throttle

MOST = FRAME - 1024 * 1024
"""Bytes of values a stage can be handed: what fits into one message, with room for the rest of it."""
PATIENCE = 1.0
"""Seconds between tries to tell a store that is away how the attempt ended."""


async def _nothing(_: Job) -> bytes:
    return b""


LOST = "lost"
"""The outcome of an attempt that nobody hears of any more."""


class Why(Enum):
    """Why we ended an attempt that would have gone on."""

    LOST = "its lease was lost"
    STOPPED = "its job is being stopped"
    TIMEOUT = "it took too long"
    STALLED = "it reported no progress for too long"
    MEMORY = "it used too much memory"
    LEAVING = "its worker is leaving"


class Tools:
    """What every attempt of a worker works with."""

    def __init__(
        self, *, blobs: Blobs, transact: Transactor, pool: Pool, reporter: Reporter, scratch: Path,
        now: Callable[[], float], luck: Callable[[], float], grace: float, result_limit: int, log_rate: int,
        encryptor: Encryptor, heir: Callable[[Claim], Heir | None] = lambda _: None,
        begin: Callable[[Claim], object] = lambda _: None,
        recall: Callable[[Job], Awaitable[bytes]] = _nothing,
    ) -> None:  # fmt: skip
        self.blobs = blobs
        self.transact = transact
        self.pool = pool
        self.reporter = reporter
        self.scratch = scratch
        self.now = now
        self.luck = luck
        self.grace = grace
        self.result_limit = result_limit
        self.log_rate = log_rate
        self.encryptor = encryptor
        self.heir = heir
        self.begin = begin
        self.recall = recall


class Attempt:
    def __init__(self, claim: Claim, tools: Tools) -> None:
        task = claim.job.task(claim.task)
        assert task is not None
        self.claim = claim
        self.plan = claim.job.plan.stage(claim.task.stage)
        self.lease = Lease(claim.job.id, claim.task, task.token or "")
        self.number = task.attempt
        self.is_alone = task.is_alone
        self.began = self.moved_at = time.monotonic()
        self.has_returned = False
        """The stage is through and its files are stored: only the outcome is still to be told."""
        self.outcome = LOST
        self.fault = ""
        """What was wrong, if it failed."""
        """The verb that said how it ended."""
        self.why: Why | None = None
        self.child: Child | None = None
        """The process that runs it, for as long as it does."""
        self.leaves_more = False
        """Whether its end may have made due what nobody has begun: it is there to be claimed at once."""
        self.task: asyncio.Task[Any] | None = None
        self._has_inputs = False
        self._was_ended = False
        self._is_preparing = False
        self.is_sent = False
        """Whether its process has been given the stage: until then its inputs are brought and the app is loaded."""
        self._call: Call | None = None
        """While it runs. Forgotten then: the two refer to each other, and would wait for the cyclic collector."""
        self._tools = tools
        self._made: list[Made] = []
        self._heir: tuple[Heir, Result] | None = None
        self._free: Callable[[], None] | None = None
        self._has_spoken = False
        self._throttle: Throttle | None = None
        """Of its output, from the first line on: most say nothing."""
        self._scratch = f"{tools.scratch}/{task.token}"
        self._may_have_scratch = True
        """Until the child says that it was of no use to the stage, and unless there are inputs in it."""
        self._ending: asyncio.Task[None] | None = None
        self.secrets: tuple[str, ...] = ()
        """What is taken out of all that is written down of it."""

    async def carry(self, free: Callable[[], None] = lambda: None) -> None:
        """Run the stage and commit how it ended. Raises nothing: whatever goes wrong is an outcome.

        ``free`` is called once, as soon as the slot is free: at once, or when it is known what takes it over.
        """
        self.task = asyncio.current_task()
        self._free = free
        reach("attempt.claimed")
        try:
            verb = await self._outcome()
            self.has_returned = True
            if self._heir is None:
                self._leave_slot()
            if self._has_spoken:  # what it had to say is written before anybody hears that it has ended
                await self._tools.reporter.flush()
            if verb is not None:
                await self._tell(verb)
        except Exception as error:  # broad: a fault of ours must end as a failed attempt, not as a silent lease
            log.attempt_broke(self.lease, error)
            await self._tell(self._fail(error_codes.INTERNAL, f"packhorse could not carry this attempt: {error!r}"))
        finally:
            self.has_returned = True
            self._leave_slot()
            reach("attempt.settled")
            if self._ending is not None:
                await self._ending
            if self._may_have_scratch and os.path.lexists(self._scratch):  # noqa: ASYNC240 (a question to the kernel)
                await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def _leave_slot(self) -> None:
        if self._free is not None:
            self._free()
            self._free = None

    def stop(self, why: Why) -> None:
        """End it now. The first reason counts."""
        if self.why is not None or self.has_returned:
            if why is Why.LOST:
                self.why = why
            return
        self.why = why
        if self._is_preparing and self.task is not None:
            self.task.cancel()
        if self.child is not None:
            self._ending = asyncio.create_task(self._end(self.child, self._call))

    async def _end(self, child: Child, call: Call | None) -> None:
        """A shared process gets the chance to end this call alone before all of it has to go."""
        if child.is_shared and call is not None:
            child.send(Stop(call.number))
            done, _ = await asyncio.wait([call.outcome], timeout=self._tools.grace)
            if done:
                return
        await self._tools.pool.end(child)

    # What the stage says while it runs.

    def moved(self, message: Moved) -> None:
        self.moved_at = time.monotonic()
        self._has_spoken = True
        who = self.lease
        run, now = self.claim.job.run, self._tools.now()
        # What is no number cannot be stored, and would keep everybody's reports of the same moment out.
        current = message.current if math.isfinite(message.current) else 0.0
        total = message.total if message.total is not None and math.isfinite(message.total) else None
        said = redact(message.message, self.secrets)
        self._tools.reporter.report(Report(who.job_id, who.task, who.token, run, now, current, total, said))

    def made(self, message: Made) -> None:
        self._made.append(replace(message, name=redact_filename(message.name, self.secrets)))

    def said(self, text: str) -> None:
        if self._throttle is None:
            self._throttle = Throttle(self._tools.log_rate)
        for line in self._throttle.admit(text):
            self._write(line)

    def _write(self, text: str) -> None:
        self._has_spoken = True
        text = redact(text, self.secrets)
        self._tools.reporter.line(Line(self.lease.job_id, self.lease.task, self.number, self._tools.now(), text))

    # How it ends.

    async def _outcome(self) -> Verb | None:
        """The verb that says how the attempt ended, None if nobody wants to hear it."""
        if self.claim.trouble is not None:
            return self._fail(error_codes.CORRUPT, str(self.claim.trouble), permanent=True)
        try:
            outcome = await self._run()
        except BlobError as error:
            return self._fail(error_codes.BLOB_UNAVAILABLE, f"The stage's inputs cannot be had: {error}")
        except InvalidInput as error:
            return self._fail(error_codes.ARGUMENTS_TOO_LARGE, str(error), permanent=True)
        except (SecretUnreadable, NoSecretKey) as error:
            return self._fail(error_codes.SECRET_UNREADABLE, str(error))
        except DefinitionError as error:
            if self.why is not None:  # its process was ended before it had loaded the app
                return self._ended()
            self._write(f"The stage waits for a worker that can load it: {error}")
            return self._does(lifecycle.hand_back)
        except ChildDied as died:
            if self.why is not None or self._was_ended:
                return self._ended()
            return self._fail(error_codes.CRASHED, f"The stage's process {died}.", alone=self.plan.is_async)
        finally:
            for line in self._throttle.remainder() if self._throttle is not None else ():
                self._write(line)
        reach("attempt.done")
        if self.why is Why.LOST:
            return None
        match outcome:
            case Returned():
                return await self._publish(outcome)
            case Postponed():
                return self._does(lifecycle.later, seconds=outcome.seconds)
            case Raised() if self.why is not None:
                return self._ended()
            case Raised():
                return self._fail(outcome.code, outcome.message, permanent=outcome.permanent, detail=outcome.detail)

    async def _run(self) -> Returned | Raised | Postponed:
        self._is_preparing = True
        try:
            parameters, arguments, previous, child = await self._prepare()
        except asyncio.CancelledError:
            if self.why is None or self.task is None or self.task.uncancel():
                raise  # somebody else wants more than that this stage is not begun
            raise ChildDied("was not given the stage, which had been ended before") from None
        finally:
            self._is_preparing = False
        try:
            if self.why is not None:
                raise ChildDied("was not given the stage, which had been ended before")
            self.child = child
            self.began = self.moved_at = time.monotonic()
            self._call = child.run(self._message(child.number(), parameters, arguments, previous), self)
            self.is_sent = True
            reach("attempt.sent")
            outcome = await self._call.outcome
            if isinstance(outcome, Returned):
                self._may_have_scratch = outcome.has_scratch or self._has_inputs
            return outcome
        finally:
            # From here on the child may be another attempt's: nothing that befalls this one may befall it.
            self._was_ended = child.is_ending
            self.child = self._call = None
            self._tools.pool.give_back(child)

    async def _prepare(self) -> tuple[Document, tuple[Argument, ...], bytes, Child]:
        inputs = Inputs(self._tools.blobs, self._scratch)
        parameters = self._opened(inputs.parameters(self.claim))
        arguments = inputs.arguments(self.claim)
        size = len(parameters.value) + sum(len(value.value) for each in arguments for value in each.values)
        if size > MOST:
            raise InvalidInput(
                f"What the stage needs has {size} bytes besides files; at most {MOST} can be given to it."
            )
        self._has_inputs = inputs.are_files
        await inputs.bring()
        previous = await self._tools.recall(self.claim.job) if self.claim.job.firing is not None else b""
        return parameters, arguments, previous, await self._borrow()

    def _opened(self, parameters: Document) -> Document:
        job = self.claim.job
        if not job.plan.secrets:
            return parameters
        opened = self._tools.encryptor.open(parameters.value, job.plan, job.tenant)
        self.secrets = secret_forms(opened, job.plan.secrets)
        return replace(parameters, value=opened)

    def _message(self, number: int, parameters: Document, arguments: tuple[Argument, ...], previous: bytes) -> Run:
        job = self.claim.job
        return Run(
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
            limit=self._tools.result_limit,
            secrets=job.plan.secrets,
            schedule=None if job.firing is None else job.firing.schedule,
            tick=0.0 if job.firing is None else job.firing.tick,
            previous=previous,
        )

    async def _borrow(self) -> Child:
        if may_share(self.plan) and not self.is_alone:
            return await self._tools.pool.shared()
        return await self._tools.pool.single()

    async def _publish(self, returned: Returned) -> Verb:
        value = self._redacted(returned.result)
        try:
            result = await outputs.publish(self._tools.blobs, self.claim, self._scratch, value, self._made)
        except BlobError as error:
            await self._discard()
            return self._fail(error_codes.BLOB_UNAVAILABLE, f"The stage's files cannot be stored: {error}")
        except InvalidInput as error:
            await self._discard()
            return self._fail(error_codes.INVALID_RESULT, str(error), permanent=True)
        reach("attempt.published")
        finish = self._does(lifecycle.finish, result=result, width=returned.width)
        heir = self._tools.heir(self.claim)
        if heir is None:
            return finish
        self._heir = heir, result
        return heir.after(finish)

    def _redacted(self, document: Document) -> Document:
        if not self.secrets:
            return document
        value = json.encode(redact_json(json.decode(document.value), self.secrets))
        return Document(value, tuple([(path, redact_filename(name, self.secrets)) for path, name in document.files]))

    def _ended(self) -> Verb | None:
        """What to tell of an attempt whose process we ended, for its own sake or for a neighbour's."""
        match self.why:
            case Why.LOST:
                return None
            case Why.TIMEOUT:
                return self._does(lifecycle.time_out, luck=self._tools.luck())
            case Why.STALLED:
                return self._does(lifecycle.stall, luck=self._tools.luck())
            case Why.MEMORY:
                return self._fail(
                    error_codes.OUT_OF_MEMORY, f"The stage used more than its {(self.plan.memory or 0) >> 20} MiB."
                )
        return self._does(lifecycle.hand_back)

    def _fail(self, code: str, message: str, *, permanent: bool = False, detail: str = "", alone: bool = False) -> Verb:
        code, message, detail = (redact(text, self.secrets) for text in (code, message, detail))
        self.fault = f"{code}: {message}"
        error = Failure(code, message, permanent=permanent, detail=detail or None)
        return self._does(lifecycle.fail, error=error, luck=self._tools.luck(), alone=alone)

    def _does(self, verb: Callable[..., Change], **facts: Any) -> Verb:
        self.outcome = verb.__name__
        return lambda job: verb(job, self.lease.task, token=self.lease.token, now=self._tools.now(), **facts)

    async def _tell(self, verb: Verb) -> None:
        """Commit it, however long the store is away. The token names the change: a lost answer is looked up."""
        while True:
            try:
                job = await self._tools.transact(self.lease.job_id, verb, change_id=self.lease.token)
            except (LeaseLost, Refused):
                self.outcome = LOST
                log.attempt_came_late(self.lease)
                await self._discard()
            except (CorruptRecord, SchemaTooNew) as error:  # nothing will come of trying again
                log.attempt_broke(self.lease, error)
            except (StoreError, Conflict):  # what may have been started has this slot, and nothing else can be claimed
                await asyncio.sleep(PATIENCE)
                continue
            else:
                self._bequeath(job)
            return

    def _bequeath(self, job: Job) -> None:
        """Give the slot to what follows, if it was started: nobody else gets in between."""
        has_begun = False
        if self._heir is not None:
            heir, result = self._heir
            claim = heir.claim(job, result)
            if claim is not None:
                has_begun = True
                self._leave_slot()
                self._tools.begin(claim)
        is_alone = has_begun and len(job.plan.followers[self.plan.name]) == 1
        self.leaves_more = not job.status.is_terminal and not is_alone

    async def _discard(self) -> None:
        """Nothing refers to what this attempt has published. If it cannot be deleted now, a sweep will."""
        with contextlib.suppress(BlobError):
            prefix = artifacts.output_prefix(self.lease.job_id, self.lease.task.stage, self.lease.token)
            await self._tools.blobs.delete_all(prefix)

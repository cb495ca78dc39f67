"""Admits jobs, one or many: objects first, the record second, and nothing left behind by a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypedDict, Unpack

import uuid_utils
from msgspec.structs import replace

from packhorse import errors
from packhorse.blobs.base import Blobs, Sum
from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Firing, Input, Job, Spec, Stored
from packhorse.core.plan import Plan, Status, fill_plan, fingerprint
from packhorse.core.records import Put
from packhorse.core.schedules import Run
from packhorse.crashpoints import reach
from packhorse.define.files import ANYTHING, Accepts, sanitize_name
from packhorse.define.signatures import HEAD
from packhorse.define.submit import Options
from packhorse.define.validation import find_nul, invalid
from packhorse.jobs import artifacts
from packhorse.jobs.encryption import get_encryptor
from packhorse.jobs.transact import Transactor
from packhorse.log import new_trace, trace_id
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.collections.replacements import Replacement, drop_replacement, put_replacement
from packhorse.store.collections.webhooks import webhook_targets

DEBOUNCE = "debounce"
"""Records of the job that waits for another submit with its key."""

MOST = 1000
"""Jobs that are submitted together: they share a commit."""
AT_ONCE = 8
"""Jobs of a batch whose files are stored at the same time."""
TURN = 50
"""Jobs decided in a row before others get their turn in the event loop."""

PAGE = 100
"""Jobs in the line of a slot that are read at first."""
ENDED = (errors.JobNotFound, errors.NotAllowed, errors.CorruptRecord, errors.SchemaTooNew)
"""There is nothing to cancel, or nobody can."""
BEING_DELETED = "The job of this idempotency key is being deleted; the key is free again when it is gone."


class Facts(TypedDict, total=False):
    """Where a job comes from."""

    tenant: str
    client: str | None
    client_name: str
    """What the job names its client by; empty: by its id."""
    origin: str
    run: Run | None
    """The run of a schedule: raises `Conflict` if another worker has decided it."""


class NewJob:
    """A job that is being submitted: its files are stored first. An exception removes the files again.

    Except when it is unknown whether the job was stored: after `UnknownOutcome`, or when the caller was cancelled
    during the commit. Then the files are left to the sweep, which looks the job up.
    """

    def __init__(self, store: Store, blobs: Blobs, settings: Settings) -> None:
        self.job_id = str(uuid_utils.uuid7())
        self.inputs: list[Input] = []
        self._store = store
        self._blobs = blobs
        self._settings = settings
        self._counts: dict[str, int] = {}
        self._has_files = False
        self.is_kept = False
        """Whether its files stay: those of a stored job, or of one that may be stored."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None
    ) -> None:
        if self._has_files and not self.is_kept:
            with suppress(errors.BlobError):  # the sweep removes what cannot be removed now
                await self._blobs.delete_all(f"jobs/{self.job_id}")

    async def upload(
        self, parameter: str, name: str, chunks: AsyncIterator[bytes], accepts: Accepts = ANYTHING
    ) -> dict[str, int]:
        """Store a file; return what stands for it in the parameters."""
        key, name = self._key_for(parameter, name)
        summed = await self._blobs.put(key, chunks, limit=accepts.limit(self._settings.file_limit))
        return self._add_input(parameter, name, key, summed)

    async def take(self, parameter: str, path: Path, name: str) -> dict[str, int]:
        """The same for a local file."""
        key, name = self._key_for(parameter, name)
        if path.stat().st_size > self._settings.file_limit:  # noqa: ASYNC240 (a stat)
            raise errors.TooLarge(field=parameter, limit=self._settings.file_limit)
        return self._add_input(parameter, name, key, await self._blobs.put_file(key, path))

    async def copy(self, parameter: str, file: Stored, accepts: Accepts = ANYTHING) -> dict[str, int]:
        """The same for a file of an earlier job."""
        key, name = self._key_for(parameter, file.name)
        accepts.check(parameter, name, file.content_type)
        if file.size > accepts.limit(self._settings.file_limit):
            raise errors.TooLarge(field=parameter, limit=accepts.limit(self._settings.file_limit))
        if accepts.kinds and accepts.content:
            head = b"".join([piece async for piece in self._blobs.read(file.key, length=min(HEAD, file.size))])
            accepts.check_content(parameter, name, file.content_type, head)
        await self._blobs.copy(file.key, key)
        return self._add_input(parameter, name, key, file)

    async def admit(self, plan: Plan, parameters: bytes, options: Options, **facts: Unpack[Facts]) -> Job:
        """Commit the job, with the facts that `decide` takes. Raises why it is refused.

        For an idempotency key that this client has used before, return the first job.
        """
        [found] = await admit_all(self._store, [await self.decide(plan, parameters, options, **facts)])
        if isinstance(found, errors.PackhorseError):
            raise found
        return found

    async def decide(
        self,
        plan: Plan,
        parameters: bytes,
        options: Options,
        *,
        tenant: str = "default",
        client: str | None = None,
        client_name: str = "",
        origin: str = "api",
        run: Run | None = None,
    ) -> Draft:
        """The job as it will be committed. Its files are stored."""
        if len(parameters) > self._settings.parameters_limit:
            raise errors.TooLarge(field="parameters", limit=self._settings.parameters_limit)
        _refuse_nul(tenant, parameters)
        reach("admit.objects.after")
        waiting = None
        if options.debounce:
            if plan.slot is not None:
                raise errors.InvalidInput(
                    "debounce: the pipeline has one_per, whose on_conflict says what a second submit does.",
                    field="debounce",
                )
            key = lifecycle.once_key(tenant, client, options.key or "")
            waiting = await Waiting.read(self._store, f"{plan.pipeline}/{key}")
        replaces = None
        if plan.slot is not None and plan.on_conflict == "replace":
            replaces = Replacement(self.job_id, slot=lifecycle.slot_key(tenant, options.user, plan.slot))
        elif waiting is not None and waiting.job_id is not None:
            replaces = Replacement(self.job_id, waiting=waiting.job_id)
        given = plan
        plan = fill_plan(plan, self._settings.defaults)
        stored = spec = Spec(parameters, tuple(self.inputs), options.metadata, origin)
        if plan.secrets:
            encryptor = get_encryptor(self._settings.secret_key)
            stored = replace(spec, parameters=encryptor.encrypt(parameters, plan, tenant))
        fingerprint = ""  # needed only with an idempotency key
        if options.key is not None:
            fingerprint = self._fingerprint(plan, parameters, options)
        change = lifecycle.submit(
            plan,
            stored,
            job_id=self.job_id,
            user=options.user,
            tenant=tenant,
            client=client_name or client,
            priority=options.priority,
            delay=options.debounce or options.delay,
            debounce=None if waiting is None else waiting.put(self.job_id),
            replaces=None if replaces is None else put_replacement(replaces, self._store.now()),
            at=options.at,
            trace_id=trace_id() or new_trace(),
            key=None if options.key is None or options.debounce else lifecycle.once_key(tenant, client, options.key),
            fingerprint=fingerprint,
            webhooks=await webhook_targets(self._store).of(tenant),
            firing=None if run is None else Firing(run.schedule, run.tick),
            stamp=0 if run is None else run.stamp,
            quotas=self._settings.quotas,
            is_searchable=self._settings.is_searchable,
            now=self._store.now(),
        )
        if waiting is None:
            return Draft(self, change, fingerprint, spec, replaces)
        again = partial(
            self.decide, given, parameters, options,
            tenant=tenant, client=client, client_name=client_name, origin=origin,
        )  # fmt: skip
        return Draft(self, change, fingerprint, spec, replaces, again)

    def _key_for(self, parameter: str, name: str) -> tuple[str, str]:
        self._has_files = True  # from now on something may be there
        name = sanitize_name(name)
        return artifacts.input_key(self.job_id, parameter, self._counts.get(parameter, 0), name), name

    def _add_input(self, parameter: str, name: str, key: str, summed: Sum | Stored) -> dict[str, int]:
        stored = Stored(key, name, summed.size, summed.sha256, artifacts.content_type(name))
        count = self._counts.get(parameter, 0)
        self.inputs.append(Input(parameter, count, stored))
        self._counts[parameter] = count + 1
        return {"$file": len(self.inputs) - 1}

    def _fingerprint(self, plan: Plan, parameters: bytes, options: Options) -> str:
        """Of names, values and file hashes, not of raw bytes: a repeated request may be written differently."""
        values = get_encryptor(self._settings.secret_key).fingerprint_secrets(parameters, plan)
        files: list[Mapping[str, Any]] = [
            {"parameter": each.parameter, "name": each.file.name, "sha256": each.file.sha256} for each in self.inputs
        ]
        asked = [options.user, options.priority, options.delay, options.metadata]
        asked += [] if options.at is None else [options.at]
        return fingerprint([plan.pipeline, values, files, asked])


class Draft(NamedTuple):
    """A job that is decided and not committed."""

    new_job: NewJob
    change: Change
    fingerprint: str
    spec: Spec
    """As it was sent: with its secrets."""
    replaces: Replacement | None = None
    """The jobs to end when this one is there."""
    again: Callable[[], Awaitable[Draft]] | None = None
    """Of a debounced submit: decides again, after another one with its key was faster."""


class Waiting(NamedTuple):
    """The record of the job that waits for another submit with its key, as it was read."""

    id: str
    stamp: int
    job_id: str | None

    @classmethod
    async def read(cls, store: Store, id: str) -> Waiting:
        [found] = await store.fetch(DEBOUNCE, [id])
        return cls(id, 0, None) if found is None else cls(id, found.stamp, json.record(found.body, str))

    def put(self, job_id: str) -> Put:
        return Put(DEBOUNCE, self.id, json.encode(job_id), self.stamp, job_id=job_id)


class Admitted(NamedTuple):
    job: Job
    draft: Draft

    @property
    def is_new(self) -> bool:
        """Not if its idempotency key was used before: then it is the first job of that key."""
        return self.job.id == self.draft.change.after.id


async def submit_all(
    make: Callable[[], NewJob], decide: Sequence[Callable[[NewJob], Awaitable[Draft]]], store: Store
) -> list[Admitted | Exception]:
    """Submit these jobs with one commit: each is admitted or refused by itself, in their order.

    An error that is no `PackhorseError` is the outcome of its job, too.
    """
    found: list[Admitted | Exception | None] = [None] * len(decide)
    drafts: dict[int, Draft] = {}
    left = iter(enumerate(decide))
    async with AsyncExitStack() as stack:

        async def work() -> None:
            for n, each in left:
                if n % TURN == TURN - 1:
                    await asyncio.sleep(0)
                try:
                    drafts[n] = await each(await stack.enter_async_context(make()))
                except Exception as error:  # broad: an error of one job must not take its neighbours along
                    found[n] = error

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(decide))):
                group.create_task(work())
        order = sorted(drafts)
        for n, job in zip(order, await admit_all(store, [drafts[n] for n in order]), strict=True):
            found[n] = job if isinstance(job, Exception) else Admitted(job, drafts[n])
    return [each for each in found if each is not None]


async def admit_all(store: Store, drafts: Sequence[Draft]) -> list[Job | errors.PackhorseError]:
    """Commit them together. For an idempotency key that the client has used before, the first job."""
    found = await _commit_all(store, drafts)
    for n, draft in enumerate(drafts):
        if draft.again is not None or draft.replaces is not None:
            found[n] = await _replace(store, draft, found[n])
    return found


async def _replace(store: Store, draft: Draft, found: Job | errors.PackhorseError) -> Job | errors.PackhorseError:
    while isinstance(found, errors.Conflict) and draft.again is not None:
        draft = await draft.again()
        [found] = await _commit_all(store, [draft])
    if isinstance(found, Job) and draft.replaces is not None and found.id == draft.change.after.id:
        reach("admit.replace.before")
        with suppress(errors.StoreError):  # the job is there; a worker ends the others soon
            await replace_others(store, draft.replaces)
    return found


async def replace_others(store: Store, replacement: Replacement) -> None:
    """End the jobs that the new one replaces, and forget that they are to be ended. May be done twice."""
    transact = Transactor(store)
    if replacement.slot is not None:
        # The latest first: who is handed the slot when the active job ends should not start before it is cancelled.
        for each in reversed(await _ahead(store, replacement.by, replacement.slot)):
            with suppress(*ENDED):
                await transact(each, lambda job: lifecycle.cancel(job, now=store.now(), replaced_by=replacement.by))
    if replacement.waiting is not None:
        await _drop_waiting(store, transact, replacement.waiting)
    await drop_replacement(store, replacement)


async def _ahead(store: Store, job_id: str, slot: str) -> list[str]:
    """Who holds the slot and who waits for it before this job; nobody if it does not wait any more."""
    limit = PAGE
    while True:
        line = await store.line(slot, limit=limit)
        if job_id in line:
            return list(takewhile(lambda each: each != job_id, line))
        if len(line) < limit:
            return []
        limit *= 10


async def _drop_waiting(store: Store, transact: Transactor, job_id: str) -> None:
    """Delete a job that a later submit with its key has replaced, unless it has started or was stopped."""
    was_waiting = False

    def decide(job: Job) -> Change | None:
        nonlocal was_waiting
        was_waiting = job.status is Status.PENDING and job.run == 1
        return lifecycle.cancel(job, now=store.now()) if was_waiting else None

    with suppress(*ENDED):
        await transact(job_id, decide)
        if was_waiting:
            await transact(job_id, lambda job: lifecycle.delete(job, now=store.now()))


async def _commit_all(store: Store, drafts: Sequence[Draft]) -> list[Job | errors.PackhorseError]:
    if not drafts:
        return []
    for draft in drafts:
        draft.new_job.is_kept = True  # from here on, only a definite refusal removes the files
    refusals: Sequence[errors.PackhorseError | None]
    try:
        refusals = await store.commit([draft.change for draft in drafts])
    except errors.StoreError as error:
        refusals = [error] * len(drafts)
    if not any(refusals):
        reach("admit.job.after")
        return [draft.change.after for draft in drafts]
    sought: set[str] = set()
    for draft, refusal in zip(drafts, refusals, strict=True):
        draft.new_job.is_kept = refusal is None or isinstance(refusal, errors.UnknownOutcome)
        sought |= {_sought(draft, refusal)} if refusal is not None else set()
    known = await _read(store, sought - {""})
    return [
        draft.change.after if refusal is None else _resolve_refusal(draft, refusal, known)
        for draft, refusal in zip(drafts, refusals, strict=True)
    ]


def _sought(draft: Draft, refusal: errors.PackhorseError) -> str:
    """The id of the job that may be the answer in spite of the refusal."""
    if isinstance(refusal, errors.AlreadySubmitted) and refusal.facts["fingerprint"] == draft.fingerprint:
        return str(refusal.facts["job_id"])
    return draft.change.after.id if isinstance(refusal, errors.UnknownOutcome) else ""


async def _read(store: Store, job_ids: Collection[str]) -> dict[str, Job | errors.StoreError | None]:
    """What cannot be read is the error of its own job."""
    if not job_ids:
        return {}
    try:
        return dict(zip(job_ids, await store.get([*job_ids]), strict=True))
    except errors.CorruptRecord as error:
        if len(job_ids) == 1:
            return dict.fromkeys(job_ids, error)
        return {key: found for each in job_ids for key, found in (await _read(store, [each])).items()}
    except errors.StoreError as error:
        return dict.fromkeys(job_ids, error)


def _resolve_refusal(
    draft: Draft, refusal: errors.PackhorseError, known: Mapping[str, Job | errors.StoreError | None]
) -> Job | errors.PackhorseError:
    if isinstance(refusal, errors.AlreadySubmitted) and refusal.facts["fingerprint"] != draft.fingerprint:
        return errors.KeyReused(field="Idempotency-Key")
    found = known.get(_sought(draft, refusal))
    if isinstance(found, errors.StoreError):
        unknown = errors.UnknownOutcome()
        unknown.__cause__ = found
        return unknown
    if found is not None and found.is_purging and isinstance(refusal, errors.AlreadySubmitted):
        return errors.Conflict(BEING_DELETED)
    return refusal if found is None else found


def _refuse_nul(tenant: str, parameters: bytes) -> None:
    """Checked here because every submit passes through here."""
    found = list(find_nul(tenant, "tenant_id")) if "\0" in tenant else []
    if b"\\u0000" in parameters:  # as JSON writes it, or literally that text
        found += find_nul(json.decode(parameters))
    if found:
        raise invalid("The parameters are not valid", found)

"""Admits a job: objects first, the record second, and nothing left behind by a refusal. Also finds its webhooks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

import uuid_utils

from packhorse import errors
from packhorse.blobs.base import Blobs, Sum
from packhorse.core import json, lifecycle
from packhorse.core.models import Firing, Input, Job, Spec, Stored
from packhorse.core.plan import Plan, fill_plan, fingerprint
from packhorse.core.schedules import Run
from packhorse.crashpoints import reach
from packhorse.define.files import ANYTHING, Accepts, sanitize_name
from packhorse.define.signatures import HEAD
from packhorse.define.submit import Options
from packhorse.define.validation import find_nul, invalid
from packhorse.jobs import artifacts
from packhorse.jobs.encryption import get_encryptor
from packhorse.log import new_trace, trace_id
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.collections.webhooks import Endpoint, list_endpoints

FRESH = 1.0
"""Seconds for which webhooks are cached. A job that is submitted sooner after a webhook was created may miss it."""

BEING_DELETED = "The job of this idempotency key is being deleted; the key is free again when it is gone."


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
        self._is_kept = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None
    ) -> None:
        if not self._is_kept:
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

    async def admit(
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
    ) -> Job:
        """Commit the job. For an idempotency key that this client has used before, return the first job.

        ``client_name``: what the job names its client by; empty: by its id.
        ``run`` is the run of a schedule: raises `Conflict` if another worker has decided it.
        """
        if len(parameters) > self._settings.parameters_limit:
            raise errors.TooLarge(field="parameters", limit=self._settings.parameters_limit)
        _refuse_nul(tenant, parameters)
        reach("admit.objects.after")
        plan = fill_plan(plan, self._settings.defaults)
        stored = parameters
        if plan.secrets:
            stored = get_encryptor(self._settings.secret_key).encrypt(parameters, plan, tenant)
        fingerprint = ""  # needed only with an idempotency key
        if options.key is not None:
            fingerprint = self._fingerprint(plan, parameters, options)
        change = lifecycle.submit(
            plan,
            Spec(stored, tuple(self.inputs), options.metadata, origin),
            job_id=self.job_id,
            user=options.user,
            tenant=tenant,
            client=client_name or client,
            priority=options.priority,
            delay=options.delay,
            trace_id=trace_id() or new_trace(),
            key=None if options.key is None else lifecycle.once_key(tenant, client, options.key),
            fingerprint=fingerprint,
            webhooks=await webhook_targets(self._store).of(tenant),
            firing=None if run is None else Firing(run.schedule, run.tick),
            stamp=0 if run is None else run.stamp,
            quotas=self._settings.quotas,
            now=self._store.now(),
        )
        self._is_kept = True  # from here on, only a definite refusal removes the files
        try:
            [refusal] = await self._store.commit([change])
        except errors.StoreError as error:
            refusal = error
        if refusal is None:
            reach("admit.job.after")
            return change.after
        self._is_kept = isinstance(refusal, errors.UnknownOutcome)
        return await self._resolve_refusal(refusal, fingerprint)

    async def _resolve_refusal(self, refusal: errors.PackhorseError, fingerprint: str) -> Job:
        if isinstance(refusal, errors.AlreadySubmitted):
            if refusal.facts["fingerprint"] != fingerprint:
                raise errors.KeyReused(field="Idempotency-Key")
            first = await self._job(refusal.facts["job_id"])
            if first is not None and first.is_purging:
                raise errors.Conflict(BEING_DELETED)
            if first is not None:
                return first
        if isinstance(refusal, errors.UnknownOutcome):
            made = await self._job(self.job_id)
            if made is not None:
                return made
        raise refusal

    async def _job(self, job_id: str) -> Job | None:
        try:
            [job] = await self._store.get([job_id])
        except errors.StoreError as error:
            raise errors.UnknownOutcome from error
        return job

    def _key_for(self, parameter: str, name: str) -> tuple[str, str]:
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
        return fingerprint([plan.pipeline, values, files, asked])


def _refuse_nul(tenant: str, parameters: bytes) -> None:
    """Checked here because every submit passes through here."""
    found = list(find_nul(tenant, "tenant_id")) if "\0" in tenant else []
    if b"\\u0000" in parameters:  # as JSON writes it, or literally that text
        found += find_nul(json.decode(parameters))
    if found:
        raise invalid("The parameters are not valid", found)


class WebhookTargets:
    """The endpoints that want messages about ended jobs, cached: every submit needs them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: Sequence[Endpoint] | None = None
        self._until = 0.0

    async def all(self) -> Sequence[Endpoint]:
        """Every endpoint that has not ended. During a read, other callers get the cached ones."""
        if self._open is None or time.monotonic() >= self._until:
            self._until = time.monotonic() + FRESH
            return await self.refresh()
        return self._open

    async def refresh(self) -> Sequence[Endpoint]:
        self._open = await list_endpoints(self._store, only_open=True)
        return self._open

    async def of(self, tenant: str) -> tuple[str, ...]:
        return tuple(each.id for each in await self.all() if each.tenant == tenant)


_by_store: WeakKeyDictionary[Store, WebhookTargets] = WeakKeyDictionary()


def webhook_targets(store: Store) -> WebhookTargets:
    """One per store handle."""
    if (found := _by_store.get(store)) is None:
        found = _by_store[store] = WebhookTargets(store)
    return found

"""``POST /jobs``: a request becomes a job. Files go straight to the object store while they arrive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar

from litestar import post
from msgspec import Meta, Struct, field

from packhorse import errors
from packhorse.auth.access import Caller
from packhorse.auth.authenticate import first_header
from packhorse.core import json
from packhorse.core.lifecycle import once_key, slot_key
from packhorse.define.submit import MAX_PRIORITY, Options, options_from
from packhorse.define.validation import NOT_VALID, FieldError, invalid
from packhorse.http.form import BESIDES, MOST_PARTS, Form, too_much
from packhorse.http.middleware import PlainResponse
from packhorse.http.openapi import json_body, response_spec, text_parameter
from packhorse.http.requests import JSON, Body, HttpRequest, convert, decode_object, media_type
from packhorse.http.services import FromCaller, FromServices, HttpServices
from packhorse.jobs import artifacts
from packhorse.jobs.catalog import Published
from packhorse.jobs.input_paths import is_path
from packhorse.jobs.submit import Draft, NewJob, admit_all
from packhorse.schemas.jobs import JobDocument, new_job_to_json

A = TypeVar("A", bound="Asked")

ORIGIN = "api"
FORM = "multipart/form-data"
LONGEST_DELAY = 10 * 366 * 86_400.0
WAIT = re.compile(r'wait\s*=\s*"?(\d{1,9})"?\s*(?:;.*)?', re.IGNORECASE)

REFERENCE = re.compile(r"job:(?P<job_id>[^/]{1,100})/artifacts/(?P<name>.{1,1024})", re.DOTALL)
"""An artifact of an earlier job, in place of a file."""
UNSENT = "A file has to be sent as a part of a form, with a file name, or be named as job:{id}/artifacts/{name}"


class Asked(Struct):
    """A request without its files; the same names in JSON, as parts and as query parameters."""

    pipeline: str | None = None
    user_id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    priority: Annotated[int, Meta(extra_json_schema={"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY})] = 0
    delay: float | str = 0.0
    at: datetime | None = None
    debounce: float | str = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)


PARTS = "The pipeline's parameters, each as a part of its own name: files as files, others as text or JSON."
QUERY = ("pipeline", "user_id")
IDEMPOTENCY_KEY = "Idempotency-Key"
KEY = text_parameter(IDEMPOTENCY_KEY, "header", "The same request with the same key gives the first job again.")
PREFER = text_parameter("Prefer", "header", "`wait=30`: answer when the job has ended, or after that many seconds.")
ENDED = response_spec(JobDocument, JSON, "With `Prefer: wait`, the job if it has ended in time.")
REFUSALS = (
    errors.UnknownPipeline,
    errors.KeyReused,
    errors.SlotTaken,
    errors.TooManyJobs,
    errors.StorageFull,
    errors.UnknownOutcome,
    errors.BlobUnavailable,
)


@post(
    "/jobs",
    scope="submit",
    plain=True,
    status_code=202,
    query=QUERY,
    **json_body(
        Asked,
        *REFUSALS,
        required=True,
        form=PARTS,
        parameters=[*(text_parameter(name, "query") for name in QUERY), KEY, PREFER],
        responses={200: ENDED},
    ),
)
async def submit(request: HttpRequest, services: FromServices, caller: FromCaller) -> PlainResponse[JobDocument]:
    """Submit a job, as JSON or as multipart/form-data with its files."""
    scope = request.scope
    sent = scope["headers"]
    query = dict(request.query_params) if scope["query_string"] else {}
    body = Body(request.receive, services.settings)
    key, content_type = first_header(sent, b"idempotency-key"), first_header(sent, b"content-type") or ""
    is_expecting = first_header(sent, b"expect") is not None
    document = await receive_job(services, caller, body, content_type, query, key, is_expecting=is_expecting)
    headers = {"Location": f"{scope['root_path']}{scope['path'].rstrip('/')}/{document['job_id']}"}
    prefer = first_header(sent, b"prefer")
    seconds = None if prefer is None else preferred_wait(prefer, services.settings.wait_limit)
    if seconds is None:
        return PlainResponse(document, 202, headers)
    headers["Preference-Applied"] = f"wait={seconds:.0f}"
    job = await services.feed.wait_for_end(document["job_id"], seconds, request.receive)
    if job is None:
        return PlainResponse(document, 202, headers)
    document = await services.document(job)
    return PlainResponse(document, 200 if job.status.is_terminal else 202, headers)


def preferred_wait(prefer: str, limit: float) -> float | None:
    """Seconds of ``Prefer: wait=30`` (RFC 7240), at most the limit; None if it is not valid: it may be ignored."""
    for preference in prefer.split(","):
        if found := WAIT.fullmatch(preference.strip()):
            return min(float(found[1]), limit)
    return None


async def receive_job(
    services: HttpServices,
    caller: Caller,
    body: Body,
    content_type: str,
    query: Mapping[str, str],
    key: str | None,
    *,
    is_expecting: bool = False,
    origin: str = ORIGIN,
) -> JobDocument:
    """The job that the body describes, once it is stored. ``origin`` says where it was submitted: an API, a page.

    ``is_expecting``: the client sends the body only after "100 Continue", which reading the body sends.
    """
    try:
        async with NewJob(services.store, services.blobs, services.settings) as new_job:
            return await Submission(services, caller, new_job, query, key, origin).job(body, content_type)
    except Exception:  # any error, also a bug: a client sees the answer only after it has sent the whole body
        if body.is_begun or not is_expecting:
            await body.drain()
        raise


class Submission:
    def __init__(
        self,
        services: HttpServices,
        caller: Caller,
        new_job: NewJob,
        query: Mapping[str, str],
        key: str | None,
        origin: str,
    ) -> None:
        self._services = services
        self._caller = caller
        self._new_job = new_job
        self._query = query
        self._key = key
        self._origin = origin
        self._limit = services.settings.parameters_limit + BESIDES

    async def job(self, body: Body, content_type: str) -> JobDocument:
        kind = media_type(content_type)
        if kind not in (JSON, FORM):
            raise errors.UnsupportedMedia(content_type=kind[:100])
        early = await self._pipeline(self._query["pipeline"]) if "pipeline" in self._query else None
        await self._refuse_early(early)
        if kind == JSON:
            return await self._from_json(early, await self._whole(body))
        return await self._from_form(early, body, content_type)

    async def _pipeline(self, name: str | None) -> Published:
        return await self._services.catalog.get(name, self._caller.app)

    async def _refuse_early(self, pipeline: Published | None) -> None:
        """A taken slot is known before the first byte, unless by a key that may name the very job that holds it.

        The slot is read before the key: both were written in one step, so a reader that sees the first sees the second.
        """
        if pipeline is None or pipeline.plan.slot is None or "user_id" not in self._query:
            return
        if pipeline.plan.on_conflict != "refuse":
            return
        user = self._caller.acting_for(self._query["user_id"])
        holder = await self._services.store.holder(slot_key(self._caller.tenant, user, pipeline.plan.slot))
        if holder is not None and not await self._is_repeated():
            raise errors.SlotTaken(active_job_id=holder)

    async def _is_repeated(self) -> bool:
        if self._key is None:
            return False
        return (
            await self._services.store.find_by_key(once_key(self._caller.tenant, self._client, self._key)) is not None
        )

    async def _whole(self, body: Body) -> bytes:
        try:
            return await body.whole(self._limit)
        except errors.TooLarge as error:
            raise too_much("body", self._services.settings.parameters_limit) from error

    async def _from_json(self, early: Published | None, data: bytes) -> JobDocument:
        return await self._admit(await self.decide(early, self._asked(decode_object(data))))

    async def decide(self, early: Published | None, asked: Asked) -> Draft:
        """The job of a request without a form, not yet committed."""
        pipeline = early or await self._pipeline(asked.pipeline)
        parameters = pipeline.rename_paths(asked.parameters)
        _refuse(self._reference_errors(pipeline, parameters))
        _refuse(pipeline.find_errors(parameters))
        return await self._decide(pipeline, asked, await self._copy_files(pipeline, parameters))

    async def _from_form(self, early: Published | None, body: Body, content_type: str) -> JobDocument:
        form = Form(self._new_job, self._services.settings.parameters_limit, early, self._pipeline)
        await form.read(body, content_type)
        asked = self._asked(form.named())
        pipeline = early or await self._pipeline(asked.pipeline)
        named, stored = form.parameters(pipeline, pipeline.rename_paths(asked.parameters))
        _refuse(self._reference_errors(pipeline, stored))
        _refuse(pipeline.find_errors(named))
        return await self._admit(await self._decide(pipeline, asked, await self._copy_files(pipeline, stored)))

    def _asked(self, given: Mapping[str, Any]) -> Asked:
        return asked_from(given, self._query, Asked)

    def _reference_errors(self, pipeline: Published, values: Mapping[str, Any]) -> list[FieldError]:
        """Texts in place of files that name neither an artifact nor a path that the server may read."""
        if not pipeline.files:
            return []
        texts = list(_file_texts(pipeline, values))
        if len(texts) > MOST_PARTS:
            return [{"field": "parameters", "message": f"No more than {MOST_PARTS} files can be taken at a time"}]
        wrong = {name: message for name, text in texts if (message := self._mistake(text)) is not None}
        return [{"field": name, "message": message} for name, message in sorted(wrong.items())]

    def _mistake(self, text: str) -> str | None:
        if is_path(text):
            return self._services.inputs.mistake(text)
        return None if REFERENCE.fullmatch(text) else UNSENT

    async def _copy_files(self, pipeline: Published, values: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters; each text that names an artifact or a path is replaced by the placeholder of its copy."""
        found = dict(values)
        for name, text in list(_file_texts(pipeline, values)):
            if is_path(text):
                limit = self._services.settings.file_limit
                reference = await self._services.inputs.take(self._new_job, name, text, pipeline.accepts(name), limit)
            else:
                reference = await self._copy_artifact(pipeline, name, text)
            if pipeline.files[name] == "one":
                found[name] = reference
            else:
                found[name] = [*(each for each in found[name] if not isinstance(each, str)), reference]
        return found

    async def _copy_artifact(self, pipeline: Published, name: str, text: str) -> dict[str, int]:
        """A caller that may not read it may not use it; a foreign artifact and a missing one look the same."""
        if "read" not in self._caller.allowed:
            raise errors.Forbidden(scope="read")
        named = REFERENCE.fullmatch(text)
        assert named is not None  # `_reference_errors` has refused others
        try:
            job = await self._services.job(self._caller, named["job_id"])
            file = await artifacts.find_artifact(self._services.store, job.id, named["name"])
            return await self._new_job.copy(name, file, pipeline.accepts(name))
        except (errors.NotFound, errors.BlobNotFound) as error:
            raise invalid(NOT_VALID, [{"field": name, "message": f"There is no {text}"}]) from error

    async def _decide(self, pipeline: Published, asked: Asked, parameters: Mapping[str, Any]) -> Draft:
        return await self._new_job.decide(
            pipeline.plan,
            json.encode(parameters),
            self._options(asked),
            tenant=self._caller.tenant,
            client=self._client,
            client_name=self._caller.client_name,
            origin=self._origin,
        )

    async def _admit(self, draft: Draft) -> JobDocument:
        [job] = await admit_all(self._services.store, [draft])
        if isinstance(job, errors.PackhorseError):
            raise job
        if job.id == self._new_job.job_id:
            self._services.audit.tell("job.submitted", self._caller, job_id=job.id)
            return new_job_to_json(job, draft.spec)
        return await self._services.document(job)  # this key was used before, and that job may have got far

    @property
    def _client(self) -> str | None:
        return self._caller.client or None

    def _options(self, asked: Asked) -> Options:
        try:
            options = options_from(
                user=self._caller.acting_for(asked.user_id),
                priority=asked.priority,
                delay=asked.delay,
                at=asked.at,
                debounce=asked.debounce,
                key=self._key,
                metadata=asked.metadata,
            )
        except errors.InvalidInput as error:
            renamed = [{**each, "field": NAMES.get(each["field"], each["field"])} for each in error.errors]
            raise invalid(NOT_VALID, renamed) from error
        for name, delay in (("delay", options.delay), ("debounce", options.debounce)):
            if delay > LONGEST_DELAY:
                raise invalid(NOT_VALID, [{"field": name, "message": "It is more than ten years"}])
        if options.at is not None and options.at > self._services.store.now() + LONGEST_DELAY:
            raise invalid(NOT_VALID, [{"field": "at", "message": "It is more than ten years from now"}])
        return options


def asked_from(given: Mapping[str, Any], query: Mapping[str, str], shape: type[A]) -> A:
    """A request from its body and its query."""
    _refuse([{"field": name, "message": "This is given twice"} for name in query if name in given])
    return convert({**given, **query}, shape)


def _file_texts(pipeline: Published, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in pipeline.files:
        given = values.get(name)
        for each in given if isinstance(given, list) else [given]:
            if isinstance(each, str):
                yield name, each


NAMES = {"user": "user_id", "key": IDEMPOTENCY_KEY}
"""Fields that Python names differently."""


def _refuse(mistakes: list[FieldError]) -> None:
    if mistakes:
        raise invalid(NOT_VALID, mistakes)

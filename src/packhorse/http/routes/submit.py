"""``POST /jobs``: a request on its way to be a job. Files go straight to the object store while they come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from litestar import Request, post
from litestar.datastructures import State
from msgspec import Meta, Struct, field

from packhorse.auth.access import Caller
from packhorse.auth.authenticate import first_header
from packhorse.core import json
from packhorse.core.lifecycle import once_key, slot_key
from packhorse.core.models import Job, Spec
from packhorse.define.submit import MAX_PRIORITY, Options, options_from
from packhorse.define.validation import NOT_VALID, FieldError, invalid
from packhorse.errors import (
    BlobUnavailable,
    InvalidInput,
    KeyReused,
    SlotTaken,
    TooLarge,
    TooSlow,
    UnknownOutcome,
    UnknownPipeline,
    UnsupportedMedia,
)
from packhorse.http.openapi import answering, beside, refusing, taking
from packhorse.http.requests import artifact_inputs, prefer_wait
from packhorse.http.requests.artifact_inputs import Earlier
from packhorse.http.requests.body import Body
from packhorse.http.requests.form import BESIDES, Form, too_much
from packhorse.http.requests.json_body import JSON, converted, kind_of, members
from packhorse.http.responses.raw_response import Answer
from packhorse.http.services import Tools, tools_and_caller
from packhorse.jobs.catalog import Published
from packhorse.jobs.submit import Intake
from packhorse.schemas.jobs import JobDocument, new_job_to_json

ORIGIN = "api"
FORM = "multipart/form-data"

LONGEST_DELAY = 10 * 366 * 86_400.0


class Asked(Struct):
    """What a request says besides its files; the same names in JSON, as parts and as query parameters."""

    pipeline: str | None = None
    user_id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    priority: Annotated[int, Meta(extra_json_schema={"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY})] = 0
    delay: float | str = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)


PARTS = "The pipeline's parameters, each as a part of its own name: files as files, others as text or JSON."

QUERY = ("pipeline", "user_id")
KEY = beside("Idempotency-Key", "header", "The same key and request again give the job it gave first.")
PREFER = beside("Prefer", "header", "`wait=30`: answer when the job has ended, at most so many seconds.")

ENDED = answering(JobDocument, JSON, "With `Prefer: wait`, the job if it has ended in time.")


REFUSALS = (
    UnknownPipeline,
    KeyReused,
    TooLarge,
    UnsupportedMedia,
    TooSlow,
    SlotTaken,
    UnknownOutcome,
    BlobUnavailable,
)


@post(
    "/jobs",
    scope="submit",
    plain=True,
    status_code=202,
    query=QUERY,
    operation_class=taking(Asked, *(beside(name, "query") for name in QUERY), KEY, PREFER, required=True, form=PARTS),
    responses={**refusing(*REFUSALS), 200: ENDED},
)
async def submit(request: Request[Any, Any, State]) -> Answer[JobDocument]:
    """Submit a job, as JSON or as multipart/form-data with its files."""
    scope = request.scope
    tools, caller = tools_and_caller(scope)
    sent = scope["headers"]
    query = dict(request.query_params) if scope["query_string"] else {}
    body = Body(request.receive, tools.settings)
    key, content_type = first_header(sent, b"idempotency-key"), first_header(sent, b"content-type") or ""
    is_expecting = first_header(sent, b"expect") is not None
    shape = await receive_job(tools, caller, body, content_type, query, key, is_expecting=is_expecting)
    headers = {"Location": f"{scope['root_path']}{scope['path'].rstrip('/')}/{shape['job_id']}"}
    prefer = first_header(sent, b"prefer")
    seconds = None if prefer is None else prefer_wait.wanted(prefer, tools.settings.wait_limit)
    if seconds is None:
        return Answer(shape, 202, headers)
    headers["Preference-Applied"] = f"wait={seconds:.0f}"
    job = await prefer_wait.ended(tools, shape["job_id"], seconds, request.receive)
    if job is None:
        return Answer(shape, 202, headers)
    [shape] = await tools.shown([job])
    return Answer(shape, 200 if job.status.is_terminal else 202, headers)


async def receive_job(
    tools: Tools,
    caller: Caller,
    body: Body,
    content_type: str,
    query: Mapping[str, str],
    key: str | None,
    *,
    is_expecting: bool = False,
) -> JobDocument:
    """The job that the body describes, once it is stored. Of a refused body the rest is read.

    ``is_expecting``: the client waits to be asked for the body (Expect: 100-continue), which reading would do.
    """
    try:
        async with Intake(tools.store, tools.blobs, tools.settings) as intake:
            return await Submission(tools, caller, intake, query, key).job(body, content_type)
    except Exception:
        if body.is_begun or not is_expecting:
            await body.drain()
        raise


class Submission:
    def __init__(self, tools: Tools, caller: Caller, intake: Intake, query: Mapping[str, str], key: str | None) -> None:
        self._tools = tools
        self._caller = caller
        self._intake = intake
        self._query = query
        self._key = key
        self._earlier = Earlier(tools, caller, intake)
        self._limit = tools.settings.parameters_limit + BESIDES

    async def job(self, body: Body, content_type: str) -> JobDocument:
        kind = kind_of(content_type)
        if kind not in (JSON, FORM):
            raise UnsupportedMedia(content_type=kind[:100])
        early = await self._tools.catalog.get(self._query["pipeline"]) if "pipeline" in self._query else None
        await self._refuse_early(early)
        if kind == JSON:
            return await self._from_json(early, await self._whole(body))
        return await self._from_form(early, body, content_type)

    async def _refuse_early(self, pipeline: Published | None) -> None:
        """A taken slot is known before the first byte, unless by a key that may name the very job that holds it.

        The slot is read before the key: both were written in one step, so whoever sees the first sees the second.
        """
        if pipeline is None or pipeline.plan.slot is None or "user_id" not in self._query:
            return
        user = self._caller.acting_for(self._query["user_id"])
        holder = await self._tools.store.holder(slot_key(self._caller.tenant, user, pipeline.plan.slot))
        if holder is not None and not await self._is_repeated():
            raise SlotTaken(active_job_id=holder)

    async def _is_repeated(self) -> bool:
        if self._key is None:
            return False
        return await self._tools.store.keyed(once_key(self._caller.tenant, self._client, self._key)) is not None

    async def _whole(self, body: Body) -> bytes:
        try:
            return await body.whole(self._limit)
        except TooLarge as error:
            raise too_much("body", self._tools.settings.parameters_limit) from error

    async def _from_json(self, early: Published | None, data: bytes) -> JobDocument:
        asked = self._asked(members(data))
        pipeline = early or await self._tools.catalog.get(asked.pipeline)
        _refuse(artifact_inputs.mistakes(pipeline, asked.parameters))
        _refuse(pipeline.mistakes(asked.parameters))
        return await self._admit(pipeline, asked, await self._earlier.taken(pipeline, asked.parameters))

    async def _from_form(self, early: Published | None, body: Body, content_type: str) -> JobDocument:
        form = Form(self._intake, self._tools.settings.parameters_limit, early, self._tools.catalog.get)
        await form.read(body, content_type)
        asked = self._asked(form.named())
        pipeline = early or await self._tools.catalog.get(asked.pipeline)
        named, stored = form.parameters(pipeline, asked.parameters)
        _refuse(artifact_inputs.mistakes(pipeline, stored))
        _refuse(pipeline.mistakes(named))
        return await self._admit(pipeline, asked, await self._earlier.taken(pipeline, stored))

    def _asked(self, given: Mapping[str, Any]) -> Asked:
        _refuse([{"field": name, "message": "This is given twice"} for name in self._query if name in given])
        return converted({**given, **self._query}, Asked)

    async def _admit(self, pipeline: Published, asked: Asked, parameters: Mapping[str, Any]) -> JobDocument:
        data = json.encode(parameters)
        if len(data) > self._tools.settings.parameters_limit:
            raise TooLarge(field="parameters", limit=self._tools.settings.parameters_limit)
        job = await self._intake.admit(
            pipeline.plan,
            data,
            self._options(asked),
            tenant=self._caller.tenant,
            client=self._client,
            origin=ORIGIN,
        )
        return await self._shown(job, Spec(data, tuple(self._intake.inputs), asked.metadata, ORIGIN))

    async def _shown(self, job: Job, spec: Spec) -> JobDocument:
        if job.id == self._intake.job_id:
            return new_job_to_json(job, spec)
        [first] = await self._tools.shown([job])  # this key was used before, and that job may have got far
        return first

    @property
    def _client(self) -> str | None:
        return self._caller.client or None

    def _options(self, asked: Asked) -> Options:
        try:
            options = options_from(
                user=self._caller.acting_for(asked.user_id),
                priority=asked.priority,
                delay=asked.delay,
                key=self._key,
                metadata=asked.metadata,
            )
        except InvalidInput as error:
            renamed = [{**each, "field": NAMES.get(each["field"], each["field"])} for each in error.errors]
            raise invalid(NOT_VALID, renamed) from error
        if options.delay > LONGEST_DELAY:
            raise invalid(NOT_VALID, [{"field": "delay", "message": "It is more than ten years"}])
        return options


NAMES = {"user": "user_id", "key": "Idempotency-Key"}
"""What Python calls differently."""


def _refuse(mistakes: list[FieldError]) -> None:
    if mistakes:
        raise invalid(NOT_VALID, mistakes)

"""``POST /jobs/batch``: many jobs in one request, each accepted or refused separately, with one commit for all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from litestar import post
from msgspec import Meta, Struct

from packhorse import errors, metrics
from packhorse.auth.access import Caller
from packhorse.auth.authenticate import first_header
from packhorse.define.validation import NOT_VALID, invalid
from packhorse.http.form import BESIDES
from packhorse.http.middleware import PlainResponse
from packhorse.http.openapi import closed_schema, json_body, text_parameter
from packhorse.http.problems import ProblemDocument, item_problem
from packhorse.http.requests import JSON, Body, HttpRequest, convert, decode_object, media_type
from packhorse.http.routes.submit import IDEMPOTENCY_KEY, ORIGIN, QUERY, REFUSALS, Asked, Submission, asked_from
from packhorse.http.services import FromCaller, FromServices, HttpServices
from packhorse.jobs.submit import MOST, Admitted, Draft, NewJob, submit_all
from packhorse.schemas.jobs import JobDocument, new_job_to_json

LARGEST = 16
"""How many times as large as a single submit the body may be."""
LOST = (errors.StoreUnavailable, errors.UnknownOutcome)


class Item(Asked):
    """A job to submit, as for ``POST /jobs``."""

    idempotency_key: str | None = None
    """The same item with the same key gives the first job again."""


REJECTED = {"description": "Anything else is rejected by itself, with a problem that says what is wrong with it."}
EACH = {"anyOf": [closed_schema(Item), REJECTED]}


class Batch(Struct):
    """Jobs to submit, at most 1,000."""

    items: Annotated[list[Any], Meta(max_length=MOST, extra_json_schema={"items": EACH})]
    """Each is read as an `Item` by itself: what is wrong with one of them is its own problem."""


class OutcomeDocument(TypedDict):
    """The outcome of an item: its job, or the problem that a submit of it alone would have been answered with."""

    job: JobDocument | None
    problem: ProblemDocument | None


class BatchDocument(TypedDict):
    """The outcomes in the order of the items, and how many there are of each kind."""

    items: list[OutcomeDocument]
    accepted: int
    rejected: int


@post(
    "/jobs/batch",
    scope="submit",
    plain=True,
    status_code=202,
    query=QUERY,
    operation_id="ApiV1JobsBatchSubmitBatch",
    **json_body(
        Batch,
        *REFUSALS,
        errors.RateExceeded,
        required=True,
        parameters=[text_parameter(name, "query", "Of every item; then no item names it.") for name in QUERY],
    ),
)
async def submit_batch(
    request: HttpRequest, services: FromServices, caller: FromCaller
) -> PlainResponse[BatchDocument]:
    """Submit up to 1,000 jobs. Each item is accepted or rejected separately; the answers are in the order of the items.

    Files of a job are artifacts of earlier jobs, or paths. Rate limits and quotas count jobs, not requests. If the
    store does not answer, so that no item has an outcome, the whole request gets that problem.
    """
    scope = request.scope
    if first_header(scope["headers"], b"idempotency-key") is not None:
        message = "Each item of a batch has a key of its own: idempotency_key"
        raise invalid(NOT_VALID, [{"field": IDEMPOTENCY_KEY, "message": message}])
    query = dict(request.query_params) if scope["query_string"] else {}
    items = await _read_items(request, services)
    more, refused = await services.authenticator.admit_jobs(caller, len(items) - 1)
    admitted = items[: more + 1]

    def decider(given: Any) -> Callable[[NewJob], Awaitable[Draft]]:
        return lambda new_job: _decide(services, caller, new_job, given, query)

    def new_job() -> NewJob:
        return NewJob(services.store, services.blobs, services.settings)

    found = await submit_all(new_job, [decider(given) for given in admitted], services.store)
    if found and all(isinstance(each, LOST) for each in found):
        raise next(each for each in found if isinstance(each, LOST))
    found += [refused] * (len(items) - len(admitted)) if refused is not None else []
    return PlainResponse(await _answer(request, services, caller, found), 202, {})


async def _read_items(request: HttpRequest, services: HttpServices) -> list[Any]:
    content_type = first_header(request.scope["headers"], b"content-type") or ""
    body = Body(request.receive, services.settings)
    try:
        if media_type(content_type) != JSON:
            raise errors.UnsupportedMedia("The body must be JSON.", content_type=content_type[:100])
        data = await body.whole(LARGEST * (services.settings.parameters_limit + BESIDES))
    except Exception:  # any error: a client sees the answer only after it has sent the whole body
        if body.is_begun or first_header(request.scope["headers"], b"expect") is None:
            await body.drain()
        raise
    return convert(decode_object(data), Batch).items


async def _decide(
    services: HttpServices, caller: Caller, new_job: NewJob, given: Any, query: Mapping[str, str]
) -> Draft:
    if not isinstance(given, Mapping):
        raise invalid(NOT_VALID, [{"field": "", "message": "It must be a JSON object"}])
    asked = asked_from(given, query, Item)
    return await Submission(services, caller, new_job, query, asked.idempotency_key, ORIGIN).decide(None, asked)


async def _answer(
    request: HttpRequest, services: HttpServices, caller: Caller, found: Sequence[Admitted | Exception]
) -> BatchDocument:
    admitted = [each for each in found if isinstance(each, Admitted)]
    made = [each.job.id for each in admitted if each.is_new]
    earlier = {each.job.id: each.job for each in admitted if not each.is_new}
    documents = {document["job_id"]: document for document in await services.documents([*earlier.values()])}
    told: set[type[Exception]] = set()  # of errors of ours, the first of each kind is logged
    items: list[OutcomeDocument] = []
    for n, each in enumerate(found):
        if isinstance(each, Admitted) and (each.is_new or each.job.id in documents):
            new = each.is_new
            job = new_job_to_json(each.job, each.draft.spec) if new else documents[each.job.id]
            items.append({"job": job, "problem": None})
            continue
        error = errors.JobNotFound(job_id=each.job.id) if isinstance(each, Admitted) else each
        problem = item_problem(request, error, f"items[{n}]", is_logged=type(error) not in told)
        told.add(type(error))
        metrics.refused.labels(problem["type"].rpartition(":")[2]).inc()
        items.append({"job": None, "problem": problem})
    accepted = sum(each["job"] is not None for each in items)
    metrics.submitted.inc(accepted)
    if made:
        services.audit.tell_many("job.submitted", caller, len(made), job_id=made[0])
    return {"items": items, "accepted": accepted, "rejected": len(items) - accepted}

"""A job in JSON. It has one form, wherever it is shown."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NotRequired, TypedDict, cast

from packhorse.core import json, publish_path
from packhorse.core.error_codes import CODES, EXCEPTION, INVALID, PERMANENT
from packhorse.core.models import (
    Artifact,
    Failure,
    Input,
    Job,
    Partial,
    Result,
    Spec,
    Stopping,
    TaskId,
    primary_input,
)
from packhorse.core.plan import Status, TaskStatus, keep_periods, purge_at
from packhorse.core.redaction import mask
from packhorse.define.files import artifact_key
from packhorse.define.values import decode_result
from packhorse.schemas.progress import (
    PositionDocument,
    Reported,
    StageDocument,
    TimingDocument,
    duration_ms,
    iso,
    position_to_json,
    stages_to_json,
    timings_to_json,
)
from packhorse.store.base import Store

Results = Mapping[TaskId, Result]

NEW = "new"  # the name under which a plan caches the document of its new jobs

NO_SPEC = Spec(parameters=b"{}")


class InputDocument(TypedDict):
    """A submitted file. ``input`` also has the number of files of each list parameter, as ``ref_images_count``.

    ``name`` is what stays the same wherever the file lies; ``object_key`` is where packhorse keeps it.
    """

    parameter: str
    filename: str
    name: str
    object_key: str
    size_bytes: int
    sha256: str


class ErrorDocument(TypedDict):
    """Why a job failed; as ``last_error``, why its last failed attempt did."""

    code: str
    message: str
    stage: str | None
    detail: str | None
    element: NotRequired[int]


class PartialDocument(TypedDict):
    """Elements that failed and were left out, as their stages tolerate it, of all elements of these stages.

    ``errors`` are those of the first 100. In the result, such an element is null.
    """

    failed: int
    of: int
    errors: list[ErrorDocument]


class AliasDocument(TypedDict):
    """The app's own name for the job's status, and the keys of its files by the app's names.

    ``stage`` is the app's own name for the running stage, only there if the app has such names; null while none runs.
    """

    status: str
    stage: NotRequired[str | None]
    output: dict[str, str | list[str] | None]


class JobDocument(PositionDocument):
    """A job. Times are UTC, ISO 8601; ``keep`` says for how many seconds it is kept, by final status.

    ``expires_at`` is when it is deleted with its files. Until it ends, this is a forecast: as if it had completed with
    its last change (``updated_at``), or would at ``not_before`` if that is later.
    """

    job_id: str
    pipeline: str
    user_id: str
    tenant_id: str
    created_by_client_id: str | None
    origin: str
    schedule_id: str | None
    tick: str | None
    status: Status
    stopping: Stopping | None
    stages: dict[str, StageDocument]
    parameters: dict[str, Any]
    inputs: list[InputDocument]
    input: InputDocument | None
    source_filename: str | None
    result: Any
    result_object_keys: dict[str, str | list[str]]
    result_object_names: dict[str, str | list[str]]
    """By stage, as ``result_object_keys``: names that no attempt changes. Promoted copies have them."""
    published_folder: str | None
    promoted: bool
    promoted_object_keys: list[str]
    error: ErrorDocument | None
    partial: PartialDocument | None
    error_count: int
    last_error: ErrorDocument | None
    created_at: str | None
    started_at: str | None
    completed_at: str | None
    updated_at: str | None
    expires_at: str | None
    keep: dict[Status, float]
    deadline_at: str | None
    not_before: str | None
    duration_ms: int | None
    stage_timings: dict[str, TimingDocument | None]
    run: int
    retry_count: int
    priority: int
    trace_id: str
    metadata: Mapping[str, Any]
    version: int
    last_event: int
    alias: AliasDocument | None
    output: NotRequired[dict[str, str | list[str] | None]]
    """As in ``alias``; only there if the pipeline has ``has_output=True``."""


class ArtifactDocument(TypedDict):
    """A file that a stage produced, named ``{stage}/{name}``, or ``{stage}/{element}/{name}`` for an element."""

    name: str
    filename: str
    size_bytes: int
    sha256: str
    content_type: str
    object_key: str


class JobsPage(TypedDict):
    """Newest first; ``next`` is the cursor of the next page, null on the last."""

    items: list[JobDocument]
    next: str | None


class CountDocument(TypedDict):
    """How many jobs match; a lower bound if ``is_at_least``."""

    count: int
    is_at_least: bool


class LeftJobDocument(TypedDict):
    """A job that was not changed: it is gone, already in that status, in another one, or its user's slot is taken."""

    job_id: str
    why: str


class ChangedDocument(CountDocument):
    """How many jobs this request changed; in a dry run, how many match, and the newest of them.

    ``left`` counts the jobs that were not changed, by reason; ``named`` lists some of them. ``next`` is the cursor to
    continue with, null when all is done.
    """

    left: dict[str, int]
    named: list[LeftJobDocument]
    first: list[JobDocument]
    next: str | None


class ArtifactsPage(TypedDict):
    items: list[ArtifactDocument]
    next: None


async def jobs_to_json(store: Store, jobs: Sequence[Job]) -> list[JobDocument]:
    """Read what the store keeps beside the jobs, and return the documents of all jobs that are not being purged."""
    ids = [job.id for job in jobs]
    specs = await store.specs(ids)
    results = await store.results(ids)
    progress = await store.progress(ids)
    return [
        job_to_json(job, specs.get(job.id), results.get(job.id, {}), progress.get(job.id, {}))
        for job in jobs
        if not job.is_purging
    ]


def job_to_json(job: Job, spec: Spec | None, results: Results, progress: Reported) -> JobDocument:
    spec = spec or NO_SPEC
    primary = _primary_input(job, spec)
    keys = _by_stage(job, results, lambda artifact: artifact.file.key)
    names = stable_names(job, results)
    document: JobDocument = {
        "job_id": job.id,
        "pipeline": job.plan.pipeline,
        "user_id": job.user,
        "tenant_id": job.tenant,
        "created_by_client_id": job.client,
        "origin": spec.origin,
        "schedule_id": None if job.firing is None else job.firing.schedule,
        "tick": None if job.firing is None else iso(job.firing.tick),
        "status": job.status,
        "stopping": job.stopping,
        **position_to_json(job, progress),  # type: ignore[typeddict-item] # `output` is no key of a position
        "stages": stages_to_json(job, progress),
        "parameters": _parameters(job, spec),
        "inputs": [_input(job, each) for each in spec.inputs],
        "input": primary,
        "source_filename": None if primary is None else primary["filename"],
        "result": result_to_json(job, results) if job.status is Status.COMPLETED else None,
        "result_object_keys": keys,
        "result_object_names": _by_stage(job, results, lambda artifact: names[artifact.name]),
        "published_folder": _published_folder(job, results),
        "promoted": bool(job.promoted),
        "promoted_object_keys": _promoted_keys(job, results, names),
        "error": _error(job.error),
        "partial": _partial(job.partial),
        "error_count": job.error_count,
        "last_error": _error(job.last_error),
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "completed_at": iso(job.completed_at),
        "updated_at": iso(job.updated_at),
        "expires_at": iso(_expires_at(job)),
        "keep": keep_periods(job.plan),
        "deadline_at": iso(job.deadline_at),
        "not_before": iso(job.not_before) if job.not_before > job.created_at else None,
        "duration_ms": duration_ms(job.started_at, job.completed_at),
        "stage_timings": timings_to_json(job),
        "run": job.run,
        "retry_count": job.retry_count,
        "priority": job.priority,
        "trace_id": job.trace_id,
        "metadata": spec.metadata,
        "version": job.version,
        "last_event": job.events,
        "alias": alias_to_json(job, keys),
    }
    if job.plan.has_output:
        document["output"] = _outputs(job, keys)
    return document


NAME = 80  # characters of parameters that stand for a job without a file


def name_of(job: Job, spec: Spec | None) -> str:
    """What people know the job by: its file, else its parameters in short, with secrets masked."""
    first = primary_input(job.plan, spec)
    if first is not None:
        return first.file.name
    parameters = _parameters(job, spec or NO_SPEC)
    said = ", ".join(
        f"{name}={value if isinstance(value, str) else json.encode(value).decode()}"[:NAME]
        for name, value in (parameters.items() if isinstance(parameters, dict) else ())
        if value not in (None, "", [], {})
    )
    return said if len(said) <= NAME else f"{said[: NAME - 1]}…"


def new_job_to_json(job: Job, spec: Spec) -> JobDocument:
    """As `job_to_json`, for a job just submitted. Faster: every new job of a plan shares most of its document."""
    if spec.inputs or job.firing is not None or job.plan.has_conditions:
        return job_to_json(job, spec, {}, {})
    alike: JobDocument | None = job.plan.__dict__.get(NEW)
    if alike is None:
        alike = job.plan.__dict__[NEW] = job_to_json(job, spec, {}, {})
    return {
        **alike,
        "job_id": job.id,
        "user_id": job.user,
        "tenant_id": job.tenant,
        "created_by_client_id": job.client,
        "origin": spec.origin,
        "parameters": _parameters(job, spec),
        "created_at": (created_at := iso(job.created_at)),
        "updated_at": created_at,
        "expires_at": iso(_expires_at(job)),
        "deadline_at": iso(job.deadline_at),
        "not_before": iso(job.not_before) if job.not_before > job.created_at else None,
        "priority": job.priority,
        "trace_id": job.trace_id,
        "metadata": spec.metadata,
    }


def result_to_json(job: Job, results: Results) -> Any:
    """The value of the last stage, or an object by stage if there are several last stages. Files become documents."""
    values = {plan.name: _value(job, plan.name, results) for plan in job.plan.sinks}
    return next(iter(values.values())) if len(values) == 1 else values


def stage_values(job: Job, results: Results) -> dict[str, Any]:
    """The value of each stage that has one, as in the result of a job."""
    names = {at.stage for at in results}
    return {plan.name: _value(job, plan.name, results) for plan in job.plan.stages if plan.name in names}


def public_job(document: JobDocument) -> JobDocument:
    """What an end user may see: progress and result, not parameters or internals."""
    alias = document["alias"]
    hidden: Any = {
        **dict.fromkeys(("created_by_client_id", "schedule_id", "tick", "input", "last_error")),
        **{name: {} for name in ("parameters", "metadata", "result_object_keys", "result_object_names", "keep")},
        **{name: [] for name in ("inputs", "promoted_object_keys")},
        "published_folder": None,
        "trace_id": "",
        "error": public_error(document["error"]),
        "partial": _public_partial(document["partial"]),
        "alias": None if alias is None else {**alias, "output": {}},
        **({"output": {}} if "output" in document else {}),
    }
    return cast(JobDocument, document | hidden)


def public_error(error: ErrorDocument | None) -> ErrorDocument | None:
    if error is None:
        return None
    message = error["message"] if is_for_user(error["code"]) else ""
    return {"code": error["code"], "message": message, "stage": error["stage"], "detail": None}


def _public_partial(partial: PartialDocument | None) -> PartialDocument | None:
    return None if partial is None else {**partial, "errors": []}


def public_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event for an end user: without the worker, and with error messages only if they are meant for users."""
    hidden = {"worker"} if is_for_user(event.get("code", EXCEPTION)) else {"worker", "message"}
    return {name: value for name, value in event.items() if name not in hidden}


def is_for_user(code: str) -> bool:
    """Whether a stage has chosen the code, and its message for the user; others are for those who run it."""
    return (code not in CODES or code in (INVALID, PERMANENT)) and not code.startswith("HTTP_")


def final_files(job: Job, results: Results) -> list[Artifact]:
    """The files of the result of a completed job."""
    return result_files(job, results) if job.status is Status.COMPLETED else []


def result_files(job: Job, results: Results) -> list[Artifact]:
    """The files that the last stages returned."""
    return [file for plan in job.plan.sinks for result in results_of_stage(results, plan.name) for file in result.files]


def results_of_stage(results: Results, stage: str) -> list[Result]:
    return [results[at] for at in sorted(at for at in results if at.stage == stage)]


def artifact_to_json(artifact: Artifact) -> ArtifactDocument:
    return {
        "name": artifact.name,
        "filename": artifact.file.name,
        "size_bytes": artifact.file.size,
        "sha256": artifact.file.sha256,
        "content_type": artifact.file.content_type,
        "object_key": artifact.file.key,
    }


def alias_to_json(job: Job, keys: Mapping[str, str | list[str]]) -> AliasDocument | None:
    """``keys``: object keys by stage. None if the app has no names of its own for statuses and outputs."""
    plan = job.plan
    if not plan.statuses and not plan.stage_statuses and not plan.outputs:
        return None
    status = plan.statuses.get(job.status, job.status.value)
    if not plan.stage_statuses:
        return {"status": status, "output": _outputs(job, keys)}
    running = next((name for name in plan.stage_statuses if job.stage(name).status is TaskStatus.RUNNING), "")
    return {"status": status, "stage": plan.stage_statuses.get(running), "output": _outputs(job, keys)}


def _outputs(job: Job, keys: Mapping[str, str | list[str]]) -> dict[str, str | list[str] | None]:
    return {name: keys.get(stage) for name, stage in job.plan.outputs.items()}


def _primary_input(job: Job, spec: Spec) -> InputDocument | None:
    """The file that the job is named after, and how many files each list parameter has."""
    first = primary_input(job.plan, spec)
    if first is None:
        return None
    counts = Counter(each.parameter for each in spec.inputs)
    others = {f"{name}_count": counts[name] for name in job.plan.lists}
    return cast(InputDocument, _input(job, first) | others)


def _input(job: Job, given: Input) -> InputDocument:
    parameter, file = given.parameter, given.file
    number = "" if parameter not in job.plan.lists else f".{given.index}"
    return {
        "parameter": parameter,
        "filename": file.name,
        "name": f"jobs/{job.id}/input/{parameter}{number}{PurePosixPath(file.key).suffix}",
        "object_key": file.key,
        "size_bytes": file.size,
        "sha256": file.sha256,
    }


def _parameters(job: Job, spec: Spec) -> Any:
    """As submitted, with secrets masked, and its name in place of each file.

    ``$file`` in any other parameter is the user's own value.
    """
    parameters: dict[str, Any] = json.decode(spec.parameters)
    for name in {each.parameter for each in spec.inputs}:
        value = parameters[name]
        parameters[name] = (
            [_file_name(spec, each) for each in value] if isinstance(value, list) else _file_name(spec, value)
        )
    return mask(parameters, job.plan.secrets) if job.plan.secrets else parameters


def _file_name(spec: Spec, reference: Mapping[str, int]) -> str:
    return spec.inputs[reference["$file"]].file.name


def _value(job: Job, stage: str, results: Results) -> Any:
    values = [
        decode_result(result.value, Any, [artifact_to_json(artifact) for artifact in result.files])
        for result in results_of_stage(results, stage)
        if not result.is_skipped
    ]
    if job.plan.stage(stage).over is not None:
        return values
    return values[0] if values else None


def stable_names(job: Job, results: Results) -> dict[str, str]:
    """By artifact name, what each file that a stage returned is called wherever it is copied to.

    ``jobs/{job}/output/out.nef``; if two files of the job are called the same, each is in the folder of its stage.
    """
    made = [artifact.name for result in results.values() for artifact in result.files]
    short = {name: artifact_key(name.rpartition("/")[2]) for name in made}
    if len({each.lower() for each in short.values()}) < len(short):  # some file systems ignore case
        short = {name: artifact_key(name) for name in made}
    return {name: f"jobs/{job.id}/output/{each}" for name, each in short.items()}


def _by_stage(job: Job, results: Results, show: Callable[[Artifact], str]) -> dict[str, str | list[str]]:
    found: dict[str, str | list[str]] = {}
    with_files = {at: result for at, result in results.items() if result.files}
    for plan in job.plan.stages if with_files else ():
        of_stage = results_of_stage(with_files, plan.name)
        keys = [show(artifact) for result in of_stage for artifact in result.files]
        if keys:
            found[plan.name] = keys[0] if len(keys) == 1 and plan.over is None else keys
    return found


def _published_folder(job: Job, results: Results) -> str | None:
    """Where the job publishes its files soon after it has completed, until a newer job publishes there."""
    has_files = any(result.artifacts for result in results.values())
    return publish_path.publish_folder(job) if job.status is Status.COMPLETED and has_files else None


def _expires_at(job: Job) -> float:
    if job.purge_at is not None:
        return job.purge_at
    return purge_at(job.plan, Status.COMPLETED, max(job.updated_at, job.not_before))


def _promoted_keys(job: Job, results: Results, names: Mapping[str, str]) -> list[str]:
    files = result_files(job, results) if job.promoted else []
    return [f"{to}{names[each.name].removeprefix(f'jobs/{job.id}')}" for to in job.promoted for each in files]


def _partial(partial: Partial | None) -> PartialDocument | None:
    if partial is None:
        return None
    errors = [found for each in partial.errors if (found := _error(each)) is not None]
    return {"failed": partial.failed, "of": partial.of, "errors": errors}


def _error(error: Failure | None) -> ErrorDocument | None:
    if error is None:
        return None
    document: ErrorDocument = {
        "code": error.code,
        "message": error.message,
        "stage": error.stage,
        "detail": error.detail,
    }
    return document if error.element is None else {**document, "element": error.element}

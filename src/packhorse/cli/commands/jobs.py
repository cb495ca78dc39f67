"""The commands about jobs that are there: list, show, logs, promote; and what can be submitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from cyclopts import CycloptsError, Parameter

from packhorse.cli import follow as watching
from packhorse.cli import output
from packhorse.cli.options import Chosen, JobId, Remote, Whole, resolve_job
from packhorse.client import Client, Json
from packhorse.core import json
from packhorse.define.validation import list_some
from packhorse.errors import InvalidInput
from packhorse.plurals import counted
from packhorse.schemas.jobs import ArtifactDocument
from packhorse.web.widgets.formatting import milliseconds, percent, size

TERMINAL = watching.EXIT.keys()
BY_ITSELF = frozenset({"QUEUED", "NOT_BEFORE"})  # reasons to wait that go away without anybody doing anything
TIMES = {
    "Created": "created_at",
    "Not before": "not_before",
    "Started": "started_at",
    "Ended": "completed_at",
    "Kept until": "expires_at",
}
MOST_SHOWN = 1000  # characters of a result or of parameters
MOST_LINES = 5000  # of a log that the server gives at a time


def jobs(
    *,
    chosen: Chosen = Chosen(),
    search: str | None = None,
    count: bool = False,
    limit: Whole = 20,
    remote: Remote = Remote(),
) -> None:
    """List jobs, newest first.

    Args:
        search: Only jobs found by this text: the beginning of an id or of a file name, a user, or name=value.
        count: Only print the number of jobs, counted up to 1000.
        limit: Maximum number of jobs to list.
    """
    with remote.client() as client:
        if count and search:
            raise InvalidInput("--count cannot be used with --search", field="search")
        page = client.count(**chosen.filters()) if count else client.list(**chosen.filters(), q=search, limit=limit)
    if count:
        remote.print_one(page, f"{page['count']}{'+' if page['is_at_least'] else ''}")
        return
    columns = ("job", "pipeline", "user", "status", "progress", "stage", "created")
    remote.print_list(page, columns, _row, "No jobs found. Submit one with: packhorse submit PIPELINE")


def show(job: JobId, /, *, follow: bool = False, remote: Remote = Remote()) -> int:
    """Show a job, or follow its current run until it ends.

    Args:
        follow: Show progress until the job ends. Exit code: 0 completed, 1 failed, 4 cancelled.
    """
    with remote.client() as client:
        job = resolve_job(client, job)
        if not follow:
            if remote.json:
                output.document(client.get(job))
            else:
                print_job(client, job)
            return 0
        found = watching.follow_job(client, job, json=remote.json)
    return watching.DETACHED if found is None else watching.report_end(found)


def explain(job: JobId, /, *, remote: Remote = Remote()) -> None:
    """Explain why a job is waiting, and estimate how long it still takes."""
    with remote.client() as client:
        job = resolve_job(client, job)
        reasons = client.explain(job)
        if remote.json:
            output.document({"reasons": reasons})
            return
        for reason in reasons:
            output.plain(f"{reason['code']}: {output.prose(reason['message'])}.")
        if not reasons:
            output.plain("The job is running: nothing keeps it waiting.")
        if (left := _time_left(client, job, reasons)) is not None:
            output.plain(f"Estimated time left: {left}.")


def logs(
    job: JobId,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    stage: str | None = None,
    tail: Whole | None = None,
    remote: Remote = Remote(),
) -> None:
    """Print the log of a job's stages.

    Args:
        follow: Follow the log until the job ends.
        stage: Only lines of this stage.
        tail: Start with the last TAIL lines.
    """
    with remote.client() as client:
        job = resolve_job(client, job)
        stages = client.get(job)["stages"]
        if stage is not None and stage not in stages:
            raise CycloptsError(
                msg=f"There is no stage {stage!r}. Stages of this job: {list_some(stages)}.", command_chain=["logs"]
            )
        for line in (_live if follow else _log_lines)(client, job, stage, tail):
            if remote.json:
                output.document(line)
            else:
                output.line(_speaker(line, stages), line["text"])


def promote(job: JobId, /, *, to: str | None = None, remote: Remote = Remote()) -> None:
    """Copy a job's result to permanent storage, where it outlives the job.

    Args:
        to: Name of the destination, if the server has several (PACKHORSE_PROMOTE_TO).
    """
    with remote.client() as client:
        promoted = client.promote(resolve_job(client, job), to)
    if remote.json:
        output.document(promoted)
        return
    for key in promoted["promoted_object_keys"]:
        output.plain(key)


def pipelines(*, remote: Remote = Remote()) -> None:
    """List the pipelines that you can submit."""
    with remote.client() as client:
        found = client.pipelines()
    remote.print_list(
        found,
        ("pipeline", "app", "worker", "parameters", "description"),
        lambda each: (each["name"], each["app"], _served(each), _usage(each["schema"]), each["description"]),
        empty="No pipelines. A worker publishes its pipelines when it starts: packhorse worker FILE",
    )


def _log_lines(client: Client, job_id: str, stage: str | None, tail: int | None) -> Iterator[Json]:
    after = _before(client, job_id, stage, tail)
    while items := client.log(job_id, after, stage)["items"]:
        yield from items
        after = items[-1]["n"]


def _before(client: Client, job_id: str, stage: str | None, tail: int | None) -> int:
    """The number of the line before the first that is wanted."""
    if tail is None:
        return 0
    last = client.log(job_id, stage=stage, limit=min(max(tail, 1), MOST_LINES), newest=True)["items"]
    return int(last[0]["n"]) - 1 if last else 0


def _live(client: Client, job_id: str, stage: str | None, tail: int | None) -> Iterator[Json]:
    """From the first line on; what a new connection says again is left out."""
    after = _before(client, job_id, stage, tail)
    for event in client.events(job_id):
        line = event["data"]
        if event["type"] == "log" and line["n"] > after:
            after = line["n"]
            if stage in (None, line["stage"]):
                yield line


def _speaker(line: Json, stages: Json) -> str:
    """The element only of a stage that has several."""
    has_elements = "elements" in stages.get(line["stage"], {})
    return watching.place(line if has_elements else {**line, "element": None})


def _row(job: Json) -> tuple[object, ...]:
    names = ("job_id", "pipeline", "user_id", "status")
    return *(job[name] for name in names), percent(job["progress"]), job["stage"], output.clock(job["created_at"])


def print_job(client: Client, job_id: str) -> None:
    """The most important facts first: status, why the job failed or waits, and its result."""
    job, made = client.get(job_id), client.artifacts(job_id)
    output.facts({label: value for label, value in _facts(client, job) if value is not None})
    output.plain("")
    _stages(job, client.metrics(job_id), made)
    if made:
        output.message(f"List the files with: packhorse artifacts {job_id}")


def _facts(client: Client, job: Json) -> Iterator[tuple[str, object]]:
    is_over = job["status"] in TERMINAL
    yield "Status", job["status"] if is_over or not job["stopping"] else f"{job['status']}, stopping"
    if not is_over:
        yield "Progress", percent(job["progress"])
    if (error := job["error"]) is not None:
        where = f"{watching.place(error)}: " if error["stage"] else ""
        yield "Error", f"{where}{error['code']}: {error['message']}"
    if (partial := job["partial"]) is not None:
        yield "Left out", f"{partial['failed']} of {counted(partial['of'], 'element')} failed"
    if job["result"] is not None:
        yield "Result", _shorten(json.encode(_name_files(job["result"])).decode(), f"packhorse result {job['job_id']}")
    if not is_over:
        reasons = client.explain(job["job_id"])
        yield "Waiting", "; ".join(output.prose(reason["message"]) for reason in reasons) or None
        yield "Time left", _time_left(client, job["job_id"], reasons)
    yield "Job", job["job_id"]
    yield "Pipeline", job["pipeline"]
    yield "User", job["user_id"]
    for label, name in TIMES.items():
        is_forecast = name == "expires_at" and job["status"] not in TERMINAL
        is_past = name == "not_before" and job["started_at"] is not None  # a retry sets it, too
        yield label, None if is_forecast or is_past else output.clock(job[name]) or None
    yield "Took", None if job["duration_ms"] is None else milliseconds(job["duration_ms"])
    yield "Run", job["run"]
    if job["parameters"]:
        yield "Parameters", _shorten(json.encode(job["parameters"]).decode(), f"packhorse show {job['job_id']} --json")


def _name_files(value: Any) -> Any:
    """The value with the name of each file in place of its document."""
    if isinstance(value, list):
        return [_name_files(each) for each in value]
    if isinstance(value, dict):
        is_file = value.keys() == ArtifactDocument.__annotations__.keys()
        return value["filename"] if is_file else {name: _name_files(each) for name, each in value.items()}
    return value


def _shorten(text: str, command: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}… (all of it: {command})"


def _time_left(client: Client, job_id: str, reasons: Sequence[Json]) -> str | None:
    """None if it is not known, or somebody has to act first."""
    if any(reason["code"] not in BY_ITSELF for reason in reasons):
        return None
    seconds = client.estimate(job_id)["seconds"]
    return None if seconds is None else f"about {seconds:.0f} s"


def _stages(job: Json, measured: Sequence[Json], made: Sequence[Json]) -> None:
    """With the files it made, and the most that it used at a time if it ran long enough to be measured."""
    columns = ["stage", "status", "progress", "attempts", *(["files"] if made else [])]
    columns += [*(("peak cpu", "peak memory") if measured else ()), "message"]
    rows = []
    for name, stage in job["stages"].items():
        mine = [each for each in measured if each["stage"] == name]
        row = [name, watching.status(stage), percent(stage["progress"]), stage["attempt"] or ""]
        if made:
            sizes = [each["size_bytes"] for each in made if each["name"].partition("/")[0] == name]
            row += [f"{len(sizes)} ({size(sum(sizes))})" if sizes else ""]
        if mine:
            row += [f"{100 * max(each['peak_cpu'] for each in mine):.0f} %"]
            row += [size(max(each["peak_memory_bytes"] for each in mine))]
        elif measured:
            row += ["", ""]
        rows.append([*row, watching.message(stage)])
    output.table(columns, rows)


def _served(pipeline: Json) -> str:
    return "running" if pipeline.get("is_served", True) else "no worker"  # an older server does not say


def _usage(schema: Json) -> str:
    required = schema.get("required", [])
    return " ".join(name if name in required else f"[{name}]" for name in schema.get("properties", {}))

"""The commands about jobs that are there: list, show, logs, cancel, retry, result; and what can be submitted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Literal

from cyclopts import Parameter

from packhorse.cli import printing, watching
from packhorse.cli.options import Remote
from packhorse.client import Client, Json
from packhorse.core import wire
from packhorse.errors import InvalidInput

Status = Literal["pending", "running", "completed", "failed", "cancelled"]
TERMINAL = watching.EXIT.keys()
MIB = 1024**2


def jobs(
    *,
    user: str | None = None,
    status: Status | None = None,
    pipeline: str | None = None,
    limit: int = 20,
    remote: Remote = Remote(),
) -> None:
    """List jobs, newest first.

    Parameters
    ----------
    user
        Only this user's.
    status
        Only those that are so.
    pipeline
        Only those of this pipeline.
    limit
        How many at most.
    """
    with Client(remote.url) as client:
        page = client.list(user=user, status=status, pipeline=pipeline, limit=limit)
    if remote.json:
        printing.document(page)
    elif page["items"]:
        columns = ("job", "pipeline", "user", "status", "progress", "stage", "created")
        printing.table(columns, map(_row, page["items"]))
    else:
        printing.said("There are no such jobs. Submit one with: packhorse submit PIPELINE")


def show(job: str, /, *, follow: bool = False, remote: Remote = Remote()) -> int:
    """Show a job, or follow it until it has ended.

    Parameters
    ----------
    job
        Its id.
    follow
        Show progress until it has ended; the exit code is 0 completed, 1 failed, 4 cancelled.
    """
    with Client(remote.url) as client:
        if not follow:
            _shown(client, job, remote)
            return 0
        found = watching.followed(client, job, json=remote.json)
    return watching.DETACHED if found is None else watching.ended(found)


def logs(
    job: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    stage: str | None = None,
    remote: Remote = Remote(),
) -> None:
    """Print what a job's stages have printed.

    Parameters
    ----------
    job
        Its id.
    follow
        Go on until the job has ended.
    stage
        Only of this stage.
    """
    with Client(remote.url) as client:
        for line in (_live if follow else _written)(client, job, stage):
            if remote.json:
                printing.document(line)
            else:
                printing.line(watching.place(line), line["text"])


def cancel(job: str, /, *, remote: Remote = Remote()) -> None:
    """Cancel a job.

    Parameters
    ----------
    job
        Its id.
    """
    with Client(remote.url) as client:
        _changed(client.cancel(job), remote)


def retry(job: str, /, *, stage: str | None = None, remote: Remote = Remote()) -> None:
    """Run a job again, from the stage that failed.

    Parameters
    ----------
    job
        Its id.
    stage
        Redo this stage and what follows it; * for all.
    """
    with Client(remote.url) as client:
        before = client.get(job)
        after = client.retry(job, stage)
    _changed(after, remote)
    if after["run"] == before["run"]:
        printing.said("It is active, and was left alone.")


def result(job: str, /, *, output: str = ".", remote: Remote = Remote()) -> None:
    """Download a job's result.

    Parameters
    ----------
    job
        Its id.
    output
        File to write to, or folder/ to write into; else the folder we are in. A result without files is printed.
    """
    to = target(output)
    with Client(remote.url) as client:
        kept(client, job, to, json=remote.json)


def pipelines(*, remote: Remote = Remote()) -> None:
    """List what can be submitted."""
    with Client(remote.url) as client:
        found = client.pipelines()
    if remote.json:
        printing.document({"items": found, "next": None})
    elif found:
        rows = [(each["name"], each["app"], _usage(each["schema"]), each["description"]) for each in found]
        printing.table(("pipeline", "app", "parameters", "meaning"), rows)
    else:
        printing.said("No pipeline is published. A worker publishes its own when it starts: packhorse worker FILE")


def target(output: str) -> Path:
    """Where a result goes. A name that ends in a slash is a folder, and made if it is not there."""
    path = Path(output).expanduser()
    with _writing(output):
        (path if output.endswith(os.sep) else path.parent).mkdir(parents=True, exist_ok=True)
    return path


def tried(output: str) -> Path:
    """The same, tried out before the job: it may take hours, and then it would be too late to hear that it cannot."""
    path = target(output)
    with _writing(output):
        if path.is_file():
            path.open("ab").close()
        if path.is_dir() or path.is_file() or not path.exists():  # a device is written to as it is
            TemporaryFile(dir=path if path.is_dir() else path.parent).close()
    return path


def kept(client: Client, job_id: str, output: Path, *, json: bool) -> None:
    """Write the result where it was asked for; one without files is a value, and printed if no file was named."""
    with _writing(str(output)):  # a disk may be full by now
        found = client.result(job_id, output)
    if isinstance(found, Path):
        printing.document({"path": str(found)}) if json else printing.plain(str(found))
    elif output.is_dir():
        printing.document(found)
    else:
        with _writing(str(output)):
            output.write_bytes(wire.encode(found) + b"\n")
        printing.said(f"Written to {output}.")


@contextmanager
def _writing(output: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise InvalidInput(f"Nothing can be written to {output}: {why}.", field="output") from error


def _written(client: Client, job_id: str, stage: str | None) -> Iterator[Json]:
    after = 0
    while items := client.log(job_id, after, stage)["items"]:
        yield from items
        after = items[-1]["n"]


def _live(client: Client, job_id: str, stage: str | None) -> Iterator[Json]:
    """From the first line on; what a new connection says again is left out."""
    after = 0
    for event in client.events(job_id):
        line = event["data"]
        if event["type"] == "log" and line["n"] > after:
            after = line["n"]
            if stage in (None, line["stage"]):
                yield line


def _row(job: Json) -> tuple[object, ...]:
    created = job["created_at"][:19].replace("T", " ")
    progress = f"{job['progress']:.0f} %"
    return job["job_id"], job["pipeline"], job["user_id"], job["status"], progress, job["stage"], created


def _shown(client: Client, job_id: str, remote: Remote) -> None:
    job = client.get(job_id)
    if remote.json:
        printing.document(job)
        return
    names = ("job_id", "pipeline", "user_id", "status", "created_at", "started_at", "completed_at", "expires_at", "run")
    printing.facts({name: job[name] for name in names if job[name] is not None})
    _stages(job, client.metrics(job_id))
    if job["status"] not in TERMINAL:
        for reason in client.explain(job_id):
            printing.facts({"waiting": reason["message"]})
    if job["error"] is not None:
        printing.facts({"error": f"{job['error']['code']}: {job['error']['message']}"})
    if job["result"] is not None:
        printing.facts({"result": wire.encode(job["result"]).decode()})


def _stages(job: Json, measured: Sequence[Json]) -> None:
    """With the most that each has used at a time, if any ran long enough to be measured."""
    columns = ["stage", "status", "progress", "attempt", *(("peak cpu", "peak memory") if measured else ()), "message"]
    rows = []
    for name, stage in job["stages"].items():
        mine = [each for each in measured if each["stage"] == name]
        row = [name, stage["status"], f"{stage['progress']:.0f} %", stage["attempt"]]
        if mine:
            row += [f"{100 * max(each['peak_cpu'] for each in mine):.0f} %"]
            row += [f"{max(each['peak_memory_bytes'] for each in mine) / MIB:.0f} MiB"]
        elif measured:
            row += ["", ""]
        rows.append([*row, stage["message"]])
    printing.table(columns, rows)


def _changed(job: Json, remote: Remote) -> None:
    if remote.json:
        printing.document(job)
        return
    stopping = " and being stopped" if job["stopping"] and job["status"] not in TERMINAL else ""
    printing.plain(f"Job {job['job_id']} is {job['status']}{stopping}.")


def _usage(schema: Json) -> str:
    required = schema.get("required", [])
    return " ".join(name if name in required else f"[{name}]" for name in schema.get("properties", {}))

"""`packhorse submit`: parameters and files in, a job out, and its result if asked to wait."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import CycloptsError, Parameter

from packhorse.cli import follow
from packhorse.cli import output as printing
from packhorse.cli.commands.results import check_target, save_result
from packhorse.cli.options import Remote, Whole
from packhorse.cli.values import group_words, parameters_from
from packhorse.client import Client, Json
from packhorse.define.options import seconds
from packhorse.define.validation import unknown_pipeline


def submit(
    pipeline: str,
    /,
    *values: Annotated[str, Parameter(name="NAME=VALUE")],
    user: str | None = None,
    priority: Whole = 0,
    delay: str | None = None,
    key: str | None = None,
    wait: bool = False,
    output: str | None = None,
    remote: Remote = Remote(),
) -> int:
    """Submit a job.

    Parameters
    ----------
    pipeline
        Which one; see them with: packhorse pipelines
    values
        Parameters. A file is NAME=@PATH, or just NAME=PATH; for any other parameter NAME=@PATH is what the file says,
        and NAME=@@TEXT is a text that begins with @. A repeated name makes a list.
    user
        Whom the job is for.
    priority
        Higher goes first.
    delay
        Not before so long from now, as 10m.
    key
        Submitting again with the same key gives the first job instead of another.
    wait
        Show progress until it has ended; the exit code is 0 completed, 1 failed, 4 cancelled.
    output
        Wait, and write the result to this file, or into this folder/.
    """
    wait_before = _seconds(delay)
    words = group_words(values, "submit")
    to = None if output is None else check_target(output)
    with remote.client() as client:
        parameters, files = parameters_from(words, schema_of(client, pipeline))
        job = client.submit(
            pipeline, parameters, files=files, user=user, priority=priority, delay=wait_before, key=key
        )  # fmt: skip
        if wait or to is not None:
            return _wait_and_report(client, job, to, remote)
    _print_job(job, remote)
    return 0


def _wait_and_report(client: Client, job: Json, output: Path | None, remote: Remote) -> int:
    printing.message(f"Job {job['job_id']} is submitted.")
    found = follow.follow_job(client, job["job_id"])
    if found is None:
        return follow.DETACHED
    code = follow.report_end(found)
    if remote.json:
        printing.document(found)
    if code == 0 and output is not None:
        save_result(client, job["job_id"], output, json=remote.json)
    elif code == 0 and not remote.json:
        printing.plain(job["job_id"])
    return code


def _print_job(job: Json, remote: Remote) -> None:
    if remote.json:
        printing.document(job)
        return
    printing.plain(job["job_id"])
    printing.message(f"Follow it with: packhorse show {job['job_id']} --follow")


def schema_of(client: Client, pipeline: str) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {each["name"]: each["schema"] for each in client.pipelines()}
    if pipeline not in found:
        raise unknown_pipeline(pipeline, found)
    return found[pipeline]


def _seconds(delay: str | None) -> float:
    try:
        return 0.0 if delay is None else seconds(delay)
    except ValueError as error:
        raise CycloptsError(msg=f"--delay: {error}", command_chain=["submit"]) from error

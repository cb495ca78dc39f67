"""The commands that fetch what a job has made: its result, and the artifacts of its stages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from cyclopts import Parameter

from packhorse.cli import output as printing
from packhorse.cli.options import JobId, Remote, not_empty, resolve_job
from packhorse.client import Client, Json
from packhorse.core import json as wire
from packhorse.errors import InvalidInput

STEP = 1024
COLUMNS = ("artifact", "size", "type")

ArtifactName = Annotated[
    str | None, Parameter(validator=not_empty("the name is empty; leave it out to list all artifacts"))
]


def result(job: JobId, /, *, output: str = ".", remote: Remote = Remote()) -> None:
    """Download a job's result.

    Args:
        output:
            File to write to, or folder (with a slash at the end) to write into. Default: the current folder. A result
            without files is printed.
    """
    to = target(output)
    with remote.client() as client:
        save_result(client, resolve_job(client, job), to, remote)


def artifacts(job: JobId, name: ArtifactName = None, /, *, output: str = ".", remote: Remote = Remote()) -> None:
    """List the files that the stages of a job produced, or download one.

    Args:
        name: Name of the artifact to download, as listed. Default: list all.
        output: File to write to, or folder (with a slash at the end) to write into. Default: the current folder.
    """
    to = None if name is None else target(output)
    with remote.client() as client:
        job = resolve_job(client, job)
        if name is not None and to is not None:
            _print_path(client.artifact(job, name, to), remote)
            return
        found = client.artifacts(job)
    remote.print_list(found, COLUMNS, artifact_row, "The job has no files.")


def artifact_row(artifact: Json) -> tuple[object, ...]:
    return artifact["name"], _size(artifact["size_bytes"]), artifact["content_type"]


def target(output: str) -> Path:
    """Where a result goes. A name that ends in a slash is a folder, and made if it is not there."""
    path = Path(output).expanduser()
    with translate_os_errors(output):
        (path if output.endswith(os.sep) else path.parent).mkdir(parents=True, exist_ok=True)
    return path


def check_target(output: str) -> Path:
    """The same, tried out before the job: it may take hours, and then it would be too late to hear that it cannot."""
    path = target(output)
    with translate_os_errors(output):
        if path.is_file():
            path.open("ab").close()
        if path.is_dir() or path.is_file() or not path.exists():  # a device is written to as it is
            TemporaryFile(dir=path if path.is_dir() else path.parent).close()
    return path


def save_result(client: Client, job_id: str, output: Path, remote: Remote) -> None:
    """Write the result to the given place; one without files is a value, and printed if no file was named."""
    with translate_os_errors(str(output)):  # a disk may be full by now
        found = client.result(job_id, output)
    if isinstance(found, Path):
        _print_path(found, remote)
    elif output.is_dir():
        printing.document(found)
    else:
        with translate_os_errors(str(output)):
            output.write_bytes(wire.encode(found) + b"\n")
        printing.message(f"Written to {output}.")


@contextmanager
def translate_os_errors(output: str) -> Iterator[None]:
    """What the file system refuses, as a sentence."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise InvalidInput(f"Cannot write to {output}: {why}.", field="output") from error


def _print_path(path: Path, remote: Remote) -> None:
    remote.print_one({"path": str(path)}, str(path))


def _size(count: float) -> str:
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if count < STEP:
            break
        count, unit = count / STEP, larger
    return f"{count:.0f} {unit}"

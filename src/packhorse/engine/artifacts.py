"""Files on their way into a stage and out of it: objects become paths in scratch, paths become objects."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packhorse.blob.base import Blobs
from packhorse.child.messages import Argument, Document, Made
from packhorse.core.model import Artifact, Need, Result, Stored
from packhorse.define import values
from packhorse.define.files import placed, sanitised
from packhorse.errors import InvalidInput
from packhorse.store.base import Claim


def input_key(job_id: str, parameter: str, index: int, name: str) -> str:
    return f"jobs/{job_id}/input/{parameter}.{index}{_suffix(name)}"


def output_prefix(job_id: str, stage: str, token: str) -> str:
    """A folder per attempt: a late worker can not replace what a later attempt has published."""
    return f"jobs/{job_id}/output/{stage}/{token}"


def content_type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


class Materials:
    """Brings what one attempt needs into its scratch folder."""

    def __init__(self, blobs: Blobs, scratch: Path) -> None:
        self._blobs = blobs
        self._scratch = scratch
        self._count = 0

    async def parameters(self, claim: Claim) -> Document:
        files = [await self._fetch(each.file) for each in claim.spec.inputs]
        return Document(claim.spec.parameters, tuple(files))

    async def arguments(self, claim: Claim) -> tuple[Argument, ...]:
        return tuple(
            [
                Argument(need.parameter, need.how, await self._values(claim, need))
                for need in claim.job.plan.stage(claim.task.stage).needs
            ]
        )

    async def _values(self, claim: Claim, need: Need) -> tuple[Document, ...]:
        """For ``each`` only what this element is about: the result of the same element, or one element of a list."""
        results = claim.upstream[need.stage]
        if need.how != "each":
            return tuple([await self._document(result) for result in results])
        if claim.job.plan.stage(need.stage).over is not None:
            return (await self._document(results[claim.task.element]),)
        value, files = values.element(results[0].value, results[0].files, claim.task.element)
        return (await self._document(Result(value, tuple(files))),)

    async def _document(self, result: Result) -> Document:
        return Document(result.value, tuple([await self._fetch(artifact.file) for artifact in result.files]))

    async def _fetch(self, file: Stored) -> tuple[str, str]:
        """A folder per file, so that two files of one name do not meet."""
        self._count += 1
        folder = self._scratch / "in" / str(self._count)
        folder.mkdir(parents=True)
        path = folder / file.name
        await self._blobs.fetch(file.key, path)
        return str(path), file.name


async def publish(blobs: Blobs, claim: Claim, scratch: Path, document: Document, made: Sequence[Made]) -> Result:
    """Put the files of a result into the object store, bytes before any record of them."""
    if not document.files and not made:
        return Result(document.value)
    put = _Putter(blobs, claim, scratch)
    # Names came from a child, and will be those of files in another attempt's scratch.
    files = [await put.file(Path(path), sanitised(name)) for path, name in document.files]
    extra = [await put.file(Path(each.path), placed(each.name)) for each in made]
    return Result(document.value, tuple(files), tuple(extra))


class _Putter:
    def __init__(self, blobs: Blobs, claim: Claim, scratch: Path) -> None:
        self._blobs = blobs
        self._prefix = output_prefix(claim.job.id, claim.task.stage, claim.token)
        self._scratch = scratch.resolve()
        self._named = f"{claim.task.stage}/"
        if claim.job.plan.stage(claim.task.stage).over is not None:
            self._named += f"{claim.task.element}/"
        self._names: set[str] = set()
        self._count = 0

    async def file(self, path: Path, name: str) -> Artifact:
        real = path.resolve()  # noqa: ASYNC240 (a stat or two)
        if not real.is_relative_to(self._scratch) or not real.is_file():
            raise InvalidInput(f"The stage named {name!r} as a file, but there is none in its scratch folder.")
        key = f"{self._prefix}/{self._count}{_suffix(name)}"
        self._count += 1
        summed = await self._blobs.put_file(key, real)
        stored = Stored(key, name.rpartition("/")[2], summed.size, summed.sha256, content_type(name))
        return Artifact(self._named + self._unique(name), stored)

    def _unique(self, name: str) -> str:
        """Two files of one name are asked for as ``a.txt`` and ``a-2.txt``."""
        candidate, n = name, 2
        folder, slash, last = name.rpartition("/")
        while candidate in self._names:
            stem, dot, suffix = last.rpartition(".")
            candidate = folder + slash + (f"{stem}-{n}{dot}{suffix}" if stem else f"{last}-{n}")
            n += 1
        self._names.add(candidate)
        return candidate


def referenced(results: Mapping[Any, Result]) -> set[str]:
    """The keys of all objects that a job's results refer to."""
    return {artifact.file.key for result in results.values() for artifact in result.artifacts}


def _suffix(name: str) -> str:
    """Only what is surely harmless: storage names are ours, the name a person gave is data."""
    found = re.search(r"\.[A-Za-z0-9]{1,12}$", name)
    return found[0].lower() if found else ""

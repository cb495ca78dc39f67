"""Files on their way into a stage and out of it: objects become paths in scratch, paths become objects."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from packhorse.blobs.base import Blobs
from packhorse.core.models import Artifact, Result, Stored
from packhorse.core.plan import Need
from packhorse.define import values
from packhorse.define.files import placed, sanitised
from packhorse.errors import ArtifactNotFound, InvalidInput
from packhorse.store.base import Claim, Store
from packhorse.worker.child.messages import Argument, Document, Made

T = TypeVar("T")
G = TypeVar("G")

AT_A_TIME = 8
"""Files of one attempt on their way at once: enough to hide the way to an object store, few enough to hold."""


def input_key(job_id: str, parameter: str, index: int, name: str) -> str:
    return f"jobs/{job_id}/input/{parameter}.{index}{_suffix(name)}"


def output_prefix(job_id: str, stage: str, token: str) -> str:
    """A folder per attempt: a late worker can not replace what a later attempt has published."""
    return f"jobs/{job_id}/output/{stage}/{token}"


def content_type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


class Materials:
    """Brings what one attempt needs into its scratch folder: name everything, then `bring` it."""

    def __init__(self, blobs: Blobs, scratch: Path | str) -> None:
        self._blobs = blobs
        self._scratch = scratch
        self._wanted: list[tuple[str, Path]] = []

    def parameters(self, claim: Claim) -> Document:
        return Document(claim.spec.parameters, tuple([self._want(each.file) for each in claim.spec.inputs]))

    def arguments(self, claim: Claim) -> tuple[Argument, ...]:
        needs = claim.job.plan.stage(claim.task.stage).needs
        return tuple([Argument(need.parameter, need.how, self._values(claim, need)) for need in needs])

    @property
    def are_files(self) -> bool:
        return bool(self._wanted)

    async def bring(self) -> None:
        if self._wanted:  # gathering nothing costs as much as sending the stage to its process
            await few_at_a_time(self._fetch, self._wanted)

    def _values(self, claim: Claim, need: Need) -> tuple[Document, ...]:
        """For ``each`` only what this element is about: the result of the same element, or one element of a list."""
        results = claim.upstream[need.stage]
        if need.how != "each":
            return tuple([self._document(result) for result in results])
        if claim.job.plan.stage(need.stage).over is not None:
            return (self._document(results[claim.task.element]),)
        value, files = values.element(results[0].value, results[0].files, claim.task.element)
        return (self._document(Result(value, tuple(files))),)

    def _document(self, result: Result) -> Document:
        return Document(result.value, tuple([self._want(artifact.file) for artifact in result.files]))

    def _want(self, file: Stored) -> tuple[str, str]:
        """A folder per file, so that two files of one name do not meet."""
        path = Path(self._scratch, "in", str(len(self._wanted) + 1), file.name)
        self._wanted.append((file.key, path))
        return str(path), file.name

    async def _fetch(self, wanted: tuple[str, Path]) -> None:
        key, path = wanted
        path.parent.mkdir(parents=True)
        await self._blobs.fetch(key, path)


async def publish(blobs: Blobs, claim: Claim, scratch: Path | str, document: Document, made: Sequence[Made]) -> Result:
    """Put the files of a result into the object store, bytes before any record of them."""
    if not document.files and not made:
        return Result(document.value)
    put = _Putter(blobs, claim, scratch)
    # Names came from a child, and will be those of files in another attempt's scratch.
    named = [
        *((path, sanitised(name)) for path, name in document.files),
        *((each.path, placed(each.name)) for each in made),
    ]
    found = await few_at_a_time(put.file, [put.named(Path(path), name) for path, name in named])
    return Result(document.value, tuple(found[: len(document.files)]), tuple(found[len(document.files) :]))


class _Putter:
    def __init__(self, blobs: Blobs, claim: Claim, scratch: Path | str) -> None:
        self._blobs = blobs
        self._prefix = output_prefix(claim.job.id, claim.task.stage, claim.token)
        self._scratch = Path(scratch).resolve()
        self._named = f"{claim.task.stage}/"
        if claim.job.plan.stage(claim.task.stage).over is not None:
            self._named += f"{claim.task.element}/"
        self._names: set[str] = set()
        self._count = 0

    def named(self, path: Path, name: str) -> tuple[Path, Artifact]:
        """The artifact it will be, without what only its bytes can tell. The order in which files are named counts."""
        key = f"{self._prefix}/{self._count}{_suffix(name)}"
        self._count += 1
        stored = Stored(key, name.rpartition("/")[2], 0, "", content_type(name))
        return path, Artifact(self._named + self._unique(name), stored)

    async def file(self, made: tuple[Path, Artifact]) -> Artifact:
        path, artifact = made
        real = path.resolve()
        if not real.is_relative_to(self._scratch) or not real.is_file():
            raise InvalidInput(
                f"The stage named {artifact.file.name!r} as a file, but there is none in its scratch folder."
            )
        summed = await self._blobs.put_file(artifact.file.key, real)
        return replace(artifact, file=replace(artifact.file, size=summed.size, sha256=summed.sha256))

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


async def few_at_a_time(work: Callable[[G], Awaitable[T]], given: Iterable[G]) -> list[T]:
    """What each comes to, in order. The first failure ends the others, and is raised when all have ended."""
    turns = asyncio.Semaphore(AT_A_TIME)

    async def in_turn(one: G) -> T:
        async with turns:
            return await work(one)

    tasks = [asyncio.create_task(in_turn(one)) for one in given]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def made(store: Store, job_id: str, name: str) -> Stored:
    """The file that a job has made under this name. Raises `ArtifactNotFound`."""
    results = (await store.results([job_id])).get(job_id, {})
    for artifact in (artifact for result in results.values() for artifact in result.artifacts):
        if artifact.name == name:
            return artifact.file
    raise ArtifactNotFound(job_id=job_id, name=name)


def referenced(results: Mapping[Any, Result]) -> set[str]:
    """The keys of all objects that a job's results refer to."""
    return {artifact.file.key for result in results.values() for artifact in result.artifacts}


def _suffix(name: str) -> str:
    """Only what is surely harmless: storage names are ours, the name a person gave is data."""
    found = re.search(r"\.[A-Za-z0-9]{1,12}$", name)
    return found[0].lower() if found else ""

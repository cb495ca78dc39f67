"""The files of a job in the object store: their keys, who refers to them, and copies that a job publishes.

A job can publish its files under a path that its author chooses; the newest job there wins. It leaves a mark beside the
folder that lists its files. A process that changes anything makes the folder show what the newest mark lists, and then
checks the marks again. So it does not matter who is late, who is killed, or how many do it at once: the last one to
check sees the newest mark.
"""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeVar

from packhorse.blobs.base import Blobs, is_key
from packhorse.core import json, publish_path
from packhorse.core.models import Artifact, Job, Result, Stored, TaskId
from packhorse.define.files import artifact_key, hash_name
from packhorse.errors import ArtifactNotFound, BlobExists, BlobNotFound, CorruptRecord, NoDestination
from packhorse.jobs.deployment import PublishDestination
from packhorse.schemas.jobs import final_files
from packhorse.store.base import Store

T = TypeVar("T")
G = TypeVar("G")

AT_A_TIME = 8
"""Files of one attempt that are transferred concurrently."""

MARKS = "publishing"
ELSEWHERE = "/%"  # behind MARKS, as a folder that no tenant has: the files are in a destination of their own
BATCH = 100
PAGE = 1000
TRIES = 5
"""Tries to put one file while other jobs put theirs in its place."""
KEPT = 2
"""Marks that are kept per folder: of the job that is shown, and of the one before it."""

Files = dict[str, Stored]


def input_key(job_id: str, parameter: str, index: int, name: str) -> str:
    return f"jobs/{job_id}/input/{parameter}.{index}{safe_suffix(name)}"


def output_prefix(job_id: str, stage: str, token: str) -> str:
    """A folder per attempt: a late worker cannot replace what a later attempt has published."""
    return f"jobs/{job_id}/output/{stage}/{token}"


def content_type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


async def few_at_a_time(work: Callable[[G], Awaitable[T]], given: Iterable[G]) -> list[T]:
    """The results in order. The first error cancels the others and is raised when all have ended."""
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


async def find_artifact(store: Store, job_id: str, name: str, *, result_of: Job | None = None) -> Stored:
    """Of what the stages made, or of the result of this job. Raises ArtifactNotFound."""
    results = (await store.results([job_id])).get(job_id, {})
    made = [artifact for result in results.values() for artifact in result.artifacts]
    for artifact in made if result_of is None else final_files(result_of, results):
        if artifact.name == name:
            return artifact.file
    raise ArtifactNotFound(job_id=job_id, name=name)


async def checksum(blobs: Blobs, key: str) -> str:
    summed = sha256()
    async for piece in blobs.read(key):
        summed.update(piece)
    return summed.hexdigest()


async def all_keys(blobs: Blobs, prefix: str) -> list[str]:
    found: list[str] = []
    while page := await blobs.keys(prefix, after=found[-1] if found else None, limit=PAGE):
        found += page
    return found


def referenced_keys(results: Mapping[Any, Result]) -> set[str]:
    """The keys of all objects that a job's results refer to."""
    return {artifact.file.key for result in results.values() for artifact in result.artifacts}


def safe_suffix(name: str) -> str:
    """Only what is harmless in a key: the name that a person gave is data."""
    found = re.search(r"\.[A-Za-z0-9]{1,12}$", name)
    return found[0].lower() if found else ""


# Publishing.


def published_files(to: str, job: Job, results: Mapping[TaskId, Result]) -> Files:
    """All artifacts of a job by name, without the names of the stages; of two with one name, the later."""
    named: dict[str, Artifact] = {}
    for stage in job.plan.stages:
        for at in sorted(at for at in results if at.stage == stage.name):
            named |= {_publish_name(to, made.name.partition("/")[2]): made for made in results[at].artifacts}
    return {name: made.file for name, made in named.items() if not any(each.startswith(f"{name}/") for each in named)}


class Publisher:
    def __init__(self, blobs: Blobs, destination: PublishDestination | None = None) -> None:
        """Without a destination, a job that publishes there raises `NoDestination`: another worker may have it."""
        self._blobs = blobs
        self._destination = destination

    async def publish(self, job: Job, results: Mapping[TaskId, Result]) -> None:
        """Can be repeated. A job without files publishes nothing and leaves what is there."""
        to = publish_path.publish_folder(job)
        if to is None or not (made := published_files(to, job, results)):
            return
        mark = f"{_marks(to)}/{job.id}.{job.run:06}"
        if not is_key(mark):  # the path is too long: another try would not help
            return
        with suppress(BlobExists):
            await self._blobs.put(mark, _once(json.encode(made)))
        await self._show(to)

    async def withdraw(self, to: str, job_id: str) -> None:
        """Remove what the job published; show the job before it again, if that still exists."""
        marks = await self._all(to)
        mine = [mark for mark in marks if _owner(mark) == job_id]
        if mine:
            await self._let_show(to, marks, [mark for mark in marks if mark not in mine])
            await self._blobs.delete([f"{_marks(to)}/{mark}" for mark in mine])
            await self._show(to)

    async def strays(self, store: Store, after: str) -> tuple[list[str], str]:
        """One page of marks whose jobs no longer exist, and where the next page begins."""
        keys = await self._blobs.keys(MARKS, after=after or None, limit=BATCH)
        known = await store.existing_ids(sorted({_owner(key) for key in keys}))
        return [key for key in keys if _owner(key) not in known], keys[-1] if len(keys) == BATCH else ""

    async def withdraw_stray(self, mark: str) -> None:
        folder = mark.removeprefix(MARKS).rpartition("/")[0]
        is_elsewhere = folder.startswith(f"{ELSEWHERE}/")  # with the slash: the folders of some tenants begin with %
        to = folder.removeprefix(ELSEWHERE) if is_elsewhere else publish_path.ROOT + folder
        await self.withdraw(to, _owner(mark))

    async def _show(self, to: str) -> None:
        marks = await self._all(to)
        while marks:
            await self._let_show(to, marks, marks)
            await self._blobs.delete([f"{_marks(to)}/{mark}" for mark in marks[:-KEPT]])
            seen, marks = marks[-1], await self._all(to)
            if marks and marks[-1] == seen:
                return

    async def _let_show(self, to: str, marks: Sequence[str], left: Sequence[str]) -> None:
        """Put the files of the newest readable mark in ``left``, and delete files that only other marks list."""
        listed = {mark: await self._read_mark(to, mark) for mark in marks}
        wanted = next((listed[mark] for mark in reversed(left) if listed[mark]), {})
        others = {name for files in listed.values() for name in files if name not in wanted}
        there = await self._place(to)
        await there.delete([f"{to}/{name}".removeprefix("/") for name in sorted(others)])
        for name, file in wanted.items():
            with suppress(BlobNotFound):  # its job was purged or run again meanwhile
                await self._put(there, f"{to}/{name}".removeprefix("/"), file)

    async def _place(self, to: str) -> Blobs:
        if not to.startswith("/"):
            return self._blobs
        if self._destination is None:
            raise NoDestination(reason="PACKHORSE_PUBLISH_TO is not set for this worker")
        return await self._destination.open()

    async def _put(self, there: Blobs, key: str, file: Stored) -> None:
        """Objects are never overwritten: another's file is deleted first, and for a moment there is none."""
        for _ in range(TRIES):
            size = await there.size(key)
            if size == file.size and await checksum(there, key) == file.sha256:
                return
            if size is not None:
                await there.delete([key])
            with suppress(BlobExists):
                if there is self._blobs:
                    await there.copy(file.key, key)
                else:
                    await there.put(key, self._blobs.read(file.key))
                return
        raise BlobExists(key=key)

    async def _all(self, to: str) -> list[str]:
        """The marks of the folder, oldest job first; none if its path is no valid key."""
        if not is_key(_marks(to)):
            return []
        names = (key.removeprefix(f"{_marks(to)}/") for key in await all_keys(self._blobs, _marks(to)))
        return sorted(name for name in names if "/" not in name)

    async def _read_mark(self, to: str, mark: str) -> Files:
        """Empty if the mark is gone or unreadable: another try would not help, and other jobs share the folder.

        Without invalid keys: they could be neither put nor deleted, and their job could never be purged.
        """
        with suppress(BlobNotFound, CorruptRecord):
            pieces = [piece async for piece in self._blobs.read(f"{_marks(to)}/{mark}")]
            listed = json.record(b"".join(pieces), Files)
            return {name: file for name, file in listed.items() if is_key(f"{to}/{name}".removeprefix("/"))}
        return {}


def _publish_name(to: str, name: str) -> str:
    """A hash if the name is too long below this path."""
    key = artifact_key(name)
    return key if is_key(f"{to}/{key}".removeprefix("/")) else hash_name(name)


def _marks(to: str) -> str:
    return MARKS + (f"{ELSEWHERE}{to}" if to.startswith("/") else to.removeprefix(publish_path.ROOT))


def _owner(mark: str) -> str:
    return mark.rpartition("/")[2].partition(".")[0]


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data

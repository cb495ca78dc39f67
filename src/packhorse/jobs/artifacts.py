"""The files of a job in the object store: their keys, who refers to them, and copies that a job publishes.

A job can publish its files under a path that its author chooses; the newest job there wins. It leaves a mark beside the
folder that lists its files. Whoever changes anything makes the folder show what the newest mark lists, and checks the
marks again afterwards. So it does not matter who is late, who is killed, or how many do it at once: the last one to
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
from packhorse.errors import ArtifactNotFound, BlobExists, BlobNotFound, CorruptRecord
from packhorse.store.base import Store

T = TypeVar("T")
G = TypeVar("G")

AT_A_TIME = 8
"""Files of one attempt that are transferred concurrently."""

MARKS = "publishing"
BATCH = 100
PAGE = 1000
TRIES = 5
"""Puts of one file while others put theirs in its place."""
KEPT = 2
"""Marks that are kept of a folder: who is shown, and who is shown again if that one goes."""

Files = dict[str, Stored]


def input_key(job_id: str, parameter: str, index: int, name: str) -> str:
    return f"jobs/{job_id}/input/{parameter}.{index}{safe_suffix(name)}"


def output_prefix(job_id: str, stage: str, token: str) -> str:
    """A folder per attempt: a late worker can not replace what a later attempt has published."""
    return f"jobs/{job_id}/output/{stage}/{token}"


def content_type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


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


async def find_artifact(store: Store, job_id: str, name: str) -> Stored:
    """The file that a job has made under this name. Raises `ArtifactNotFound`."""
    results = (await store.results([job_id])).get(job_id, {})
    for artifact in (artifact for result in results.values() for artifact in result.artifacts):
        if artifact.name == name:
            return artifact.file
    raise ArtifactNotFound(job_id=job_id, name=name)


def referenced_keys(results: Mapping[Any, Result]) -> set[str]:
    """The keys of all objects that a job's results refer to."""
    return {artifact.file.key for result in results.values() for artifact in result.artifacts}


def safe_suffix(name: str) -> str:
    """Only what is surely harmless: storage names are ours, the name a person gave is data."""
    found = re.search(r"\.[A-Za-z0-9]{1,12}$", name)
    return found[0].lower() if found else ""


# Publishing.


def published_files(to: str, job: Job, results: Mapping[TaskId, Result]) -> Files:
    """What a job publishes: all that its stages made, without the names of the stages; of two of a name the later."""
    named: dict[str, Artifact] = {}
    for stage in job.plan.stages:
        for at in sorted(at for at in results if at.stage == stage.name):
            named |= {_named(to, made.name.partition("/")[2]): made for made in results[at].artifacts}
    return {name: made.file for name, made in named.items() if not any(each.startswith(f"{name}/") for each in named)}


class Publisher:
    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def publish(self, job: Job, results: Mapping[TaskId, Result]) -> None:
        """May be repeated. A job without files publishes nothing, and leaves what is there."""
        to = publish_path.publish_folder(job)
        if to is None or not (made := published_files(to, job, results)):
            return
        mark = f"{_marks(to)}/{_mark(job.id, job.run)}"
        if not is_key(mark):  # the path itself is too long: trying again would not help
            return
        with suppress(BlobExists):
            await self._blobs.put(mark, _once(json.encode(made)))
        await self._show(to)

    async def withdraw(self, to: str, job_id: str) -> None:
        """The job goes, and with it what it published; the one before it is shown again, if that is still there."""
        marks = await self._all(to)
        mine = [mark for mark in marks if _owner(mark) == job_id]
        if mine:
            await self._let_show(to, marks, [mark for mark in marks if mark not in mine])
            await self._blobs.delete([f"{_marks(to)}/{mark}" for mark in mine])
            await self._show(to)

    async def strays(self, store: Store, after: str) -> tuple[list[str], str]:
        """Of one page of marks those whose jobs are no more; where the next page begins."""
        keys = await self._blobs.keys(MARKS, after=after or None, limit=BATCH)
        known = await store.known(sorted({_owner(key) for key in keys}))
        return [key for key in keys if _owner(key) not in known], keys[-1] if len(keys) == BATCH else ""

    async def withdraw_stray(self, mark: str) -> None:
        await self.withdraw(publish_path.ROOT + mark.removeprefix(MARKS).rpartition("/")[0], _owner(mark))

    async def _show(self, to: str) -> None:
        marks = await self._all(to)
        while marks:
            await self._let_show(to, marks, marks)
            await self._blobs.delete([f"{_marks(to)}/{mark}" for mark in marks[:-KEPT]])
            seen, marks = marks[-1], await self._all(to)
            if marks and marks[-1] == seen:
                return

    async def _let_show(self, to: str, marks: Sequence[str], left: Sequence[str]) -> None:
        """What the last of those left that can be read has published, and nothing that only others have."""
        said = {mark: await self._said(to, mark) for mark in marks}
        wanted = next((said[mark] for mark in reversed(left) if said[mark]), {})
        others = {name for files in said.values() for name in files if name not in wanted}
        await self._blobs.delete([f"{to}/{name}" for name in sorted(others)])
        for name, file in wanted.items():
            with suppress(BlobNotFound):  # its job has just been purged, or run again
                await self._put(f"{to}/{name}", file)

    async def _put(self, key: str, file: Stored) -> None:
        """Objects are never overwritten: what is another's is deleted first, and for a moment there is none."""
        for _ in range(TRIES):
            size = await self._blobs.size(key)
            if size == file.size and await self._sum(key) == file.sha256:
                return
            if size is not None:
                await self._blobs.delete([key])
            with suppress(BlobExists):
                await self._blobs.copy(file.key, key)
                return
        raise BlobExists(key=key)

    async def _sum(self, key: str) -> str:
        summed = sha256()
        async for piece in self._blobs.read(key):
            summed.update(piece)
        return summed.hexdigest()

    async def _all(self, to: str) -> list[str]:
        """The marks of the folder, oldest job first; none, if there can be no such folder."""
        if not is_key(_marks(to)):
            return []
        found: list[str] = []
        while page := await self._blobs.keys(_marks(to), after=found[-1] if found else None, limit=PAGE):
            found += page
        names = (key.removeprefix(f"{_marks(to)}/") for key in found)
        return sorted(name for name in names if "/" not in name)

    async def _said(self, to: str, mark: str) -> Files:
        """Nothing, if the mark is gone or cannot be read: trying again would not help, and others share the folder.

        Nor what cannot be there: it would neither be put nor deleted, and its job could never go.
        """
        with suppress(BlobNotFound, CorruptRecord):
            pieces = [piece async for piece in self._blobs.read(f"{_marks(to)}/{mark}")]
            said = json.record(b"".join(pieces), Files)
            return {name: file for name, file in said.items() if is_key(f"{to}/{name}")}
        return {}


def _named(to: str, name: str) -> str:
    """Below a long path there may be no room for a name for which there was beside its job."""
    key = artifact_key(name)
    return key if is_key(f"{to}/{key}") else hash_name(name)


def _marks(to: str) -> str:
    return MARKS + to.removeprefix(publish_path.ROOT)


def _mark(job_id: str, run: int) -> str:
    return f"{job_id}.{run:06}"


def _owner(mark: str) -> str:
    return mark.rpartition("/")[2].partition(".")[0]


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data

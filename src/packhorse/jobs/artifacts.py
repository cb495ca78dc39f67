"""The files of a job in the object store: their keys, and who refers to them."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from packhorse.core.models import Result, Stored
from packhorse.errors import ArtifactNotFound
from packhorse.store.base import Store

T = TypeVar("T")
G = TypeVar("G")

AT_A_TIME = 8
"""Files of one attempt on their way at once: enough to hide the way to an object store, few enough to hold."""


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

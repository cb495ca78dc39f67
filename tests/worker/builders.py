"""What the engine's tests are made of, beyond the plans and jobs of the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from packhorse.blobs.base import Blobs
from packhorse.core import lifecycle
from packhorse.core.models import Job
from packhorse.define.submit import Options
from packhorse.jobs.submit import NewJob
from packhorse.jobs.transact import Verb
from packhorse.settings import Settings
from packhorse.store.base import Claim, Filter, Store
from tests.contract.builders import ONE, RESULT, claim, needs, plan, settled, stage, submit

EPOCH = 1_800_000_000.0
SEVEN = plan(*(stage(f"s{n}") for n in range(7)), stage("end", *(needs(f"s{n}") for n in range(7))))
SEVEN_KINDS = [each.kind for each in SEVEN.stages]


# Verbs


def finishing(store: Store, claim: Claim) -> Verb:
    return lambda job: lifecycle.finish(job, claim.task, token=claim.token, result=RESULT, now=store.now())


def cancelling(store: Store) -> Verb:
    return lambda job: lifecycle.cancel(job, now=store.now())


async def retry(store: Store, job_id: str, stage: str | None = None) -> Job:
    return await settled(store, job_id, lambda job: lifecycle.retry(job, stage=stage, now=store.now()))


async def lose(store: Store, claim: Claim) -> Job:
    """Somebody saw the worker dead."""
    return await settled(
        store,
        claim.job.id,
        lambda job: lifecycle.lose(job, claim.task, token=claim.token, now=store.now(), witnessed=True),
    )


async def started_seven(store: Store) -> list[Claim]:
    """A job with seven stages side by side, all claimed."""
    await submit(store, SEVEN)
    return await claim(store, 7, kinds=SEVEN_KINDS)


# Objects and jobs


def id_at(seconds: float, n: int = 0) -> str:
    """The UUIDv7 of a job made at that time."""
    return str(UUID(int=int(seconds * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | n))


async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def put(blobs: Blobs, key: str, content: bytes = b"content") -> str:
    await blobs.put(key, chunks(content))
    return key


async def objects(blobs: Blobs) -> list[str]:
    return await blobs.keys("jobs", limit=10_000)


async def jobs(store: Store) -> list[Job]:
    return await store.find(Filter(), limit=1000)


async def submit_file(
    store: Store, blobs: Blobs, content: bytes = b"content", *, name: str = "a.txt", **options: Any
) -> Job:
    """Bring a job with one file in, by the door that everybody takes."""
    async with NewJob(store, blobs, Settings()) as new_job:
        await new_job.upload("text", name, chunks(content))
        return await new_job.admit(options.pop("plan", ONE), b'{"text":{"$file":0}}', Options(user="ann", **options))

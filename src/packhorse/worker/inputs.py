"""What an attempt is given: parameters, results of earlier stages, files in its scratch folder, the previous result."""

from __future__ import annotations

import asyncio
from pathlib import Path

from packhorse.blobs.base import Blobs
from packhorse.core import json
from packhorse.core.models import Job, Result, Stored
from packhorse.core.plan import Need
from packhorse.define import values
from packhorse.errors import CorruptRecord, SchemaTooNew, StoreError
from packhorse.jobs.artifacts import few_at_a_time
from packhorse.schemas.jobs import result_to_json
from packhorse.store.base import Claim, Store
from packhorse.store.collections import schedules as schedule_records
from packhorse.worker.child.messages import Argument, Document

RUNS = 50
"""Runs to look back for one that completed."""
PATIENCE = 1.0
"""Seconds between tries while the store is away."""

NOTHING = b""


class Inputs:
    """Collects what an attempt needs; `fetch` then puts its files into the scratch folder."""

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
    def has_files(self) -> bool:
        return bool(self._wanted)

    async def fetch(self) -> None:
        if self._wanted:  # an empty gather costs as much as sending the stage to its process
            await few_at_a_time(self._fetch, self._wanted)

    def _values(self, claim: Claim, need: Need) -> tuple[Document, ...]:
        """For ``each`` only the part of this element: the result of the same element, or one element of a list."""
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
        """In a folder per file, so that two files may have the same name."""
        path = Path(self._scratch, "in", str(len(self._wanted) + 1), file.name)
        self._wanted.append((file.key, path))
        return str(path), file.name

    async def _fetch(self, wanted: tuple[str, Path]) -> None:
        key, path = wanted
        path.parent.mkdir(parents=True)
        await self._blobs.fetch(key, path)


async def previous_result(store: Store, job: Job) -> bytes:
    """JSON of the result of the newest completed run before this tick, under the same version of the schedule.

    Empty for a job without a schedule, after an edit of the schedule, and when that run's job is purged. While the
    store is away it waits: without the result, some stages would repeat all of their work.
    """
    while True:
        try:
            return await _find_previous(store, job)
        except (CorruptRecord, SchemaTooNew):
            return NOTHING
        except StoreError:
            await asyncio.sleep(PATIENCE)


async def _find_previous(store: Store, job: Job) -> bytes:
    if job.firing is None:
        return NOTHING
    schedule, tick = job.firing.schedule, job.firing.tick
    mine = await schedule_records.run(store, job.tenant, schedule, tick)
    runs = [] if mine is None else await schedule_records.runs(store, job.tenant, schedule, before=tick, limit=RUNS)
    last = next((run for run in runs if run.status == "completed" and run.job_id), None)
    if mine is None or last is None or last.version != mine.version or last.job_id is None:
        return NOTHING
    [found] = await store.get([last.job_id])
    if found is None or found.is_purging:
        return NOTHING
    return json.encode(result_to_json(found, (await store.results([found.id])).get(found.id, {})))

"""A round of power cuts: log what a deployment on SQLite and a folder does, cut at many points, and look."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import shutil
import time
from pathlib import Path

import httpx2
from tests.journey.site import Site, until

from lab.real import power
from lab.real.deployment import START, Deployment
from lab.real.places import Place
from packhorse.core.plan import Status
from packhorse.errors import BlobError
from packhorse.jobs.artifacts import referenced_keys

RECORDED = 5.0
"""Seconds of load that are logged."""
CUTS = 60
DRAINED = 6
"""So many of the cuts are followed by a start of a worker, which ends all jobs that are left."""


class Logged(Place):
    """A place whose every change is logged. The store and the files are in folders that nobody has made yet."""

    def __init__(self) -> None:
        super().__init__()
        self.log = self.folder / "log"
        self.log.touch()

    def env(self, number: int) -> dict[str, str]:
        return super().env(number) | {"LAB_DISK_LOG": str(self.log)}

    def settings(self, number: int | None) -> dict[str, str]:
        return settings_below(self.data) if number is not None else super().settings(None)


def settings_below(data: Path) -> dict[str, str]:
    return {"store": f"sqlite://{data / 'var/lib/store.db'}", "blobs": f"file://{data / 'var/files/blobs'}"}


async def run(seed: int) -> tuple[int, int, list[str]]:
    """How many cuts there were, how many jobs were acknowledged, and what was broken."""
    chance = random.Random(seed)
    place = Logged()
    try:
        await _record(place, seed)
        records = power.read(place.log)
        found: list[str] = []
        count = 0
        to = place.folder / "cut"
        drained = set(chance.sample(range(1, CUTS + 1), DRAINED))
        points = power.cuts(records, str(place.data), CUTS, to, chance)
        for count, (point, keep) in enumerate(points, 1):
            told = records[:point]
            problems = await _look(to, told, is_to_drain=count in drained, folder=place.folder)
            found += [f"{each} (cut after record {point} of {len(records)}, keeping {keep:.0%})" for each in problems]
            power.remove(to)
            if len(found) > 3:
                break
        return count, sum(record.kind == "A" for record in records), found
    finally:
        shutil.rmtree(place.folder, ignore_errors=True)


async def _record(place: Logged, seed: int) -> None:
    """Nothing but the server and the worker writes below the folder."""
    site = Deployment(place, seed)
    try:
        site.start_server()
        await site.until_ready()
        site.start_numbered_worker(1)
        await site.probe(START)
        async with httpx2.AsyncClient(timeout=10, base_url=f"http://127.0.0.1:{site.port}/api/v1/") as client:
            end = time.monotonic() + RECORDED
            await asyncio.gather(*(_call(client, place.log, f"{n}", end) for n in range(4)))
    finally:
        await site.close()


async def _call(client: httpx2.AsyncClient, log: Path, name: str, end: float) -> None:
    number = 0
    while time.monotonic() < end:
        number += 1
        words = "one three" + " x" * number
        form = {"pipeline": "words", "user_id": f"{name} {number}", "seconds": "0"}
        answer = await client.post("jobs", data=form, files={"text": ("words.txt", words.encode())})
        job_id = answer.json()["job_id"]
        power.mark(log, "A", job_id)
        with contextlib.suppress(httpx2.HTTPError):
            while time.monotonic() < end:
                status = (await client.get(f"jobs/{job_id}")).json()["status"]
                if status == "completed":
                    power.mark(log, "E", job_id, ",".join(str(len(word)) for word in words.split()).encode())
                    break
                await asyncio.sleep(0.05)


async def _look(data: Path, told: list[power.Record], *, is_to_drain: bool, folder: Path) -> list[str]:
    """What is missing of what callers were told before the cut."""
    accepted = [record.path for record in told if record.kind == "A"]
    ended = {record.path: record.data.decode() for record in told if record.kind == "E"}
    home = folder / "after"
    home.mkdir()
    shutil.copy(folder / "ledger", home)  # what ran before the cut
    site = Site(home, **settings_below(data), sweep=1.0)
    found = []
    try:
        jobs = {job.id: job for job in await site.jobs()}
        if missing := [job_id for job_id in accepted if job_id not in jobs]:
            found.append(f"I1: {len(missing)} of {len(accepted)} acknowledged jobs are gone")
        changed = [job_id for job_id in ended if job_id in jobs and jobs[job_id].status is not Status.COMPLETED]
        if changed:
            found.append(f"I2: {len(changed)} completed jobs are not completed any more")
        found += await _broken_files(site, list(jobs), ended)
        if is_to_drain and not found:
            site.start_worker()

            async def is_quiet() -> bool:
                return all(job.status.is_terminal for job in await site.jobs())

            await until(is_quiet, 60, lambda: f"I13: jobs do not end after the cut\n{site.log_text()[-2000:]}")
            await site.assert_whole()
    except AssertionError as error:
        found.append(str(error)[:500])
    except Exception as error:  # broad: a store that does not open is what we are looking for
        found.append(f"I1: the store does not open: {error!r}")
    finally:
        await site.close()
        shutil.rmtree(home, ignore_errors=True)
    return found


async def _broken_files(site: Site, ids: list[str], ended: dict[str, str]) -> list[str]:
    """Files that are not what the store says, and results that are not what callers were told."""
    store, blobs = await site.runtime.open()
    specs, results = await store.specs(ids), await store.results(ids)
    files = [each.file for spec in specs.values() for each in spec.inputs]
    files += [each.file for kept in results.values() for result in kept.values() for each in result.artifacts]
    found = []
    for file in files:
        try:
            content = b"".join([part async for part in blobs.read(file.key)])
        except BlobError as error:
            found.append(f"I7: {file.key} cannot be read: {error}")
        else:
            if hashlib.sha256(content).hexdigest() != file.sha256:
                found.append(f"I7: {file.key} has {len(content)} other bytes than were stored")
    for job_id, expected in ended.items() if not found else ():
        [key] = [key for key in referenced_keys(results.get(job_id, {})) if "/join/" in key] or [""]
        text = b"".join([part async for part in blobs.read(key)]).decode() if key else "missing"
        if text != expected:
            found.append(f"I1: the result of {job_id} is {text!r} instead of {expected!r}")
    return found

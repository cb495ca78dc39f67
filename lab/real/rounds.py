"""One round: a fresh deployment under load, one fault, and afterwards the fate of every job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import traceback

import msgspec

from lab.real import power_round
from lab.real.deployment import LEASE, START, Deployment
from lab.real.faults import FAULTS, POWER, Fault
from lab.real.places import PLACES
from packhorse.core.models import Job
from packhorse.core.plan import Status

BEFORE, AFTER = 2.0, 1.5
"""Seconds of load before the fault and after it."""
PATIENCE = 90.0
"""Seconds after which something has not recovered. The machine may be busy with other rounds."""
LONGEST = 2 * PATIENCE + START + 6 * LEASE
"""Seconds after which a round itself is broken."""


class Round(msgspec.Struct, frozen=True):
    """What is drawn; the same again strikes the same fault for as long. When exactly, the machine decides."""

    fault: str
    place: str
    seed: int


class Outcome(msgspec.Struct):
    round: Round
    runs: int = 1
    jobs: int = 0
    """Acknowledged by the server."""
    lost: int = 0
    """Acknowledged, and not in the store, or completed without having run, or with another result."""
    duplicated: int = 0
    """Two jobs for one request, two ends of one run, or a stage that completed twice."""
    stuck: int = 0
    """Not ended when a lease, a sweep and ten seconds had passed several times over."""
    spent: int = 0
    """Attempts that were lost although the worker and its stages were well."""
    recovered: float = 0.0
    """Seconds from the end of the fault until a new job was completed."""
    settled: float = 0.0
    """Seconds from the end of the load until every job had ended."""
    struck: float = 0.0
    """Seconds that the fault lasted."""
    violations: list[str] = []
    took: float = 0.0


def run(drawn: Round) -> Outcome:
    logging.disable(logging.ERROR)
    began = time.monotonic()
    outcome = Outcome(drawn)
    try:
        asyncio.run(_run(drawn, outcome))
    except AssertionError as error:
        outcome.violations.append(str(error)[:2000] or "an assertion failed")
    except Exception:  # broad: whatever it is, it is part of the answer
        outcome.violations.append(f"LAB: {traceback.format_exc()[-3000:]}")
    outcome.took = time.monotonic() - began
    return outcome


async def _run(drawn: Round, outcome: Outcome) -> None:
    if drawn.fault == POWER:
        outcome.runs, outcome.jobs, outcome.violations = await power_round.run(drawn.seed)
        outcome.lost = sum(each.startswith("I1") for each in outcome.violations)
        return
    fault = FAULTS[drawn.fault]
    chance = random.Random(drawn.seed)
    place = PLACES[drawn.place](with_s3=fault.with_s3)
    site: Deployment | None = None
    try:
        await place.start(processes=3)
        site = Deployment(place, drawn.seed, orphan_after=fault.orphan_after)
        await site.open()
        await _strike(site, fault, chance.uniform(*fault.seconds), outcome)
        await judge(site, fault, outcome)
    except (AssertionError, RuntimeError) as error:
        if site is not None:
            error.args = (f"{error}\n--- log\n{site.log_text()[-3000:]}",)
        raise
    finally:
        with contextlib.suppress(OSError):
            place.disk.set()
        if site is not None:
            await site.close()
        await place.close()


async def _strike(site: Deployment, fault: Fault, seconds: float, outcome: Outcome) -> None:
    async with site.under_load():
        await asyncio.sleep(BEFORE)
        await site.burst()
        began = time.monotonic()
        assert fault.strike is not None
        await fault.strike(site, seconds)
        outcome.struck = time.monotonic() - began
        outcome.recovered = await site.probe(PATIENCE)
        await asyncio.sleep(AFTER)
    outcome.settled, left = await site.settle(PATIENCE)
    outcome.stuck = len(left)
    if left:
        shown = ", ".join(f"{job.id} ({job.plan.pipeline}, {job.status})" for job in left[:5])
        outcome.violations.append(f"I13: {len(left)} jobs have not ended {PATIENCE:.0f} s after the fault: {shown}")
    if outcome.recovered >= PATIENCE:
        outcome.violations.append(f"I13: no new job was completed within {PATIENCE:.0f} s")


async def judge(site: Deployment, fault: Fault, outcome: Outcome) -> None:
    jobs = {job.id: job for job in await site.jobs()}
    load, found = site.load, outcome.violations
    outcome.jobs = len(load.jobs)
    missing = [job_id for job_id in load.jobs if job_id not in jobs]
    wrong = [text for job in jobs.values() if (text := await _wrong_result(site, job))]
    outcome.lost = len(missing) + len(wrong)
    if missing and not fault.loses:
        found.append(f"I1: {len(missing)} acknowledged jobs are not in the store: {missing[:5]}")
    found += wrong[:5]
    if load.twice:
        found.append(f"I1: two jobs for one key: {load.twice[:5]}")
    outcome.duplicated = len(load.twice)
    if not fault.spends_attempts and not fault.loses:
        spent = [text for job in jobs.values() if (text := _describe_spent(job))]
        outcome.spent = len(spent)
        found += spent[:5]
    for job in jobs.values():
        if job.status is Status.FAILED and job.plan.pipeline != "says":
            found.append(f"I4: {job.id} ({job.plan.pipeline}) failed: {job.error}")
        if job.status is Status.CANCELLED and job.id in load.jobs and job.id not in load.cancelled:
            found.append(f"I2: {job.id} is cancelled, and no caller asked for that")
    if found:
        return
    try:
        await site.assert_whole()
    except AssertionError as error:
        text = str(error)
        outcome.duplicated += text.startswith(("I2", "I3"))
        if not (fault.loses and text.startswith("I7")):  # files of jobs that the store has lost
            raise


def _describe_spent(job: Job) -> str:
    """The attempt that was lost, although no fault took a worker or a stage away; empty if there is none."""
    if job.status is Status.FAILED:
        return f"I4: {job.id} ({job.plan.pipeline}) failed although its worker was well: {job.error}"
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        for task in stage.tasks or ():
            if task.attempt > 1:
                return f"I4: {job.id} {plan.name} had {task.attempt} attempts although its worker was well"
    return ""


async def _wrong_result(site: Deployment, job: Job) -> str:
    sent = site.load.jobs.get(job.id)
    if sent is None or sent.expected is None or job.status is not Status.COMPLETED:
        return ""
    try:
        text = await site.result_text(job)
    except Exception as error:  # broad: a result that cannot be read is lost
        return f"I1: the result of {job.id} cannot be read: {error!r}"
    return "" if text == sent.expected else f"I1: {job.id} has the result {text!r} instead of {sent.expected!r}"

"""The commands that change jobs which are there, one or many: cancel, retry, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from cyclopts import CycloptsError

from packhorse.cli import follow, output
from packhorse.cli.job_ref import resolve_job
from packhorse.cli.options import Chosen, JobId, Remote
from packhorse.client import Client, Json
from packhorse.core.text import plural

TERMINAL = follow.EXIT.keys()
PAST = {"cancel": "cancelled", "retry": "retried", "delete": "deleted"}
WHY = {"gone": "not there", "slot_taken": "slot taken", "stopping": "being stopped already"}
UNSURE = 1
"""The exit code where somebody has yet to say that it is meant."""


def cancel(
    *jobs: JobId,
    chosen: Chosen = Chosen(),
    all: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    remote: Remote = Remote(),
) -> int:
    """Cancel a job, or many.

    Parameters
    ----------
    jobs
        Their ids, or the beginnings of them, or the ends, of the newest 200; none to mean all that have what is named.
    all
        Mean every active job, where nothing is named.
    dry_run
        Only tell how many they are.
    yes
        Do it to all that are found, without which they are only counted.
    """
    with remote.client() as client:
        jobs = tuple(resolve_job(client, each) for each in jobs)
        if len(jobs) == 1 and not dry_run and not _is_named(chosen, all):
            _print_job(client.cancel(jobs[0]), remote)
            return 0
        return _many("cancel", client.cancel_jobs, _selection(jobs, chosen, all), dry_run, yes, remote)


def retry(
    *jobs: JobId,
    stage: str | None = None,
    chosen: Chosen = Chosen(),
    all: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    remote: Remote = Remote(),
) -> int:
    """Run a job again, from the stage that failed, or many.

    Parameters
    ----------
    jobs
        Their ids, or the beginnings of them, or the ends, of the newest 200; none to mean all that have what is named.
    stage
        Of one job: redo this stage and what follows it; * for all.
    all
        Mean every failed or cancelled job, where nothing is named.
    dry_run
        Only tell how many they are.
    yes
        Do it to all that are found, without which they are only counted.
    """
    with remote.client() as client:
        jobs = tuple(resolve_job(client, each) for each in jobs)
        if len(jobs) == 1 and not dry_run and not _is_named(chosen, all):
            _retry_one(client, jobs[0], stage, remote)
            return 0
        if stage is not None:
            raise CycloptsError(msg="A stage is named for one job, given by its id.", command_chain=["retry"])
        return _many("retry", client.retry_jobs, _selection(jobs, chosen, all), dry_run, yes, remote)


def delete(
    *jobs: JobId,
    chosen: Chosen = Chosen(),
    all: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    remote: Remote = Remote(),
) -> int:
    """Delete an ended job with its files, or many.

    Parameters
    ----------
    jobs
        Their ids, or the beginnings of them, or the ends, of the newest 200; none to mean all that have what is named.
    all
        Mean every ended job, where nothing is named.
    dry_run
        Only tell how many they are.
    yes
        Do it to all that are found, without which they are only counted.
    """
    with remote.client() as client:
        jobs = tuple(resolve_job(client, each) for each in jobs)
        if len(jobs) == 1 and not dry_run and not _is_named(chosen, all):
            client.delete(jobs[0])
            _print_deleted(jobs[0], remote)
            return 0
        return _many("delete", client.delete_jobs, _selection(jobs, chosen, all), dry_run, yes, remote)


def _is_named(chosen: Chosen, all: bool) -> bool:
    return all or any(asdict(chosen).values())


def _selection(jobs: tuple[str, ...], chosen: Chosen, all: bool) -> dict[str, Any]:
    return {"ids": jobs, "all": all, **chosen.filters()}


def _many(verb: str, ask: Callable[..., Json], asked: dict[str, Any], dry_run: bool, yes: bool, remote: Remote) -> int:
    """Ids are meant as they are given; what is found is done only if somebody says that it is meant."""
    if not any(asked.values()):
        raise CycloptsError(msg="Say which jobs: their ids, what they have in common, or --all.", command_chain=[verb])
    is_trial = dry_run or not (asked["ids"] or yes)
    found = ask(**asked, dry_run=is_trial)
    if remote.json:
        output.document(found)
    else:
        count = f"{found['count']}{' or more' if found['is_at_least'] else ''}"
        output.plain(f"{count} {'would be' if is_trial else plural(count, 'is', 'are')} {PAST[verb]}.")
        for why, number in sorted(found["left"].items()):
            output.plain(f"{number} left alone: {WHY.get(why, why)}.")
    if not is_trial or dry_run:
        return 0
    output.message("Nothing was done yet. To do it, add: --yes")
    return UNSURE


def _retry_one(client: Client, job: str, stage: str | None, remote: Remote) -> None:
    before = client.get(job)
    after = client.retry(job, stage)
    _print_job(after, remote)
    if after["run"] == before["run"]:
        output.message("It is active, and was left alone.")


def _print_deleted(job: str, remote: Remote) -> None:
    if remote.json:
        output.document({"job_id": job, "deleted": True})
    else:
        output.plain(f"Job {job} is deleted.")


def _print_job(job: Json, remote: Remote) -> None:
    if remote.json:
        output.document(job)
        return
    stopping = " and being stopped" if job["stopping"] and job["status"] not in TERMINAL else ""
    output.plain(f"Job {job['job_id']} is {job['status']}{stopping}.")

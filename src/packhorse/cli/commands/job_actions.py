"""The commands that change jobs which are there, one or many: cancel, retry, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import CycloptsError, Parameter

from packhorse.cli import follow, output
from packhorse.cli.options import Chosen, JobId, Remote, resolve_job
from packhorse.client import Client, Json
from packhorse.plurals import plural

TERMINAL = follow.EXIT.keys()
PAST = {"cancel": "cancelled", "retry": "retried", "delete": "deleted"}
WHY = {"gone": "not there", "slot_taken": "slot taken", "stopping": "being stopped already"}
UNSURE = 1  # the exit code where somebody has yet to say that it is meant

MEANT = (
    "Their ids, or the beginnings of them, or the ends, of the newest 200; none to mean all that have what is named."
)

JobIds = Annotated[JobId, Parameter(help=MEANT)]
ActOnOne = Callable[[Client, str], None]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Sure:
    dry_run: bool = False
    "Only tell how many they are."
    yes: bool = False
    "Do it to all that are found, without which they are only counted."


def cancel(
    *jobs: JobIds, chosen: Chosen = Chosen(), all: bool = False, sure: Sure = Sure(), remote: Remote = Remote()
) -> int:
    """Cancel a job, or many.

    Args:
        all: Mean every active job, where nothing is named.
    """
    return _act("cancel", lambda client, job: _print_job(client.cancel(job), remote), jobs, chosen, all, sure, remote)


def retry(
    *jobs: JobIds,
    stage: str | None = None,
    chosen: Chosen = Chosen(),
    all: bool = False,
    sure: Sure = Sure(),
    remote: Remote = Remote(),
) -> int:
    """Run a job again, from the stage that failed, or many.

    Args:
        stage: Of one job: redo this stage and what follows it; * for all.
        all: Mean every failed or cancelled job, where nothing is named.
    """
    if stage is not None and not _is_one_job(jobs, chosen, all, sure):
        raise CycloptsError(msg="A stage is named for one job, given by its id.", command_chain=["retry"])

    def retry_one(client: Client, job: str) -> None:
        before = client.get(job)
        after = client.retry(job, stage)
        _print_job(after, remote)
        if after["run"] == before["run"]:
            output.message("It is active, and was left alone.")

    return _act("retry", retry_one, jobs, chosen, all, sure, remote)


def delete(
    *jobs: JobIds, chosen: Chosen = Chosen(), all: bool = False, sure: Sure = Sure(), remote: Remote = Remote()
) -> int:
    """Delete an ended job with its files, or many.

    Args:
        all: Mean every ended job, where nothing is named.
    """

    def delete_one(client: Client, job: str) -> None:
        client.delete(job)
        remote.print_one({"job_id": job, "deleted": True}, f"Job {job} is deleted.")

    return _act("delete", delete_one, jobs, chosen, all, sure, remote)


def _is_one_job(jobs: tuple[str, ...], chosen: Chosen, all: bool, sure: Sure) -> bool:
    return len(jobs) == 1 and not all and not any(asdict(chosen).values()) and not sure.dry_run


def _act(verb: str, one: ActOnOne, jobs: tuple[str, ...], chosen: Chosen, all: bool, sure: Sure, remote: Remote) -> int:
    """Ids are meant as they are given; what is found is done only if somebody says that it is meant."""
    with remote.client() as client:
        many = {"cancel": client.cancel_jobs, "retry": client.retry_jobs, "delete": client.delete_jobs}
        ids = [resolve_job(client, each) for each in jobs]
        if _is_one_job(jobs, chosen, all, sure):
            one(client, ids[0])
            return 0
        selection = {"ids": ids, "all": all, **chosen.filters()}
        if not any(selection.values()):
            message = "Say which jobs: their ids, what they have in common, or --all."
            raise CycloptsError(msg=message, command_chain=[verb])
        is_trial = sure.dry_run or not (ids or sure.yes)
        found = many[verb](**selection, dry_run=is_trial)
    if remote.json:
        output.document(found)
    else:
        count = f"{found['count']}{' or more' if found['is_at_least'] else ''}"
        output.plain(f"{count} {'would be' if is_trial else plural(count, 'is', 'are')} {PAST[verb]}.")
        for why, number in sorted(found["left"].items()):
            output.plain(f"{number} left alone: {WHY.get(why, why)}.")
    if not is_trial or sure.dry_run:
        return 0
    output.message("Nothing was done yet. To do it, add: --yes")
    return UNSURE


def _print_job(job: Json, remote: Remote) -> None:
    stopping = " and being stopped" if job["stopping"] and job["status"] not in TERMINAL else ""
    remote.print_one(job, f"Job {job['job_id']} is {job['status']}{stopping}.")

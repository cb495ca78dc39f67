"""The commands that change jobs which are there, one or many: cancel, retry, delete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

from cyclopts import CycloptsError, Parameter

from packhorse.cli import follow, output
from packhorse.cli.options import Chosen, JobId, Remote, resolve_job
from packhorse.client import Client, Json
from packhorse.plurals import counted

TERMINAL = follow.EXIT.keys()
PAST = {"cancel": "cancelled", "retry": "retried", "delete": "deleted"}
WHY = {"gone": "not found", "slot_taken": "the user has another active job", "stopping": "already stopping"}
UNSURE = 1  # the exit code where somebody has yet to say that it is meant

MEANT = (
    "Job ids, or their first digits, or the last 8 or more digits of the newest 200 jobs. Leave out to use the filters."
)

JobIds = Annotated[JobId, Parameter(help=MEANT)]
ActOnOne = Callable[[Client, str], None]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Sure:
    dry_run: bool = False
    "Only print how many jobs match."
    yes: bool = False
    "Change all jobs that match the filters. Without it, they are only counted."


def cancel(
    *jobs: JobIds, chosen: Chosen = Chosen(), all: bool = False, sure: Sure = Sure(), remote: Remote = Remote()
) -> int:
    """Cancel one or more jobs.

    Args:
        all: Cancel all active jobs.
    """
    return _act("cancel", lambda client, job: _print_job(client.cancel(job), remote), jobs, chosen, all, sure, remote)


def retry(
    *jobs: JobIds,
    stage: str | None = None,
    failed_elements: bool = False,
    chosen: Chosen = Chosen(),
    all: bool = False,
    sure: Sure = Sure(),
    remote: Remote = Remote(),
) -> int:
    """Retry one or more jobs, from the stage that failed.

    Args:
        stage: Run this stage and all stages after it again; * for all stages. Only for a single job.
        failed_elements: Run only the elements that failed and were left out again, and what follows them. Only for a
            single job.
        all: Retry all failed and cancelled jobs.
    """
    if (stage is not None or failed_elements) and not _is_one_job(jobs, chosen, all, sure):
        option = "--failed-elements" if failed_elements else "--stage"
        raise CycloptsError(msg=f"{option} works only with a single job id.", command_chain=["retry"])

    def retry_one(client: Client, job: str) -> None:
        before = client.get(job)
        after = client.retry(job, stage, failed_elements=failed_elements)
        _print_job(after, remote)
        if after["run"] == before["run"]:
            output.message("The job is already active: nothing was changed.")

    return _act("retry", retry_one, jobs, chosen, all, sure, remote)


def delete(
    *jobs: JobIds, chosen: Chosen = Chosen(), all: bool = False, sure: Sure = Sure(), remote: Remote = Remote()
) -> int:
    """Delete one or more ended jobs with their files.

    Args:
        all: Delete all ended jobs.
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
            message = "No jobs selected: give job ids, filters such as --status failed, or --all."
            raise CycloptsError(msg=message, command_chain=[verb])
        is_trial = sure.dry_run or not (ids or sure.yes)
        found = many[verb](**selection, dry_run=is_trial)
    if remote.json:
        output.document(found)
    else:
        jobs_found = counted(f"{found['count']}{' or more' if found['is_at_least'] else ''}", "job")
        output.plain(f"Would {verb} {jobs_found}." if is_trial else f"{PAST[verb].capitalize()} {jobs_found}.")
        for why, number in sorted(found["left"].items()):
            output.plain(f"Left {counted(number, 'job')} unchanged: {WHY.get(why, why)}.")
    if not is_trial or sure.dry_run:
        return 0
    output.message("Nothing was changed. To do it, add: --yes")
    return UNSURE


def _print_job(job: Json, remote: Remote) -> None:
    is_stopping = job["stopping"] and job["status"] not in TERMINAL
    remote.print_one(job, f"Job {job['job_id']} is {'stopping' if is_stopping else job['status']}.")

"""What everything is called, behind the prefix."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Status


def job(job_id: str) -> str:
    return f"job:{job_id}"


def stage(job_id: str, name: str) -> str:
    return f"job:{job_id}:stage:{name}"


def progress(job_id: str) -> str:
    return f"job:{job_id}:progress"


def events(job_id: str) -> str:
    return f"events:{job_id}"


def changes(job_id: str) -> str:
    """Ids of changes that told nothing, for who asks whether they were made."""
    return f"changes:{job_id}"


def result(job_id: str) -> str:
    return f"result:{job_id}"


def output(job_id: str) -> str:
    return f"output:{job_id}"


def log(job_id: str) -> str:
    return f"log:{job_id}"


METRICS_LAST = "3600"
"""Seconds for which what a job has used is kept after it was last measured."""


def metrics(job_id: str, what: str) -> str:
    return f"metrics:{job_id}:{what}"


def readable(job: Job) -> list[str]:
    """Keys that people read beside the record: the stages, and the results as soon as there is one."""
    has_result = any(task.status is Status.COMPLETED for each in job.stages for task in each.tasks or ())
    stages = [stage(job.id, each.name) for each in job.plan.stages]
    return [result(job.id), *stages] if has_result else stages


@lru_cache(10_000)
def user(tenant: str, name: str) -> str:
    """Escaped, so that no user name can spell another tenant's key."""
    return f"user:{quote(tenant, safe='')}/{quote(name, safe='')}:jobs"


@lru_cache(10_000)
def slot(name: str) -> str:
    owner, _, rest = name.rpartition("/")
    return f"user:{owner}:active_job:{rest}"


def idempotency(key: str) -> str:
    return f"key:{key}"


# Failures: one hash of them, and sorted sets of their ids, which are in the order of time.

FAILING = "failures:tenants"
"""Tenants, escaped, that have failures."""


@lru_cache(10_000)
def tenant(name: str) -> str:
    return quote(name, safe="")


def group(tenant_name: str, fingerprint: str) -> str:
    return f"{tenant(tenant_name)}/{fingerprint}"


def failures_in(what: str) -> str:
    """Ids of the failures of a tenant, escaped, or of a group."""
    return f"failures:of:{what}"


def failure_group(group: str) -> str:
    return f"failures:group:{group}"


def failure_users(group: str) -> str:
    return f"failures:users:{group}"


def failure_groups(tenant: str) -> str:
    return f"failures:groups:{tenant}"


def kinds(queue: str) -> str:
    """The kinds of stages that use the queue, or have."""
    return f"kinds:{queue}"


# Indexes: sorted sets of job ids at one score, so that their order is that of the ids, which is that of age.

PAIRS = "jobs:pairs"
"""Every tenant and pipeline that ever had a job, as ``tenant/pipeline``."""

WHOLE = ("active", "completed", "failed", "cancelled")
"""The indexes that together name every job once. The running are active too, and have one that is not told apart."""


@lru_cache(10_000)
def pair(tenant: str, pipeline: str) -> str:
    return f"{quote(tenant, safe='')}/{quote(pipeline, safe='')}"


def index(name: str, of: str | None = None) -> str:
    return f"jobs:{name}" if of is None else f"jobs:{name}:{of}"


def index_of(status: Status) -> str:
    return status.value if status.is_terminal else "active"


# Tasks: the order of the text is the order of claiming within a job.


def task(at: TaskId) -> str:
    if at.element == 0:
        return at.stage
    digits = str(at.element)
    return f"{at.stage} {chr(ord('a') + len(digits) - 1)}{digits}"


def task_from(text: str) -> TaskId:
    name, _, element = text.partition(" ")
    return TaskId(name, int(element[1:]) if element else 0)


def entry(job_id: str, at: TaskId) -> str:
    """A task of a job: in its queue, reserved, or leased."""
    return f"{job_id} {task(at)}"


def entry_from(text: str) -> tuple[str, TaskId]:
    job_id, _, rest = text.partition(" ")
    return job_id, task_from(rest)


def ready(queue: str, kind: str) -> str:
    return f"ready:{queue}:{kind}"

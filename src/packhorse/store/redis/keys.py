"""What everything is called, behind the prefix."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

from packhorse.core.models import TaskId
from packhorse.core.plan import Status

job = "job:{}".format
stage = "job:{}:stage:{}".format
progress = "job:{}:progress".format
events = "events:{}".format
changes = "changes:{}".format  # ids of changes that told nothing, for who asks whether they were made
result = "result:{}".format
output = "output:{}".format
log = "log:{}".format
metrics = "metrics:{}:{}".format
idempotency = "key:{}".format

kinds = "kinds:{}".format  # of stages that use the queue, or have
ready = "ready:{}:{}".format  # by queue and kind
lanes = "turns:{0}:lanes:0\t{0}\t{1}".format  # of shares: see lua/limits.lua
turns = "turns:{0}:tasks:0\t{0}\t{1}\t{2}".format

# Failures: one hash of them, and sorted sets of their ids, which are in the order of time. Tenants are escaped.
FAILING = "failures:tenants"
failures_in = "failures:of:{}".format  # of a tenant, or of a group
failure_group = "failures:group:{}".format
failure_users = "failures:users:{}".format
failure_groups = "failures:groups:{}".format

CACHED = 1000
"""Keys of each kind that a process caches, at about 270 bytes. Another user's key takes some microseconds to make."""

METRICS_LAST = "3600"
"""Seconds for which what a job has used is kept after it was last measured."""
DURATION_LAST = "86400"
"""Seconds for which its duration is kept after its end."""


@lru_cache(CACHED)
def user(tenant: str, name: str) -> str:
    """Escaped, so that no user name can spell another tenant's key."""
    return f"user:{quote(tenant, safe='')}/{quote(name, safe='')}:jobs"


@lru_cache(CACHED)
def slot(name: str) -> str:
    owner, _, rest = name.rpartition("/")
    return f"user:{owner}:active_job:{rest}"


def usage(tenant_name: str) -> str:
    """What counts towards the quotas of a tenant: a hash of jobs and bytes."""
    return f"usage:{tenant(tenant_name)}"


@lru_cache(CACHED)
def tenant(name: str) -> str:
    return quote(name, safe="")


def group(tenant_name: str, fingerprint: str) -> str:
    return f"{tenant(tenant_name)}/{fingerprint}"


# Indexes: sorted sets of job ids at one score, so that their order is that of the ids, which is that of age.

PAIRS = "jobs:pairs"
"""Every tenant and pipeline that ever had a job, as ``tenant/pipeline``."""

WHOLE = ("active", "completed", "failed", "cancelled")
"""The indexes that together name every job once. The running are active too, and have one that is not told apart."""


@lru_cache(CACHED)
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

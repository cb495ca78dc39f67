"""A job in the words of its app's own users: the one place where ours become theirs."""

from __future__ import annotations

from collections.abc import Mapping

from packhorse.core.models import Job
from packhorse.schemas.job_documents import AliasDocument


def alias(job: Job, keys: Mapping[str, str | list[str]]) -> AliasDocument | None:
    """``keys`` are those of the objects that its stages left. None where the app speaks as we do."""
    plan = job.plan
    if not plan.statuses and not plan.outputs:
        return None
    return {
        "status": plan.statuses.get(job.status, job.status.value),
        "output": {name: keys.get(stage) for name, stage in plan.outputs.items()},
    }

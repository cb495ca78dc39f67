"""Jobs of all sorts, and which of them a filter is meant to find."""

from __future__ import annotations

from itertools import product
from typing import Any

from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.store.base import Filter, Store
from tests.contract.builders import ONE, cancel, completed, failed, plan, stage, started, submit

TRAIN = plan(stage("only"), pipeline="train")

FILTERS = [
    Filter(tenant, user, status, pipeline)
    for tenant, user, status, pipeline in product(
        (None, "acme", "zeta", "nobody"), (None, "ann", "nobody"), (None, *Status), (None, "convert", "train", "no")
    )
]


async def everybodys(store: Store) -> list[Job]:
    """Jobs of two tenants, two users, two pipelines, in all five statuses, mixed in age."""
    found: list[Job] = []
    for tenant, user, graph in product(("acme", "zeta"), ("ann", "bob"), (ONE, TRAIN)):
        options: dict[str, Any] = {"tenant": tenant, "user": user}
        found.append(await completed(store, graph, **options))
        found.append(await failed(store, graph, **options))
        found.append((await started(store, graph, **options)).job)
        found.append(await submit(store, graph, delay=60.0, **options))
        found.append(await cancel(store, (await submit(store, graph, delay=60.0, **options)).id))
    return found


def matches(job: Job, filter: Filter) -> bool:
    facts = {"tenant": job.tenant, "user": job.user, "status": job.status, "pipeline": job.plan.pipeline}
    return all(getattr(filter, name) in (None, value) for name, value in facts.items())

"""Failed jobs, and what can be counted by hand of them, for the tests of failures."""

from __future__ import annotations

from collections import Counter
from typing import Any

from packhorse.core import failures as rules
from packhorse.core import lifecycle
from packhorse.core.failures import FailureAction, FailureGroup
from packhorse.core.models import FailedRun, Failure, FailureStatus, Job, Settled
from packhorse.core.plan import Plan
from packhorse.store.base import FailureFilter, Store
from packhorse.store.collections.failures import get_failures
from tests.contract.builders import ONE, claim, claim_one, fail, finish, made, started, submit

OPEN, RETRIED, RESOLVED, DISMISSED = FailureStatus
ALL = FailureFilter("default")
BY_ANN = Settled(5.0, "ann", "It is known.")


def wrong(message: str = "It broke.", code: str = "BROKEN") -> Failure:
    return Failure(code, message, permanent=True)


async def failing(store: Store, error: Failure | None = None, plan: Plan = ONE, **options: Any) -> Job:
    """A job that has failed for good."""
    return await fail(store, await started(store, plan, **options), error or wrong())


async def failing_many(store: Store, *errors: Failure, plan: Plan = ONE, **options: Any) -> list[Job]:
    for _ in errors:
        await submit(store, plan, **options)
    claims = await claim(store, len(errors))
    return [await fail(store, each, error) for each, error in zip(claims, errors, strict=True)]


def id_of(job: Job) -> str:
    """Of the failure of its last run."""
    assert job.completed_at is not None
    return rules.failure_id(job.completed_at, job.id, job.run)


async def again(store: Store, job: Job, **options: Any) -> Job:
    """Retried by a person."""
    return await made(store, lifecycle.retry(job, now=store.now(), **options))


async def mended(store: Store, job: Job) -> Job:
    """Retried, and completed."""
    await again(store, job)
    return await finish(store, await claim_one(store))


async def one(store: Store, job: Job) -> FailedRun:
    [found] = await get_failures(store, [id_of(job)])
    assert found is not None
    return found


async def only_group(store: Store, tenant: str = "default") -> FailureGroup:
    [group] = await store.failure_groups(tenant)
    return group


def action(n: int = 1, **options: Any) -> FailureAction:
    return FailureAction(f"{n:04}", **{"sort": "order", "tenant": "default", "body": b"{}", "due_at": 1.0, **options})


async def assert_counted(store: Store, tenant: str = "default") -> None:
    """Every group says what counting its failures one by one comes to."""
    found = await store.failures(FailureFilter(tenant), limit=10_000)
    groups = {group.fingerprint: group for group in await store.failure_groups(tenant, limit=10_000)}
    assert {failure.fingerprint for failure in found} == groups.keys()
    for fingerprint, group in groups.items():
        mine = [failure for failure in found if failure.fingerprint == fingerprint]
        by_status = Counter(failure.status.value for failure in mine)
        assert {status.value: getattr(group, status) for status in FailureStatus} == {
            status.value: by_status[status] for status in FailureStatus
        }
        assert (group.users, group.unlisted) == (len({failure.user for failure in mine}), 0)
        assert group.count == len(mine)
        assert group.last_seen >= max(failure.at for failure in mine)
        assert group.first_seen <= min(failure.at for failure in mine)

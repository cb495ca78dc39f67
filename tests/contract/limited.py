"""Plans with limits and fair shares, and what their tests ask of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from packhorse.core.limits import Fair, Limit
from packhorse.core.models import Spec
from packhorse.core.plan import Plan
from packhorse.store.base import Claim, Store
from tests.contract.builders import claim, finish, plan, stage, submission
from tests.contract.stores import STORES, lent

LIMITED = list(STORES)


@pytest.fixture(params=LIMITED)
def address(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    with lent(request.param, folder) as address:
        yield address


def limited(*limits: Limit, queue: str = "default", kind: str = "only", fair: Fair | None = None) -> Plan:
    """A job of one stage that has these limits."""
    return plan(stage("only", kind=kind, limits=limits, fair=fair, queue=queue))


def fair(by: str = "user", aging: float | None = None, **weights: float) -> Plan:
    return plan(stage("only", fair=Fair(by, weights, aging)))  # type: ignore[arg-type]


def at_once(most: int, by: str = "user", name: str = "") -> Limit:
    return Limit(name or f"convert.{by}", by, most)


def per_minute(most: int, by: str = "user") -> Limit:
    return Limit(f"convert.{by}.per_minute", by, most, 60.0)


def of_site(name: str) -> Spec:
    return Spec(f'{{"site":"{name}"}}'.encode())


async def submit_for(store: Store, plan: Plan, users: Sequence[str], **options: Any) -> None:
    """A job for each of these users, in this order."""
    changes = [submission(plan, user=user, now=store.now(), **options) for user in users]
    assert await store.commit(changes) == [None] * len(changes)


def users_of(claims: Sequence[Claim]) -> str:
    return " ".join(each.job.user for each in claims)


async def finish_all(store: Store, claims: Sequence[Claim]) -> None:
    for each in claims:
        await finish(store, each)


async def starts(store: Store, count: int) -> list[str]:
    """The users of the next starts, one claim after the other; each ends before the next begins."""
    found: list[str] = []
    while len(found) < count and (claims := await claim(store, 1)):
        found.append(claims[0].job.user)
        await finish_all(store, claims)
    return found

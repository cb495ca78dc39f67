"""What went wrong. Failures are written, counted and settled by the script of the commit; here is what it is told.

A failure is a field of one hash: its status, whether its user is counted, its group, what became of it, and the failure
itself, with tabs between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import failures as rules
from packhorse.core import json
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.store.base import FailureFilter, FailureGroup
from packhorse.store.redis import commit, keys
from packhorse.store.redis.client import Link
from packhorse.store.redis.writer import Writer

PAGE = 250
"""Failures looked at by one question: who filters by code may have to look at many for few."""
COUNTS = tuple(status.value for status in FailureStatus)


async def dismiss(write: Writer, ids: Sequence[str], settled: Settled) -> list[str]:
    """Each by itself: of one that is not open the script says so, and the others are made."""
    asked, body = list(dict.fromkeys(ids)), json.encode(settled).decode()
    members = [commit.plain(["move_failure", id, "dismissed", body], guards=[["failure", id, "open"]]) for id in asked]
    outcomes = await write(members) if members else []
    return [id for id, outcome in zip(asked, outcomes, strict=True) if not write.refusal(outcome)]


async def dismiss_group(
    link: Link, write: Writer, tenant: str, fingerprint: str, settled: Settled
) -> FailureGroup | None:
    key = keys.failure_group(keys.group(tenant, fingerprint))
    put = ["HSET", key, "dismissal", json.encode(settled).decode()]
    if await write.told(commit.plain(put, guards=[["exists", key]])):
        return None
    return await group(link, tenant, fingerprint)


async def forget(link: Link, write: Writer, until: float, limit: int) -> int:
    """The oldest of each tenant."""
    [tenants] = await link.ask([["SMEMBERS", keys.FAILING]])
    found: list[str] = []
    for tenant in sorted(tenant.decode() for tenant in tenants):
        last = f"({rules.first_id(until)}"
        page = ["ZRANGEBYLEX", keys.failures_in(tenant), "-", last, "LIMIT", "0", str(limit - len(found))]
        if len(found) < limit:
            [ids] = await link.ask([page])
            found += [id.decode() for id in ids]
    if found:
        await write.put(*(commit.plain(["forget_failure", id]) for id in found))
    return len(found)


# Asked


async def find(link: Link, wanted: FailureFilter, before: str | None, limit: int) -> list[FailedRun]:
    """From the narrowest index there is, page by page, until there are enough."""
    last = None if wanted.until is None else rules.first_id(wanted.until)
    upper = min((each for each in (before, last) if each is not None), default=None)
    lower = "-" if wanted.since is None else f"[{rules.first_id(wanted.since)}"
    found: list[FailedRun] = []
    if wanted.job_id is not None and (mine := await _of_job(link, wanted.job_id)):
        first = "" if wanted.since is None else rules.first_id(wanted.since)
        ids = [id for id in sorted(mine, reverse=True) if id >= first and (upper is None or id < upper)]
        there = [each for each in await by_id(link, ids) if each is not None and _is_wanted(each, wanted)]
        return there[:limit]
    while len(found) < limit:
        start = "+" if upper is None else f"({upper}"
        [page] = await link.ask([["ZREVRANGEBYLEX", _index(wanted), start, lower, "LIMIT", "0", str(PAGE)]])
        ids = [id.decode() for id in page]
        found += [each for each in await by_id(link, ids) if each is not None and _is_wanted(each, wanted)]
        if len(ids) < PAGE:
            break
        upper = ids[-1]
    return found[:limit]


async def _of_job(link: Link, job_id: str) -> list[str]:
    """As the job's record has them; none if it is gone, though its failures may be there."""
    [ids] = await link.ask([["HGET", keys.job(job_id), "failures"]])
    return [] if ids is None else ids.decode().split()


def _index(wanted: FailureFilter) -> str:
    if wanted.fingerprint is not None:
        return keys.failures_in(keys.group(wanted.tenant, wanted.fingerprint))
    return keys.failures_in(keys.tenant(wanted.tenant))


def _is_wanted(failure: FailedRun, wanted: FailureFilter) -> bool:
    named = ("tenant", "fingerprint", "job_id", "user", "pipeline", "code", "status", "schedule")
    return all(getattr(wanted, name) in (None, getattr(failure, name)) for name in named)


async def by_id(link: Link, ids: Sequence[str]) -> list[FailedRun | None]:
    if not ids:
        return []
    [rows] = await link.ask([["HMGET", "failures", *ids]])
    return [None if row is None else _read(row) for row in rows]


async def times(link: Link, tenant: str, fingerprints: Sequence[str], since: float, limit: int) -> list[list[float]]:
    first, most = f"[{rules.first_id(since)}", str(max(0, limit))
    indexes = [keys.failures_in(keys.group(tenant, each)) for each in fingerprints]
    questions = [["ZREVRANGEBYLEX", index, "+", first, "LIMIT", "0", most] for index in indexes]
    pages = await link.ask(questions) if questions else []
    return [[rules.time_of(id.decode()) for id in page] for page in pages]


async def groups(link: Link, tenant: str, before: str | None, limit: int) -> list[FailureGroup]:
    start = "+" if before is None else f"({before}"
    page = ["ZREVRANGEBYLEX", keys.failure_groups(keys.tenant(tenant)), start, "-", "LIMIT", "0", str(max(0, limit))]
    [places] = await link.ask([page])
    fingerprints = [place.decode().rpartition("-")[2] for place in places]
    found = await _groups(link, tenant, fingerprints)
    return [group for group in found if group is not None]


async def group(link: Link, tenant: str, fingerprint: str) -> FailureGroup | None:
    [found] = await _groups(link, tenant, [fingerprint])
    return found


async def _groups(link: Link, tenant: str, fingerprints: Sequence[str]) -> list[FailureGroup | None]:
    named = [keys.group(tenant, fingerprint) for fingerprint in fingerprints]
    questions = [
        q for name in named for q in (["HGETALL", keys.failure_group(name)], ["HLEN", keys.failure_users(name)])
    ]
    answers = iter(await link.ask(questions))
    return [_group(tenant, fingerprint, next(answers), next(answers)) for fingerprint in fingerprints]


def _group(tenant: str, fingerprint: str, flat: Sequence[bytes], users: int) -> FailureGroup | None:
    if not flat:
        return None
    said = dict(_pairs(flat))
    dismissal, again = said.get("dismissal"), said.get("seen_again")
    return FailureGroup(
        tenant, fingerprint, said["pipeline"], said["stage"] or None, said["code"], said["message"],
        first_seen=float(said["first_seen"]), last_seen=float(said["last_seen"]), users=users,
        unlisted=int(said.get("unlisted", 0)), dismissal=json.record(dismissal, Settled) if dismissal else None,
        seen_again=float(again) if again else None, **{name: int(said.get(name, 0)) for name in COUNTS},
    )  # fmt: skip


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    for i in range(0, len(flat), 2):
        yield flat[i].decode(), flat[i + 1].decode()


def _read(row: Any) -> FailedRun:
    status, _counted, _group, settled, body = row.decode().split("\t", 4)
    became = json.record(settled, Settled) if settled else None
    return replace(json.record(body, FailedRun), status=FailureStatus(status), settled=became)

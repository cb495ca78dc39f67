"""Failures and their groups. The script of the commit writes, counts and settles them.

A failure is a field of one hash: its status, whether its user is counted, its group, its outcome, and the failure
itself, with tabs between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import failures as rules
from packhorse.core import json
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.store.failures import FailureFilter, FailureGroup, Recent
from packhorse.store.redis import keys
from packhorse.store.redis.client import Link
from packhorse.store.redis.session import Session, pack_effects, refusal

PAGE = 250
"""Failures looked at by one question: who filters by code may have to look at many for few."""
COUNTS = tuple(status.value for status in FailureStatus)


class FailureStore(Session):
    async def failures(
        self, wanted: FailureFilter | Sequence[str], *, before: str | None = None, limit: int = 50
    ) -> list[FailedRun]:
        """From the narrowest index there is, page by page, until there are enough."""
        self._open()
        if not isinstance(wanted, FailureFilter):
            return await _by_id(self._link, wanted)
        last = None if wanted.until is None else rules.first_id(wanted.until)
        upper = min((each for each in (before, last) if each is not None), default=None)
        if wanted.job_id is not None and (mine := await _of_job(self._link, wanted.job_id)):
            first = "" if wanted.since is None else rules.first_id(wanted.since)
            ids = [id for id in sorted(mine, reverse=True) if id >= first and (upper is None or id < upper)]
            return [each for each in await _by_id(self._link, ids) if _is_wanted(each, wanted)][:limit]
        lower = "-" if wanted.since is None else f"[{rules.first_id(wanted.since)}"
        found: list[FailedRun] = []
        while len(found) < limit:
            start = "+" if upper is None else f"({upper}"
            [page] = await self._link.ask([["ZREVRANGEBYLEX", _index(wanted), start, lower, "LIMIT", "0", str(PAGE)]])
            ids = [id.decode() for id in page]
            found += [each for each in await _by_id(self._link, ids) if _is_wanted(each, wanted)]
            if len(ids) < PAGE:
                break
            upper = ids[-1]
        return found[:limit]

    async def failure_groups(
        self,
        tenant: str,
        *,
        fingerprints: Sequence[str] | None = None,
        before: str | None = None,
        limit: int = 50,
        recent: Recent | None = None,
    ) -> list[FailureGroup]:
        self._open()
        if fingerprints is None:
            start = "+" if before is None else f"({before}"
            index = keys.failure_groups(keys.tenant(tenant))
            [places] = await self._link.ask([["ZREVRANGEBYLEX", index, start, "-", "LIMIT", "0", str(max(0, limit))]])
            fingerprints = [place.decode().rpartition("-")[2] for place in places]
        found = [group for group in await _groups(self._link, tenant, fingerprints) if group is not None]
        if recent is None or not found:
            return found
        first, most = f"[{rules.first_id(recent.since)}", str(max(0, recent.limit))
        indexes = [keys.failures_in(keys.group(tenant, group.fingerprint)) for group in found]
        pages = await self._link.ask([["ZREVRANGEBYLEX", index, "+", first, "LIMIT", "0", most] for index in indexes])
        times = [tuple(rules.time_of(id.decode()) for id in page) for page in pages]
        return [replace(group, times=those) for group, those in zip(found, times, strict=True)]

    async def dismiss_failures(
        self, ids: Sequence[str], settled: Settled, *, group: tuple[str, str] | None = None
    ) -> list[str]:
        """Each by itself: the script refuses one that is not open, and makes the others."""
        asked, body = list(dict.fromkeys(ids)), json.encode(settled).decode()
        members = [
            pack_effects(["move_failure", id, "dismissed", body], guards=[["failure", id, "open"]]) for id in asked
        ]
        if group is not None:
            key = keys.failure_group(keys.group(*group))
            members.append(pack_effects(["dismiss_group", key, body], guards=[["exists", key]]))
        outcomes = await self._write(members)
        return [id for id, outcome in zip(asked, outcomes, strict=False) if not refusal(outcome)]

    async def forget_failures(self, until: float, limit: int) -> int:
        """The oldest of each tenant."""
        [tenants] = await self._link.ask([["SMEMBERS", keys.FAILING]])
        found: list[str] = []
        for tenant in sorted(tenant.decode() for tenant in tenants):
            last = f"({rules.first_id(until)}"
            page = ["ZRANGEBYLEX", keys.failures_in(tenant), "-", last, "LIMIT", "0", str(limit - len(found))]
            if len(found) < limit:
                [ids] = await self._link.ask([page])
                found += [id.decode() for id in ids]
        if found:
            await self._write.put(*(pack_effects(["forget_failure", id]) for id in found))
        return len(found)


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


async def _by_id(link: Link, ids: Sequence[str]) -> list[FailedRun]:
    if not ids:
        return []
    [rows] = await link.ask([["HMGET", "failures", *ids]])
    return [_read(row) for row in rows if row is not None]


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
    said = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
    dismissal, again = said.get("dismissal"), said.get("seen_again")
    return FailureGroup(
        tenant, fingerprint, said["pipeline"], said["stage"] or None, said["code"], said["message"],
        first_seen=float(said["first_seen"]), last_seen=float(said["last_seen"]), users=users,
        unlisted=int(said.get("unlisted", 0)), dismissal=json.record(dismissal, Settled) if dismissal else None,
        seen_again=float(again) if again else None, **{name: int(said.get(name, 0)) for name in COUNTS},  # type: ignore[arg-type]
    )  # fmt: skip


def _read(row: Any) -> FailedRun:
    status, _counted, _group, settled, body = row.decode().split("\t", 4)
    became = json.record(settled, Settled) if settled else None
    return replace(json.record(body, FailedRun), status=FailureStatus(status), settled=became)

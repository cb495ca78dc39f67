"""Leases over time, sweeps, purge, and who is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from packhorse.core.models import Job, TaskId
from packhorse.errors import PackhorseError
from packhorse.store.base import Lease, Renewal
from packhorse.store.redis import commit, keys
from packhorse.store.redis import rows as records
from packhorse.store.redis.client import Link, ServerClock
from packhorse.store.redis.commit import Member
from packhorse.store.redis.rows import FIELDS, Plans

MANY = 200
"""Leases renewed by one script."""
ENDED = ("purge", "litter", *(keys.index(name) for name in keys.WHOLE))
"""Indexes that an ended job may be in and that are found without its record. From the others `find` takes it."""
_pack = msgspec.msgpack.Encoder().encode


async def renew(link: Link, clock: ServerClock, leases: Sequence[Lease], seconds: float) -> Renewal:
    said: list[bytes] = []
    for first in range(0, len(leases), MANY):
        flat = [text for lease in leases[first : first + MANY] for text in (lease.job_id, _entry(lease), lease.token)]
        said += await link.run("renew", clock.argument(), seconds, _pack(flat))
    return _renewal(leases, [word.decode() for word in said])


async def standing(link: Link, leases: Sequence[Lease]) -> Renewal:
    questions = [
        question
        for lease in leases
        for question in (["HGET", "holders", _entry(lease)], ["HGET", keys.job(lease.job_id), "stopping"])
    ]
    answers = await link.ask(questions)
    said = []
    for lease, held, stopping in zip(leases, answers[::2], answers[1::2], strict=True):
        is_ours = held is not None and held.decode().partition("\t")[0] == lease.token
        said.append("lost" if not is_ours else "stopping" if stopping else "")
    return _renewal(leases, said)


def _entry(lease: Lease) -> str:
    return keys.entry(lease.job_id, lease.task)


def _renewal(leases: Sequence[Lease], said: Sequence[str]) -> Renewal:
    def those(word: str) -> frozenset[Lease]:
        return frozenset(lease for lease, heard in zip(leases, said, strict=True) if heard == word)

    return Renewal(those("lost"), those("stopping"))


class Sweeper:
    """Pages of an index with their jobs. What cannot be read is passed by; who asks for it is told."""

    def __init__(self, link: Link, clock: ServerClock, plans: Plans) -> None:
        self._link = link
        self._clock = clock
        self._plans = plans

    async def leased(self, index: str, which: str, limit: int) -> list[tuple[Job, TaskId]]:
        return [(job, keys.entry_from(member)[1]) for member, job in await self._sweep(index, which, limit)]

    async def jobs(self, index: str, which: str, limit: int) -> list[Job]:
        return [job for _, job in await self._sweep(index, which, limit)]

    async def _sweep(self, index: str, which: str, limit: int) -> list[tuple[str, Job]]:
        found: list[tuple[str, Job]] = []
        passed = 0
        while len(found) < limit:
            flat = await self._link.run("sweep", self._clock.argument(), index, which, passed, limit, *FIELDS)
            page = [(flat[i].decode(), flat[i + 1]) for i in range(0, len(flat), 2)]
            found += await self._read(page)
            passed += len(page)
            if len(page) < limit:
                break
        return found[:limit]

    async def _read(self, page: Sequence[tuple[str, Any]]) -> list[tuple[str, Job]]:
        rows = [(member.partition(" ")[0], row) for member, row in page]
        jobs: dict[str, Job | PackhorseError] = dict(await records.jobs_from(rows, self._plans, self._link.ask))
        return [(member, job) for member, _ in page if isinstance(job := jobs.get(member.partition(" ")[0]), Job)]


async def erasure(link: Link, job_id: str, plans: Plans) -> Member | None:
    """What deletes the job as it is now, if it is marked. Its state need not be readable for that."""
    wanted = ("version", "is_purging", "tenant", "user", "pipeline", "key", "plan")
    [row] = await link.ask([["HMGET", keys.job(job_id), *wanted]])
    version, is_purging, *rest = (None if value is None else value.decode() for value in row)
    if version is None or not is_purging:
        return None
    tenant, user, pipeline, key, plan = (value or "" for value in rest)
    of = (keys.job, keys.events, keys.changes, keys.result, keys.output, keys.log, keys.progress)
    gone = [each(job_id) for each in of] + [keys.metrics(job_id, what) for what in ("cpu", "memory", "duration")]
    gone += [keys.stage(job_id, name) for name in await _stage_names(link, plan, job_id, plans)]
    if key:
        gone.append(keys.idempotency(key))
    pair = keys.pair(tenant, pipeline)
    indexes = [keys.index(name, of) for name in keys.WHOLE for of in (None, pair)]
    indexes += [keys.index("running"), keys.user(tenant, user), "deadlines", "purge", "purging", "litter"]
    return commit.erasure(job_id, version, gone, indexes)


async def _stage_names(link: Link, plan: str, job_id: str, plans: Plans) -> list[str]:
    [body] = await link.ask([["HGET", "plans", plan]])
    plans.learn(plan, body)
    try:
        return [stage.name for stage in plans.get(plan, job_id).stages]
    except PackhorseError:  # then what people read of its stages is left to its own end
        return []


async def find_vanished(link: Link, clock: ServerClock) -> list[str]:
    """Ended jobs past their time whose record the server has dropped by itself: nobody had purged them in a week."""
    flat = await link.run("sweep", clock.argument(), "purge", "past", 0, MANY, "version")
    return [flat[i].decode() for i in range(0, len(flat), 2) if flat[i + 1][0] is None]


def drop_index_entry(index: str, job_id: str) -> Member:
    """An index entry whose record the server has dropped by itself."""
    return commit.plain(["out", job_id, index], guards=[["absent", keys.job(job_id)]])


def drop_orphans(job_id: str) -> Member:
    """Tokens and records of a job that the server has dropped by itself."""
    return commit.plain(["orphan", job_id], guards=[["absent", keys.job(job_id)]])


# Pauses


# Registry

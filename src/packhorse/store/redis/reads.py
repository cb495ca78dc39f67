"""Questions about jobs and queues. None of them walks all jobs, and none keeps the server long."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from packhorse.core import json
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord, PackhorseError
from packhorse.log import log
from packhorse.store.base import Count, Filter, Snapshot
from packhorse.store.redis import keys
from packhorse.store.redis.commit import Kept
from packhorse.store.redis.notes import NoteStore
from packhorse.store.redis.rows import FIELDS, by_task, jobs_from
from packhorse.store.redis.session import Member, pack, pack_effects

BUDGET = 250
"""Records looked at by one script, about: who filters a user's jobs by status may have to look at many for few."""

_kept = msgspec.json.Decoder(Kept)
_named = msgspec.json.Decoder(dict[str, Any])


class ReadStore(NoteStore):
    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        rows = await self._link.ask([["HMGET", keys.job(job_id), *FIELDS] for job_id in job_ids])
        found = dict(await jobs_from(list(zip(job_ids, rows, strict=True)), self._plans, self._link.ask))
        return [_readable(found.get(job_id)) for job_id in job_ids]

    async def find(self, filter: Filter, *, before: str | None = None, limit: int = 50) -> list[Job]:
        """Also takes out of the indexes what they still name although its record has gone."""
        indexes = await self._indexes(filter)
        found: list[Job] = []
        gone: list[Member] = []
        after = before or ""
        while indexes and len(found) < limit:  # what is left out must not make the list end early
            wanted = _wanted(filter, indexes, after, limit - len(found))
            goes_on, rows, dangling = await self._link.run("find", wanted, *FIELDS)
            page = [(rows[i].decode(), rows[i + 1]) for i in range(0, len(rows), 2)]
            for job_id, job in await jobs_from(page, self._plans, self._link.ask):
                if isinstance(job, Job):
                    found.append(job)
                elif job is not None:  # one of them must not hide all others; a read of it raises
                    log.job_unreadable(job_id, job)
            gone += [
                drop_index_entry(dangling[i].decode(), dangling[i + 1].decode()) for i in range(0, len(dangling), 2)
            ]
            after = goes_on.decode()
            if not after:
                break
        if gone:
            await self._write.put(*gone)
        return found

    async def count(self, filters: Sequence[Filter], *, most: int) -> list[Count]:
        return list(await asyncio.gather(*(self._count(each, most) for each in filters)))

    async def _count(self, filter: Filter, most: int) -> Count:
        """By the same script: which entries are dangling or being purged, and which are of whom, only the records say.

        One index after the other: for a number nobody has to merge them.
        """
        found, left = 0, filter.looks(most)
        for index in await self._indexes(filter):
            after, is_over = "", False
            while not is_over:
                wanted = _wanted(filter, [index], after, BUDGET)
                goes_on, rows, _ = await self._link.run("find", wanted, *FIELDS[:5], "is_purging")
                found += sum(not fields[5] for fields in rows[1::2])
                after = goes_on.decode()
                is_over = not after
                left -= len(rows) // 2 if is_over else BUDGET
                if found > most or (left <= 0 and not is_over):
                    return Count(min(found, most), False)
        return Count(found, True)

    async def _indexes(self, filter: Filter) -> list[str]:
        """The narrowest indexes that together name every job the filter may match."""
        if filter.user is not None and filter.tenant is not None:
            return [keys.user(filter.tenant, filter.user)]
        names = list(keys.WHOLE) if filter.status is None else [keys.index_of(filter.status)]
        if filter.status is Status.RUNNING and filter.user is None:
            return [keys.index("running")]  # as many as there are workers' slots, of all users
        if filter.user is filter.tenant is filter.pipeline is None:
            return [keys.index(name) for name in names]
        pairs = await self._pairs(filter)
        if filter.user is not None:
            owner = quote(filter.user, safe="")
            return [f"user:{tenant}/{owner}:jobs" for tenant in sorted({pair.partition("/")[0] for pair in pairs})]
        return [keys.index(name, pair) for pair in pairs for name in names]

    async def _pairs(self, filter: Filter) -> list[str]:
        first, last = "-", "+"
        if filter.tenant is not None:
            tenant = quote(filter.tenant, safe="")
            first, last = f"[{tenant}/", f"({tenant}0"  # the character after the slash
        [found] = await self._link.ask([["ZRANGEBYLEX", keys.PAIRS, first, last]])
        pairs = [pair.decode() for pair in found]
        if filter.pipeline is not None:
            pairs = [pair for pair in pairs if pair.partition("/")[2] == quote(filter.pipeline, safe="")]
        return pairs

    async def snapshot(self, job_id: str, *, events: int, lines: int, stage: str | None = None) -> Snapshot | None:
        [job] = await self.get([job_id])
        if job is None:
            return None
        # The last line first: nothing shown is newer.
        last = [] if stage is None else await self.lines(job_id, limit=1, newest=True)
        shown = await self.lines(job_id, limit=lines, stage=stage, newest=True)
        return Snapshot(
            job,
            (await self.specs([job_id])).get(job_id),
            (await self.results([job_id])).get(job_id, {}),
            (await self.progress([job_id])).get(job_id, {}),
            await self.events(job_id, after=max(0, job.events - events), limit=events),
            shown,
            max((line.n for line in (*last, *shown)), default=0),
            await self.samples(job_id),
        )

    async def specs(self, job_ids: Sequence[str]) -> dict[str, Spec]:
        bodies = await self._link.ask([["HGET", keys.job(job_id), "spec"] for job_id in job_ids])
        found = zip(job_ids, bodies, strict=True)
        return {job_id: json.spec_from(body, job_id) for job_id, body in found if body is not None}

    async def results(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
        answers = await self._link.ask([["HGETALL", keys.result(job_id)] for job_id in job_ids])
        return {
            job_id: {at: json.result_from(body, job_id) for at, body in sorted(by_task(flat).items())}
            for job_id, flat in zip(job_ids, answers, strict=True)
            if flat
        }

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """One element per event, so that its number is its place."""
        [bodies] = await self._link.ask([["LRANGE", keys.events(job_id), str(after), str(after + limit - 1)]])
        found = enumerate((_event(body, job_id) for body in bodies), after + 1)
        return [Event(n, kept.type, kept.at, kept.data) for n, kept in found]

    async def has_change(self, job_id: str, change_id: str) -> bool:
        told, untold = await self._link.ask([["LRANGE", of(job_id), "0", "-1"] for of in (keys.events, keys.changes)])
        return change_id.encode() in untold or any(_event(body, job_id).change == change_id for body in told)

    async def find_by_key(self, key: str) -> tuple[str, str] | None:
        [value] = await self._link.ask([["GET", keys.idempotency(key)]])
        if value is None:
            return None
        job_id, _, fingerprint = value.decode().partition(" ")
        return job_id, fingerprint

    async def holder(self, slot: str) -> str | None:
        [value] = await self._link.ask([["GET", keys.slot(slot)]])
        return None if value is None else value.decode()

    async def line(self, slot: str, *, limit: int) -> list[str]:
        if limit < 1:
            return []
        key = keys.slot(slot)
        holder, line = await self._link.ask([["GET", key], ["ZRANGE", f"{key}:line", "0", str(limit - 1)]])
        return [each.decode() for each in ([holder] if holder is not None else []) + line][:limit]

    async def existing_ids(self, job_ids: Sequence[str]) -> set[str]:
        self._open()
        answers = await self._link.ask([["EXISTS", keys.job(job_id)] for job_id in job_ids])
        return {job_id for job_id, is_there in zip(job_ids, answers, strict=True) if is_there}

    async def ahead(self, job: Job, task: TaskId, *, limit: int = 1000) -> int:
        queue, entry = job.plan.stage(task.stage).queue, keys.entry(job.id, task)
        return int(await self._link.run("ahead", self.now.argument(), queue, -job.priority, entry, limit))

    async def ready(self, kinds: Mapping[str, Collection[str]], *, limit: int = 1000) -> dict[str, int]:
        self._open()
        pairs = [(queue, kind) for queue, names in kinds.items() for kind in names]
        counts = await self._link.run("ready", limit, pack(pairs)) if pairs else []
        found = dict.fromkeys(kinds, 0)
        for (queue, _), count in zip(pairs, counts, strict=True):
            found[queue] = min(found[queue] + count, limit)
        return found


def drop_index_entry(index: str, job_id: str) -> Member:
    """Takes out an index entry whose record the server has dropped by itself."""
    return pack_effects(["leave", job_id, index], guards=[["absent", keys.job(job_id)]])


def _readable(found: Job | PackhorseError | None) -> Job | None:
    if isinstance(found, PackhorseError):
        raise found
    return found


def _wanted(filter: Filter, indexes: list[str], after: str, limit: int) -> bytes:
    times = ["" if time is None else str(time) for time in (filter.created_from, filter.created_until)]
    checks = [filter.tenant or "", filter.status or "", filter.pipeline or "", *times]
    return pack([indexes, after, min(limit, BUDGET), BUDGET, *checks])


def _event(body: bytes, job_id: str) -> Kept:
    try:
        if body.startswith(b"{"):  # with names, as version 1 of the stored state
            old = _named.decode(body)
            return Kept(old["type"], old["at"], old["data"], old.get("change", ""))
        return _kept.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise CorruptRecord(what="events", job_id=job_id, reason=str(error)) from error

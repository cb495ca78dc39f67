"""Records: everything beside jobs, and the keys in which people read some of them.

The keys of records are described in `lua/record_lib.lua`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from packhorse.core import json
from packhorse.core.records import Drop, LogEntry, Put, Record
from packhorse.core.schedules import Schedule
from packhorse.errors import Conflict, CorruptRecord, JobNotFound
from packhorse.store.base import Finding
from packhorse.store.collections import queues, workers
from packhorse.store.redis.commit import as_text, put_facts
from packhorse.store.redis.session import Session, pack

FIELDS = ("stamp", "body", "note", "due_at", "attempts")
PAGE = 500
"""Records read by one script, so that it does not keep others waiting."""


class RecordStore(Session):
    async def put(self, writes: Sequence[Put | Drop], *, quiet: bool = False) -> list[int]:
        self._open()
        if not writes:
            return []
        packed = pack([_facts(write) for write in writes])
        views = pack(_show_records(writes))
        why, *facts = await self._link.run("put", "1" if quiet else "", packed, views)
        if not why:
            return [int(stamp) for stamp in facts]
        refused = writes[facts[0] - 1]
        if why == b"job":
            assert isinstance(refused, Put)
            raise JobNotFound(job_id=refused.job_id)
        raise Conflict(
            f"The {refused.kind} {refused.id} is not as expected ({why.decode()}).", kind=refused.kind, id=refused.id
        )

    async def fetch(self, kind: str, ids: Sequence[str]) -> list[Record | None]:
        self._open()
        rows = await self._link.ask([["HMGET", f"record:{kind}:{id}", *FIELDS] for id in ids])
        return [_record(kind, id, row) if row[0] is not None else None for id, row in zip(ids, rows, strict=True)]

    async def scan(
        self,
        kind: str,
        index: str,
        *,
        after: str = "",
        before: str | None = None,
        limit: int = 50,
        newest: bool = False,
    ) -> list[Record]:
        self._open()
        low, high = b"[" + after.encode() + b"\1", b"+" if before is None else b"(" + before.encode()
        found: list[Record] = []
        while len(found) < limit:
            size = min(PAGE, limit - len(found))
            flat = await self._link.run("scan", kind, index, low, high, size, "1" if newest else "", *FIELDS)
            for i in range(0, len(flat), 2):
                id = flat[i].partition(b"\0")[2].decode()
                found.append(_record(kind, id, flat[i + 1]))
            if len(flat) < 2 * size:
                break
            low, high = (low, b"(" + flat[-2]) if newest else (b"(" + flat[-2], high)
        return found

    async def take(self, kind: str, lane: str, limit: int, seconds: float) -> list[Record]:
        self._open()
        if limit <= 0:
            return []
        flat = await self._link.run("take", self.now.argument(), kind, lane, limit, seconds, *FIELDS)
        return [_record(kind, flat[i].decode(), flat[i + 1]) for i in range(0, len(flat), 2)]

    async def append(self, log: str, entries: Sequence[LogEntry], *, keep: int, since: float = 0.0) -> None:
        self._open()
        if entries:
            packed = pack([(quote(entry.topic, safe=""), repr(entry.at), as_text(entry.body)) for entry in entries])
            await self._link.run("append", log, keep, since, packed)

    async def tail(self, log: str, *, topic: str = "", before: int | None = None, limit: int = 50) -> list[LogEntry]:
        self._open()
        if limit <= 0:
            return []
        if not topic:
            start = "+" if before is None else f"({before}-0"
            [found] = await self._link.ask([["XREVRANGE", log, start, "-", "COUNT", str(limit)]])
        else:
            start = "+inf" if before is None else f"({before}"
            page = ["ZREVRANGEBYSCORE", f"{log}:of:{quote(topic, safe='')}", start, "-inf", "LIMIT", "0", str(limit)]
            [numbers] = await self._link.ask([page])
            pages = await self._link.ask([["XRANGE", log, n.decode(), n.decode()] for n in numbers])
            found = [entry for page in pages for entry in page]
        return [
            LogEntry(fields[5], unquote(fields[1].decode()), int(id.partition(b"-")[0]), float(fields[3]))
            for id, fields in found
        ]


def _facts(write: Put | Drop) -> list[Any]:
    rest = put_facts(write) if isinstance(write, Put) else [write.leaseless]
    return [write.kind, write.id, "" if write.stamp is None else str(write.stamp), *rest]


def _record(kind: str, id: str, row: Sequence[Any]) -> Record:
    stamp, body, note, due_at, attempts = row
    due = None if due_at is None else float(due_at)
    return Record(kind, id, body, note or b"", int(stamp), due, int(attempts or 0))


# What people are shown

HEALTH = "60"
"""Seconds after which a finding, or what a worker says of itself, is not shown as current any more."""
MACHINE = "10"
"""Seconds for which what a host uses is shown as current."""
DAY = 86_400

Commands = list[list[str]]


def _show_records(writes: Sequence[Put | Drop]) -> Commands:
    """Commands for the keys that people read, to be carried out in the step that makes these writes."""
    shown = [kind for kind in dict.fromkeys(write.kind for write in writes) if kind in RECORD_VIEWS]
    return [
        command for kind in shown for command in RECORD_VIEWS[kind]([write for write in writes if write.kind == kind])
    ]


def _show_schedules(writes: Sequence[Put | Drop]) -> Commands:
    """``config:{tenant}/{schedule}``: a hash with what people edit."""
    commands = []
    for write in writes:
        if isinstance(write, Drop):
            commands.append(["DEL", f"config:{write.id}"])
            continue
        with suppress(CorruptRecord):  # a read of it raises
            schedule = json.record(write.body, Schedule)
            terms = schedule.terms
            fields = {
                "job_id": schedule.id, "active": "1" if terms.active else "0", "pipeline": terms.pipeline,
                "cron": terms.cron, "zone": terms.zone, "params": terms.parameters.decode(),
                "version": str(schedule.version), "updated_at": repr(schedule.updated_at),
                "next_at": "" if schedule.next_at is None else repr(schedule.next_at),
            }  # fmt: skip
            commands.append(["HSET", f"config:{write.id}", *(text for pair in fields.items() for text in pair)])
    return commands


def _show_workers(writes: Sequence[Put | Drop]) -> Commands:
    shown: Commands = []
    for write in writes:
        key = f"health:{write.id}"
        if isinstance(write, Drop):
            shown.append(["DEL", key])
            continue
        shown.append(["SET", key, write.body.decode(), "EX", HEALTH])
        machine = json.record(write.body, workers.WorkerCard).machine
        if machine is not None:  # of the host that reported last; each worker's is in its own
            shown.append(["SET", "stats:cpu:current", f"{100 * machine.cpu:.1f}", "EX", MACHINE])
            shown.append(["SET", "stats:memory:current", str(machine.memory), "EX", MACHINE])
    return shown


def _show_findings(writes: Sequence[Put | Drop]) -> Commands:
    """Each part in a field, and whether all is well in a key of its own, for who reads nothing else."""
    found = [json.record(write.body, Finding) for write in writes if isinstance(write, Put)]
    worst = next((each for each in found if not each.is_ok), None)
    current = {"status": "ok" if worst is None else "bad", "part": "" if worst is None else worst.part}
    at = max((each.measured_at or 0.0 for each in found), default=0.0)
    return [
        *(["HSET", "health:services", each.part, json.encode(each).decode()] for each in found),
        ["EXPIRE", "health:services", HEALTH],
        ["SET", "health:current", json.encode({**current, "measured_at": at}).decode(), "EX", HEALTH],
    ]


def _show_lost(writes: Sequence[Put | Drop]) -> Commands:
    shown = [
        ["HSET", "workers:lost", write.id, write.body.decode()]
        if isinstance(write, Put)
        else ["HDEL", "workers:lost", write.id]
        for write in writes
    ]
    return [*shown, ["EXPIRE", "workers:lost", str(DAY)]]


def _show_readings(writes: Sequence[Put | Drop]) -> Commands:
    """A hash per day, so that it can expire as a whole."""
    shown: Commands = []
    for write in writes:
        if isinstance(write, Put):
            key = f"stats:readings:{time.strftime('%Y-%m-%d', time.gmtime(int(write.id)))}"
            shown.append(["HSET", key, write.id, write.body.decode()])
            shown.append(["EXPIRE", key, str(queues.READINGS_KEPT + DAY)])
    return shown


RECORD_VIEWS: Mapping[str, Callable[[Sequence[Put | Drop]], Commands]] = {
    "schedule": _show_schedules,
    workers.WORKER: _show_workers,
    workers.LOST: _show_lost,
    workers.FINDING: _show_findings,
    queues.READING: _show_readings,
}
"""By kind of record: the commands, keys without the prefix, that show people the writes of one `put`."""

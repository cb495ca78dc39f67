"""Records: everything beside jobs. Their keys are described in `lua/record_lib.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from packhorse.core.records import Drop, LogEntry, Put, Record
from packhorse.errors import Conflict, JobNotFound
from packhorse.store.redis import commit, public_view
from packhorse.store.redis.session import Handle

FIELDS = ("stamp", "body", "note", "due_at", "attempts")
PAGE = 500
"""Records read by one script, so that it does not keep others waiting."""

_pack = msgspec.msgpack.Encoder().encode


class RecordStore(Handle):
    async def put(self, writes: Sequence[Put | Drop], *, quiet: bool = False) -> list[int]:
        self._open()
        if not writes:
            return []
        packed = _pack([_put(write) if isinstance(write, Put) else _drop(write) for write in writes])
        views = _pack(public_view.show_records(writes))
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

    async def append(self, log: str, entries: Sequence[LogEntry], *, keep: int) -> None:
        self._open()
        if entries:
            flat = [part for entry in entries for part in (quote(entry.topic, safe=""), commit.as_text(entry.body))]
            await self._link.run("append", log, keep, _pack(flat))

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
        return [LogEntry(fields[3], unquote(fields[1].decode()), int(id.partition(b"-")[0])) for id, fields in found]


def _put(put: Put) -> list[Any]:
    return [put.kind, put.id, _stamp(put.stamp), *commit.put_facts(put)]


def _drop(drop: Drop) -> list[Any]:
    return [drop.kind, drop.id, _stamp(drop.stamp), drop.leaseless]


def _stamp(stamp: int | None) -> str:
    return "" if stamp is None else str(stamp)


def _record(kind: str, id: str, row: Sequence[Any]) -> Record:
    stamp, body, note, due_at, attempts = row
    due = None if due_at is None else float(due_at)
    return Record(kind, id, body, note or b"", int(stamp), due, int(attempts or 0))

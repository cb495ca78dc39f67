"""What workers have still to do about failures: taken by one of them at a time, by a script.

An errand is a field of one hash: "attempts<tab>sort<tab>tenant<tab>when it is due<tab>body".
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from packhorse.errors import Conflict
from packhorse.store.base import Errand
from packhorse.store.failures import Sort
from packhorse.store.redis import commit, keys
from packhorse.store.redis.client import Link
from packhorse.store.redis.clock import ServerClock
from packhorse.store.redis.failure_operations import drop, put
from packhorse.store.redis.writer import Writer


async def add(write: Writer, errand: Errand) -> None:
    if await write.told(commit.plain(*put(errand), guards=[["fresh", "errands", errand.id]])):
        raise Conflict(f"There is an errand {errand.id} already.")


async def take(link: Link, clock: ServerClock, sort: Sort, limit: int, seconds: float) -> list[Errand]:
    [page] = await link.ask([["ZRANGEBYSCORE", keys.due(sort), "-inf", repr(clock()), "LIMIT", "0", "1"]])
    if not page:  # who finds nothing, as most do, need not keep others from writing
        return []
    flat = await link.run("errands", clock.said(), sort, limit, seconds)
    return [_errand(flat[i].decode(), flat[i + 1]) for i in range(0, len(flat), 2)]


async def settle(write: Writer, errand: Errand, due_at: float | None, body: bytes | None, *, is_kept: bool) -> bool:
    after = replace(errand, due_at=due_at, body=errand.body if body is None else body)
    ops = drop(errand) if due_at is None and not is_kept else put(after)
    return not await write.told(commit.plain(*ops, guards=[["errand", errand.id, str(errand.attempts)]]))


async def orders(link: Link, tenant: str, before: str | None, limit: int) -> list[Errand]:
    start = "+" if before is None else f"({before}"
    page = ["ZREVRANGEBYLEX", keys.orders(tenant), start, "-", "LIMIT", "0", str(max(0, limit))]
    [ids] = await link.ask([page])
    return await _read(link, [id.decode() for id in ids])


async def order(link: Link, id: str) -> Errand | None:
    found = [errand for errand in await _read(link, [id]) if errand.sort == "order"]
    return found[0] if found else None


async def drop_done(link: Link, write: Writer, until: str, limit: int) -> int:
    [ids] = await link.ask([["ZRANGEBYLEX", keys.DONE, "-", f"({until}", "LIMIT", "0", str(limit)]])
    found = await _read(link, [id.decode() for id in ids])
    if found:
        await write.put(*(commit.plain(*drop(errand)) for errand in found))
    return len(found)


async def _read(link: Link, ids: list[str]) -> list[Errand]:
    if not ids:
        return []
    [rows] = await link.ask([["HMGET", "errands", *ids]])
    return [_errand(id, row) for id, row in zip(ids, rows, strict=True) if row is not None]


def _errand(id: str, row: Any) -> Errand:
    attempts, sort, tenant, due, body = row.decode().split("\t", 4)
    return Errand(id, sort, tenant, body.encode(), float(due) if due else None, int(attempts))

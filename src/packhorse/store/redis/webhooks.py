"""Who is told of ended jobs, and what waits to be sent. What a commit puts in is written with it, by its script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import json
from packhorse.errors import Conflict
from packhorse.store.base import Delivery, Endpoint
from packhorse.store.redis import commit, keys
from packhorse.store.redis.client import Link
from packhorse.store.redis.clock import ServerClock
from packhorse.store.redis.commit import Member
from packhorse.store.redis.writer import Writer

FIELDS = ("endpoint", "job_id", "run", "at", "attempts", "next_at", "error", "body")


async def add_endpoint(write: Writer, endpoint: Endpoint) -> None:
    ops = [["HSET", "endpoints", endpoint.id, json.encode(endpoint).decode()]]
    if endpoint.ended_at is None:
        ops.append(["SADD", "endpoints:open", endpoint.id])
    if await write.told(commit.plain(*ops, guards=[["fresh", "endpoints", endpoint.id]])):
        raise Conflict(f"There is an endpoint {endpoint.id} already.", endpoint_id=endpoint.id)


async def endpoints(link: Link, tenant: str | None, only_open: bool) -> list[Endpoint]:
    found = [json.record(body, Endpoint) for body in await (_open_ones(link) if only_open else _all(link))]
    wanted = [each for each in found if tenant is None or each.tenant == tenant]
    return sorted(wanted, key=lambda each: (each.created_at, each.id))


async def post(write: Writer, deliveries: Sequence[Delivery]) -> None:
    if deliveries:
        await write.put(*(commit.plain(["notify", *_words(each)], guards=[_is_fresh(each)]) for each in deliveries))


def _words(delivery: Delivery) -> list[str]:
    return [delivery.id, delivery.endpoint, delivery.job_id, str(delivery.run), repr(delivery.at), delivery.body]


def _is_fresh(delivery: Delivery) -> list[str]:
    return ["absent", keys.delivery(delivery.id)]


async def _all(link: Link) -> list[bytes]:
    [bodies] = await link.ask([["HVALS", "endpoints"]])
    return list(bodies)


async def _open_ones(link: Link) -> list[bytes]:
    [ids] = await link.ask([["SMEMBERS", "endpoints:open"]])
    if not ids:
        return []
    [bodies] = await link.ask([["HMGET", "endpoints", *(id.decode() for id in ids)]])
    return [body for body in bodies if body is not None]


async def forget_endpoints(link: Link, write: Writer, before: float) -> None:
    """Once ended, one stays so: there is nothing to guard."""
    ended = [json.record(body, Endpoint) for body in await _all(link)]
    gone = [each.id for each in ended if each.ended_at is not None and each.ended_at <= before]
    if gone:
        await write.told(commit.plain(*(["HDEL", "endpoints", id] for id in gone)))


async def end_endpoint(link: Link, write: Writer, id: str, at: float, reason: str) -> Endpoint | None:
    """Read, decide, write if it is still as it was read; look again if somebody was faster."""
    while True:
        [body] = await link.ask([["HGET", "endpoints", id]])
        endpoint = None if body is None else json.record(body, Endpoint)
        if endpoint is None or endpoint.ended_at is not None:
            return endpoint
        ended = replace(endpoint, ended_at=at, reason=reason)
        ops = (["HSET", "endpoints", id, json.encode(ended).decode()], ["SREM", "endpoints:open", id], ["unsend", id])
        if not await write.told(commit.plain(*ops, guards=[["same", "endpoints", id, body.decode()]])):
            return ended


async def take(link: Link, clock: ServerClock, limit: int, seconds: float) -> list[Delivery]:
    if limit <= 0:
        return []
    flat = await link.run("take", clock.said(), limit, seconds, *FIELDS)
    return [_delivery(flat[i].decode(), flat[i + 1]) for i in range(0, len(flat), 2)]


def settled(delivery: Delivery, next_at: float | None, error: str) -> Member:
    again = "" if next_at is None else repr(next_at)
    return commit.plain(["settle", delivery.id, str(delivery.attempts), again, error])


async def deliveries(link: Link, endpoint_id: str, limit: int) -> list[Delivery]:
    if limit <= 0:
        return []
    [ids] = await link.ask([["ZREVRANGE", keys.endpoint_deliveries(endpoint_id), "0", str(limit - 1)]])
    names = [id.decode() for id in ids]
    rows = await link.ask([["HMGET", keys.delivery(id), *FIELDS] for id in names])
    return [_delivery(id, row) for id, row in zip(names, rows, strict=True) if row[0] is not None]


def _delivery(id: str, row: Sequence[Any]) -> Delivery:
    endpoint, job_id, run, at, attempts, next_at, error, body = ((value or b"").decode() for value in row)
    return Delivery(id, endpoint, job_id, int(run), float(at), int(attempts), float(next_at), error, body)

"""Who may ask, and what they did."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from packhorse.core import json
from packhorse.errors import Conflict, JobNotFound
from packhorse.store.base import Entry, Key, Session
from packhorse.store.keys import REMEMBERED, key_from
from packhorse.store.redis import commit, keys
from packhorse.store.redis.client import Link
from packhorse.store.redis.writer import Writer

_pack = msgspec.msgpack.Encoder().encode


async def add_key(write: Writer, key: Key) -> None:
    body, guards = json.encode(key).decode(), [["fresh", "keys", key.id]]
    if key.job_id is None:
        listed = [["ZADD", index, "0", key.id] for index in (keys.tenant_keys(None), keys.tenant_keys(key.tenant))]
    else:
        listed, guards = [["SADD", keys.tokens(key.job_id), key.id]], [["exists", keys.job(key.job_id)], *guards]
    match await write.told(commit.plain(["HSET", "keys", key.id, body], *listed, guards=guards)):
        case "exists":
            raise JobNotFound(job_id=key.job_id)
        case "fresh":
            raise Conflict(f"There is a key {key.id} already.", key_id=key.id)


async def find(link: Link, ids: Sequence[str]) -> list[Key | None]:
    if not ids:
        return []
    [bodies] = await link.ask([["HMGET", "keys", *ids]])
    return [None if body is None else key_from(body) for body in bodies]


async def list_keys(link: Link, tenant: str | None, before: str | None, limit: int) -> list[Key]:
    start = "+" if before is None else f"({before}"
    [ids] = await link.ask([["ZREVRANGEBYLEX", keys.tenant_keys(tenant), start, "-", "LIMIT", "0", str(limit)]])
    return [key for key in await find(link, [id.decode() for id in ids]) if key is not None]


async def job_keys(link: Link, job_id: str) -> list[Key]:
    [ids] = await link.ask([["SMEMBERS", keys.tokens(job_id)]])
    found = await find(link, sorted((id.decode() for id in ids), reverse=True))
    return [key for key in found if key is not None]


async def end_key(link: Link, write: Writer, id: str, at: float, by: str) -> Key | None:
    """Read, decide, write if it is still as it was read; look again while others are faster."""
    while True:
        [body] = await link.ask([["HGET", "keys", id]])
        key = None if body is None else key_from(body)
        if key is None or (key.ends_at is not None and key.ends_at <= at):
            return key
        ended = replace(key, ends_at=at, ended_by=by)
        put = ["HSET", "keys", id, json.encode(ended).decode()]
        if not await write.told(commit.plain(put, guards=[["same", "keys", id, body.decode()]])):
            return ended


async def add_session(write: Writer, session: Session, now: float) -> None:
    """The server itself drops it when nobody has to know of it any more."""
    await write.told(commit.plain(_kept(session, now)))


def _kept(session: Session, now: float, *how: str) -> list[str]:
    lasting = max(1, round((session.ends_at + REMEMBERED - now) * 1000))
    return ["SET", keys.session(session.id), json.encode(session).decode(), "PX", str(lasting), *how]


async def session(link: Link, id: str) -> Session | None:
    [body] = await link.ask([["GET", keys.session(id)]])
    return None if body is None else json.record(body, Session)


async def end_session(link: Link, write: Writer, id: str, at: float) -> None:
    begun = await session(link, id)
    if begun is not None and at < begun.ends_at:
        await write.told(commit.plain(_kept(replace(begun, ends_at=at, is_ended=True), at, "XX")))


async def audit(link: Link, entries: Sequence[Entry], keep: int) -> None:
    flat = [text for each in entries for text in (keys.tenant_audit(each.tenant), json.encode(each).decode())]
    await link.run("audit", keep, _pack(flat))


async def audited(link: Link, tenant: str | None, before: int | None, limit: int) -> list[Entry]:
    if limit <= 0:
        return []
    if tenant is None:
        start = "+" if before is None else f"({before}-0"
        [found] = await link.ask([["XREVRANGE", "audit", start, "-", "COUNT", str(limit)]])
    else:
        start = "+inf" if before is None else f"({before}"
        index = keys.tenant_audit(tenant)
        [numbers] = await link.ask([["ZREVRANGEBYSCORE", index, start, "-inf", "LIMIT", "0", str(limit)]])
        pages = await link.ask([["XRANGE", "audit", n.decode(), n.decode()] for n in numbers])
        found = [entry for page in pages for entry in page]
    return [replace(json.record(fields[3], Entry), n=int(id.partition(b"-")[0])) for id, fields in found]

"""What is run when, and what became of each tick. What a commit tells a run is written with it, by its script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from packhorse.core import json
from packhorse.core.schedules import MAX_VERSIONS, Move, Revision, Run, Schedule
from packhorse.errors import Conflict
from packhorse.store.redis import commit, keys
from packhorse.store.redis.client import Link
from packhorse.store.redis.clock import ServerClock
from packhorse.store.redis.failure_operations import Op
from packhorse.store.redis.writer import Writer
from packhorse.store.schedules import PAGE, RUN_FIELDS, revision_from, schedule_from
from packhorse.store.tolerant_reads import Named, filled

ALL, NEXT, DUE = "config", "config:next", "config:due"
"""Every schedule, by name; those that go on, by the next tick; runs to be carried on, by when."""


async def move(write: Writer, move: Move) -> None:
    after, runs = move.after, move.runs
    key, name = keys.config(after.tenant, after.id), keys.pair(after.tenant, after.id)
    guards = [["absent", key] if move.before is None else ["same", key, "stamp", str(move.before.stamp)]]
    guards += [["absent", _key(run)] for run in runs]
    ops: list[Op] = [["HSET", key, *_shown(after)], ["ZADD", ALL, "0", name]]
    ops.append(["ZREM", NEXT, name] if after.next_at is None else ["ZADD", NEXT, repr(after.next_at), name])
    if (revision := move.revision) is not None:
        versions = keys.config(after.tenant, after.id, "versions")
        ops.append(["HSET", versions, str(revision.version), json.encode(revision).decode()])
        ops.append(["HDEL", versions, str(revision.version - MAX_VERSIONS)])
    for run in runs:
        ops += _put(run)
    if await write.told(commit.plain(*ops, guards=guards)):
        raise Conflict(f"The schedule {after.id} has moved on.", schedule_id=after.id)


async def schedule(link: Link, tenant: str, id: str) -> Schedule | None:
    [body] = await link.ask([["HGET", keys.config(tenant, id), "body"]])
    return None if body is None else schedule_from(body)


async def schedules(link: Link, tenant: str | None, after: tuple[str, str] | None, limit: int) -> list[Schedule]:
    first = f"({keys.pair(*after)}" if after is not None else "-" if tenant is None else f"[{keys.pair(tenant, '')}"
    last = "+" if tenant is None else f"[{keys.pair(tenant, '')}\xff"
    return await _filled(link, ["ZRANGEBYLEX", ALL, first, last], limit)


async def upcoming(link: Link, until: float, limit: int) -> list[Schedule]:
    return await _filled(link, ["ZRANGEBYSCORE", NEXT, "-inf", repr(until)], limit)


async def revisions(link: Link, tenant: str, id: str, before: int | None, limit: int) -> list[Revision]:
    found = await schedule(link, tenant, id)
    newest = 0 if found is None else found.version
    newest = newest if before is None else min(newest, before - 1)
    numbers = [str(n) for n in range(newest, max(0, newest - limit), -1)]
    if not numbers:
        return []
    [bodies] = await link.ask([["HMGET", keys.config(tenant, id, "versions"), *numbers]])
    return [revision_from(body) for body in bodies if body is not None]


async def runs(link: Link, tenant: str, id: str, before: float | None, limit: int, open_only: bool) -> list[Run]:
    index = keys.config(tenant, id, "open" if open_only else "runs")
    most = "+inf" if before is None else f"({before!r}"
    [names] = await link.ask([["ZREVRANGEBYSCORE", index, most, "-inf", "LIMIT", "0", str(limit)]])
    rows = await link.ask([["HMGET", name.decode(), *RUN_FIELDS] for name in names]) if names else []
    return [_run(row) for row in rows if row[0] is not None]


async def run(link: Link, tenant: str, id: str, tick: float) -> Run | None:
    [row] = await link.ask([["HMGET", keys.run(tenant, id, tick), *RUN_FIELDS]])
    return None if row[0] is None else _run(row)


async def put_run(write: Writer, before: Run, after: Run) -> None:
    guards = [["same", _key(before), "stamp", str(before.stamp)]]
    if await write.told(commit.plain(*_put(after), guards=guards)):
        raise Conflict("Somebody else has decided on this run.")


async def take(link: Link, clock: ServerClock, limit: int, seconds: float) -> list[Run]:
    if limit <= 0:
        return []
    rows = await link.run("take_runs", clock.said(), limit, seconds, *RUN_FIELDS)
    return [_run(row) for row in rows]


async def trim_runs(link: Link, write: Writer, tenant: str, id: str, older_than: float, keep: int) -> None:
    index, still_open = keys.config(tenant, id, "runs"), keys.config(tenant, id, "open")
    old, crowded, busy = await link.ask(
        [
            ["ZRANGEBYSCORE", index, "-inf", f"({older_than!r}", "LIMIT", "0", str(PAGE)],
            ["ZRANGE", index, "0", str(-keep - 1)],
            ["ZRANGE", still_open, "0", "-1"],
        ]
    )
    gone = [name.decode() for name in dict.fromkeys([*old, *crowded[:PAGE]]) if name not in busy]
    if gone:
        await write.put(commit.plain(*[["DEL", name] for name in gone], ["ZREM", index, *gone]))


async def drop(write: Writer, schedule: Schedule) -> None:
    key, name = keys.config(schedule.tenant, schedule.id), keys.pair(schedule.tenant, schedule.id)
    versions, runs = (keys.config(schedule.tenant, schedule.id, what) for what in ("versions", "runs"))
    guards = [["same", key, "stamp", str(schedule.stamp)], ["absent", runs]]
    ops = [["DEL", key], ["DEL", versions], ["ZREM", ALL, name], ["ZREM", NEXT, name]]
    await write.told(commit.plain(*ops, guards=guards))


async def _filled(link: Link, names: list[str], limit: int) -> list[Schedule]:
    """Those that a command names."""

    async def page(seen: int) -> list[Named]:
        [found] = await link.ask([[*names, "LIMIT", str(seen), str(limit)]])
        called = [name.decode() for name in found]
        bodies = await link.ask([["HGET", f"config:{name}", "body"] for name in called]) if called else []
        return list(zip(called, bodies, strict=True))

    return await filled(page, Schedule, limit)


def _shown(schedule: Schedule) -> list[str]:
    """Fields for people, and the record."""
    terms = schedule.terms
    said = {
        "job_id": schedule.id,
        "active": "1" if terms.active else "0",
        "pipeline": terms.pipeline,
        "cron": terms.cron,
        "zone": terms.zone,
        "params": terms.parameters.decode(),
        "version": str(schedule.version),
        "updated_at": repr(schedule.updated_at),
        "next_at": "" if schedule.next_at is None else repr(schedule.next_at),
        "stamp": str(schedule.stamp),
        "body": json.encode(schedule).decode(),
    }
    return [text for pair in said.items() for text in pair]


def _key(run: Run) -> str:
    return keys.run(run.tenant, run.schedule, run.tick)


def _put(run: Run) -> list[Op]:
    key, still_open = _key(run), keys.config(run.tenant, run.schedule, "open")
    fields = [text for name, value in asdict(run).items() for text in (name, _text(value))]
    tick = repr(run.tick)
    return [
        ["HSET", key, *fields],
        ["ZADD", keys.config(run.tenant, run.schedule, "runs"), tick, key],
        ["ZADD", still_open, tick, key] if run.is_open else ["ZREM", still_open, key],
        ["ZREM", DUE, key] if run.due_at is None else ["ZADD", DUE, repr(run.due_at), key],
    ]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)


def _run(row: Sequence[bytes]) -> Run:
    said = {name: value.decode() for name, value in zip(RUN_FIELDS, row, strict=True)}
    texts = {name: said[name] for name in ("tenant", "schedule", "status", "message", "trace_id")}
    counts = {name: int(said[name]) for name in ("version", "stamp", "count")}
    times = {name: float(said[name]) if said[name] else None for name in ("started_at", "ended_at", "due_at", "until")}
    rest = {"tick": float(said["tick"]), "is_manual": said["is_manual"] == "1", "job_id": said["job_id"] or None}
    return Run(**texts, **counts, **times, **rest)  # type: ignore[arg-type]

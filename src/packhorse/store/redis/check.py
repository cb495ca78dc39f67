"""What the server's own settings mean for the promise."""

from __future__ import annotations

from packhorse.errors import StoreError
from packhorse.store.base import Finding
from packhorse.store.redis.client import Link, ServerClock

OLDEST = (7, 0)
AHEAD = 1.0
"""Seconds by which the clocks may differ before somebody should look."""

SYNCS = {
    "always": "an acknowledged job survives a power cut",
    "everysec": "up to a second of acknowledged jobs can be lost in a power cut; a crash of the server loses none",
    "no": "whatever the system had not written yet, half a minute or so, is lost in a power cut",
}


async def findings(link: Link, clock: ServerClock) -> list[Finding]:
    info = await facts(link)
    settings = {name: await setting(link, name) for name in ("appendonly", "appendfsync", "maxmemory-policy")}
    return [_version(info), *_durability(info, settings), _eviction(settings), _cluster(link, info), _clocks(clock)]


async def facts(link: Link) -> dict[str, str]:
    """INFO, its lines by their names."""
    text = (await link.call("INFO")).decode()
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


async def setting(link: Link, name: str) -> str | None:
    """None where whoever runs the server does not let us ask."""
    try:
        found = await link.call("CONFIG", "GET", name)
    except StoreError:
        return None
    return found[1].decode() if found else None


def _version(info: dict[str, str]) -> Finding:
    said = info.get("redis_version", "0")
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {said}"
    is_new = tuple(int(part) for part in said.split(".")[:2] if part.isdigit()) >= OLDEST
    return Finding("server version", is_new, name, "older than 7.0 does not refuse a script before it has half run")


def _durability(info: dict[str, str], settings: dict[str, str | None]) -> list[Finding]:
    is_on = info.get("aof_enabled") == "1"
    sync = settings["appendfsync"] or "cannot be asked"
    aof = Finding(
        "append-only file",
        is_on,
        "on" if is_on else "off",
        "without it, a restart loses all jobs since the last snapshot",
    )
    policy = Finding(
        "appendfsync",
        is_on and sync == "always",
        sync,
        SYNCS.get(sync, "ask who runs it: only `always` survives a power cut"),
    )
    states = {name: info.get(name, "ok") for name in ("aof_last_write_status", "aof_last_bgrewrite_status")}
    bad = [name for name, state in states.items() if state != "ok"]
    written = Finding(
        "last write of the file",
        not bad,
        ", ".join(bad) or "ok",
        "after a failed one the server refuses new jobs: is the disk full?",
    )
    return [aof, policy, written]


def _eviction(settings: dict[str, str | None]) -> Finding:
    policy = settings["maxmemory-policy"] or "cannot be asked"
    return Finding(
        "maxmemory-policy", policy == "noeviction", policy, "any other policy deletes jobs when memory runs short"
    )


def _cluster(link: Link, info: dict[str, str]) -> Finding:
    is_cluster = info.get("cluster_enabled") == "1"
    meaning = "all keys lie in the slot of this prefix: one server of the cluster carries this packhorse"
    return Finding("prefix", True, f"{link.prefix} ({'cluster' if is_cluster else 'one server'})", meaning)


def _clocks(clock: ServerClock) -> Finding:
    ahead = clock.ahead
    return Finding(
        "clock",
        abs(ahead) < AHEAD,
        f"{ahead:+.3f} s",
        "the server's clock counts; a difference only makes times look odd",
    )

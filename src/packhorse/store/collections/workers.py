"""Workers: their signs of life, which were lost, and what they publish: pipelines, health findings, bookmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from msgspec import Struct, field
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.models import TaskId
from packhorse.core.plan import Definition, Plan
from packhorse.core.records import Drop, IndexEntry, Put, Record, time_place
from packhorse.errors import Conflict, CorruptRecord
from packhorse.store.base import Finding, Records
from packhorse.store.collections.base import AFTER_ALL, by_id, log_unreadable, readable, scan_all, update

WORKER, LOST = "worker", "lost_worker"
DEFINITION, FINDING, BOOKMARK = "definition", "finding", "bookmark"

LOST_KEPT = 86_400.0
"""Seconds for which a lost worker stays listed."""
MOST_LOST = 1000
"""Lost workers listed at most."""
MOST_NAMED = 20
"""Tasks of one worker that are named, on its card and when it is lost; the rest is a number."""


class Work(Struct, frozen=True):
    """A task that a worker runs."""

    job_id: str
    task: TaskId
    since: float


class Machine(Struct, frozen=True):
    """The host as a worker on it finds it."""

    at: float
    cpu: float
    """Of all cores together, 0 to 1, since the last look."""
    cores: int
    memory: int
    """Bytes in use."""
    memory_total: int


ISOLATION = {
    "memory limit per process": "needs Linux",
    "memory limit per process tree": "needs a cgroup that the worker can divide: Delegate=yes under systemd",
    "hidden settings": "needs Linux, and a worker started as packhorse worker",
    "user of their own": "set PACKHORSE_STAGE_USER",
    "process per tenant or job": "set PACKHORSE_PROCESS_PER",
}
"""What stages may have that keeps them from harming others, and how to get it."""


class WorkerCard(Struct, frozen=True):
    """Who a worker is, so precisely that a neighbour on its host can tell whether it is dead; and how it is."""

    id: str
    host: str
    boot: str
    pid_space: str
    pid: int
    born: float
    """The start time of the process: a pid is used again, a pid with its start time is not."""
    version: str
    queues: Mapping[str, int]
    seen_at: float = 0.0
    scratch: str = ""
    kinds: tuple[str, ...] = ()
    """The stages it has code for."""
    started_at: float = 0.0
    is_draining: bool = False
    busy: Mapping[str, int] = field(default_factory=dict)
    """Slots in use, by queue."""
    isolation: tuple[str, ...] = ()
    """What its stages have of `ISOLATION`."""
    lost: int = 0
    """Slots in use that are held by processes that the system could not end."""
    work: tuple[Work, ...] = ()
    """The first few of what runs there, longest first."""
    duties: Mapping[str, float] = field(default_factory=dict)
    """When each of its background roles last did a step without fault."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why the last step of a background role failed, if it did."""
    machine: Machine | None = None


class Lost(Struct, frozen=True, omit_defaults=True):
    """A worker that went silent, and the tasks that it ran then: they return to the queue."""

    id: str
    host: str
    pid: int
    version: str
    seen_at: float
    missed_at: float
    by: str
    """The worker that noticed."""
    tasks: int = 0
    work: tuple[Work, ...] = ()
    """The first few of them."""


async def enroll(store: Records, card: WorkerCard) -> None:
    """Announce the worker. Repeated as a sign of life."""
    body = json.encode(replace(card, seen_at=store.now()))
    await store.put([Put(WORKER, card.id, body, index=by_id(card.id))])


async def list_all(store: Records) -> list[WorkerCard]:
    """By id. One that cannot be read is logged and left out, until the worker announces itself again."""
    return readable(await scan_all(store, WORKER), lambda found: json.record(found.body, WorkerCard))


async def dismiss(store: Records, worker: str) -> None:
    """Forget a worker, unless it still holds a lease: the sweep of its jobs has to find it."""
    with suppress(Conflict):
        await store.put([Drop(WORKER, worker, leaseless=worker)], quiet=True)


async def report_lost(store: Records, lost: Lost) -> None:
    """Keep the loss of a worker for a day. Of several who noticed the same silence, the first is kept."""

    def decide(found: Record | None) -> tuple[Put | None, bool]:
        if found is not None and json.record(found.body, Lost).seen_at >= lost.seen_at:
            return None, False
        stamp = 0 if found is None else found.stamp
        return Put(LOST, lost.id, json.encode(lost), stamp=stamp, index=(_place(lost),)), True

    if await update(store, LOST, lost.id, decide):
        old = await store.scan(LOST, "time", before=time_place(lost.missed_at - LOST_KEPT), limit=MOST_LOST)
        with suppress(Conflict):  # one that was lost again meanwhile stays
            await store.put([Drop(LOST, each.id, stamp=each.stamp) for each in old], quiet=True)


async def list_lost(store: Records) -> list[Lost]:
    """Those lost within a day, the latest first; one that came back since is among them."""
    past = time_place(store.now() - LOST_KEPT, AFTER_ALL)
    latest = await store.scan(LOST, "time", after=past, limit=MOST_LOST, newest=True)
    found = readable(latest, lambda each: json.record(each.body, Lost))
    return sorted(found, key=lambda each: (-each.missed_at, each.id))


def _place(lost: Lost) -> IndexEntry:
    return IndexEntry("time", time_place(lost.missed_at, lost.id))


# Pipeline definitions: schema and graph, for servers that import no user code.


async def publish_definitions(store: Records, definitions: Sequence[Definition]) -> None:
    now = store.now()
    puts = [
        Put(DEFINITION, each.pipeline, json.encode(replace(each, published_at=now)), index=by_id(each.pipeline))
        for each in definitions
    ]
    await store.put(puts)


async def list_definitions(store: Records) -> list[Definition]:
    """By pipeline. One that cannot be read is logged and left out, until its worker publishes it again."""
    return readable(await scan_all(store, DEFINITION), lambda found: json.record(found.body, Definition))


def plans_of(definitions: Sequence[Definition]) -> dict[str, Plan]:
    """By pipeline, without those that cannot be read, which are logged."""
    found: dict[str, Plan] = {}
    for definition in definitions:
        try:
            found[definition.pipeline] = _plan(definition.plan)
        except CorruptRecord as error:
            log_unreadable(DEFINITION, definition.pipeline, str(error))
    return found


@lru_cache(1000)
def _plan(body: bytes) -> Plan:
    return json.plan_from(body)


# Findings of the health check: the last one of each part, for those who only read.


async def save_findings(store: Records, findings: Sequence[Finding]) -> None:
    """Keep what was found of each part, in place of what was found before."""
    puts = [Put(FINDING, each.part, json.encode(each), index=by_id(each.part)) for each in findings]
    await store.put(puts, quiet=True)


async def list_findings(store: Records) -> list[Finding]:
    """By part. How old a finding may be is for the reader to judge: it has a time."""
    return readable(await scan_all(store, FINDING), lambda found: json.record(found.body, Finding))


# Bookmarks: small texts in which background roles of all workers note where they are.


async def get_bookmark(store: Records, name: str) -> str | None:
    [found] = await store.fetch(BOOKMARK, [name])
    return None if found is None else json.record(found.body, str)


async def put_bookmark(store: Records, name: str, value: str) -> None:
    await store.put([Put(BOOKMARK, name, json.encode(value))])

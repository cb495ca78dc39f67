"""The self-check: one list of findings for `packhorse doctor`, ``/health``, ``/readyz`` and the overview page."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from packhorse import host
from packhorse.blobs.base import Blobs
from packhorse.core.plan import Status
from packhorse.errors import BlobUnavailable, PackhorseError, WrongDeployment
from packhorse.jobs import deployment
from packhorse.jobs.explain import STUCK, Around, Fleet, is_live, read_pauses, reasons
from packhorse.plurals import counted
from packhorse.settings import Settings
from packhorse.store.base import Filter, Finding, Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import Lost, WorkerCard, get_bookmark, list_definitions, list_findings

PATIENCE = 3.0
"""Seconds for an answer of store and object store: an outage must be known within five."""
FRESH = 60.0
"""Seconds after which a finding is stale."""
MACHINE_FRESH = 10.0
"""Seconds after which the usage of a host is stale."""
MOST_JOBS = 500
"""Newest jobs that are checked: what keeps many jobs waiting keeps one of these waiting."""


async def find_all(store: Store, blobs: Blobs, settings: Settings) -> list[Finding]:
    """Everything that this process sees and that workers have recorded, each with its time."""
    answers = [await store_answers(store), await files_answer(blobs, store.now)]
    if not answers[0].is_ok:
        return answers
    return [*answers, *await deployment_finding(store, blobs), *await find_in_store(store, settings)]


async def find_bad(
    store: Store, blobs: Blobs, settings: Settings, cards: Sequence[WorkerCard], checked: Sequence[Finding]
) -> list[Finding]:
    """What needs attention, given the workers and the store's own check. Reads nothing that is never bad."""
    now = store.now()
    live = [card for card in cards if is_live(card, now, settings.lease)]
    found = [
        await files_answer(blobs, store.now),
        *await deployment_finding(store, blobs),
        *checked,
        *_workers(cards, now, settings.lease),
        *background_findings(live, now, settings),
        *_worker_findings(await list_findings(store), live, now),
        *await _stuck(store, live),
    ]
    return [each for each in found if state(each, now) == "bad"]


async def find_in_store(store: Store, settings: Settings) -> list[Finding]:
    """From the store: its setup, the workers, what they have found, and jobs that are stuck."""
    now, cards = store.now(), await workers.list_all(store)
    live = [card for card in cards if is_live(card, now, settings.lease)]
    return [
        *(replace(each, measured_at=now) for each in await store.check()),
        *_workers(cards, now, settings.lease),
        *_isolation(live, now),
        *_lost_workers(cards, await workers.list_lost(store)),
        *background_findings(live, now, settings),
        *_worker_findings(await list_findings(store), live, now),
        *await _stuck(store, live),
        *await _definitions(store),
    ]


State = Literal["ok", "bad", "stale"]


def state(finding: Finding, now: float) -> State:
    """``stale`` if nobody has checked for a while."""
    if finding.measured_at is not None and now - finding.measured_at > FRESH:
        return "stale"
    return "ok" if finding.is_ok else "bad"


async def store_answers(store: Store) -> Finding:
    ask = get_bookmark(store, "ready")
    return await _time_answer("store", ask, "jobs are stored here", "does not answer", store.now)


async def files_answer(blobs: Blobs, now: Callable[[], float]) -> Finding:
    return await _time_answer("files", blobs.size("jobs/ready"), "files are kept here", "do not answer", now)


async def deployment_finding(store: Store, blobs: Blobs) -> list[Finding]:
    """Whether both belong to one deployment; nothing while the object store does not answer, which is a finding."""
    try:
        async with asyncio.timeout(PATIENCE):
            ours, mark = await deployment.get_id(store), await deployment.read_mark(blobs)
            deployment.compare(ours, mark)
    except WrongDeployment as error:
        return [Finding("deployment", False, "not ours", f"{error} {error.hint}", "files", store.now())]
    except (PackhorseError, OSError, TimeoutError):
        return []
    if ours is None:
        meaning = "the first server or worker marks store and files as one deployment"
        return [Finding("deployment", True, "not marked yet", meaning, "files", store.now())]
    return [Finding("deployment", True, ours, "these files belong to this store", "files", store.now())]


async def _time_answer(
    part: str, ask: Awaitable[object], meaning: str, silent: str, now: Callable[[], float]
) -> Finding:
    began = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE):
            await ask
    except TimeoutError:
        return Finding(part, False, silent, "it took too long", part, now())
    except (PackhorseError, OSError) as error:
        reason = error.facts["reason"] if isinstance(error, BlobUnavailable) else error
        return Finding(part, False, silent, str(reason), part, now())
    return Finding(part, True, f"answers in {1000 * (time.monotonic() - began):.0f} ms", meaning, part, now())


def _workers(cards: Sequence[WorkerCard], now: float, lease: float) -> Iterator[Finding]:
    if not cards:
        yield Finding("workers", True, "none", "jobs wait until one is started: packhorse worker FILE", "workers", now)
    for card in cards:
        age = max(0.0, now - card.seen_at)
        is_dead = host.is_seen_dead(card.boot, card.pid_space, card.pid, card.born)
        slots = ", ".join(f"{name}={count}" for name, count in card.queues.items())
        meaning = (
            "is dead; the next worker takes over its jobs" if is_dead else f"pid {card.pid} on {card.host}, {slots}"
        )
        if card.lost and not is_dead:
            held = f"{counted(card.lost, 'slot')} lost to processes that do not end after SIGKILL"
            meaning += f"; {held}: check its disks, or restart the machine"
        is_ok = not is_dead and age < lease and not card.lost
        yield Finding(f"worker {card.id}", is_ok, f"seen {age:.0f} s ago", meaning, "workers", card.seen_at)


def _isolation(live: Iterable[WorkerCard], now: float) -> Iterator[Finding]:
    """Not bad: what stages need depends on who writes them."""
    for card in live:
        missing = [f"{name} ({how})" for name, how in workers.ISOLATION.items() if name not in card.isolation]
        meaning = f"not active: {', '.join(missing)}" if missing else "all protections are active"
        value = ", ".join(card.isolation) or "none"
        yield Finding(f"isolation of stages on {card.id}", True, value, meaning, "workers", now)


def _lost_workers(cards: Iterable[WorkerCard], lost: Iterable[Lost]) -> Iterator[Finding]:
    """Not bad: other workers have taken over their stages."""
    there = {card.id for card in cards}
    for each in lost:
        if each.id not in there:
            stages = counted(each.tasks, "running stage was", "running stages were")
            meaning = f"it ran on {each.host}; {stages} returned to the queue by worker {each.by}"
            yield Finding(f"lost worker {each.id}", True, "gone", meaning, "lost workers")


def background_findings(live: Sequence[WorkerCard], now: float, settings: Settings) -> Iterator[Finding]:
    """Of background tasks. Every worker runs all of them; it is enough that one succeeds."""
    last: dict[str, float] = {}
    errors = {name: error for card in live for name, error in card.errors.items()}
    for card in live:
        for name in card.errors:
            last[name] = max(card.started_at, last.get(name, 0.0))  # it may not have succeeded since
        for name, at in card.duties.items():
            last[name] = max(at, last.get(name, 0.0))
    longest = max(FRESH, 2 * settings.sweep)
    for name, at in sorted(last.items()):
        age = max(0.0, now - at)
        meaning = "last run OK"
        if age >= longest and name in errors:
            meaning += f"; since then: {errors[name]}"
        yield Finding(f"background task {name}", age < longest, f"{age:.0f} s ago", meaning, "background tasks", now)


def _worker_findings(noted: Iterable[Finding], live: Sequence[WorkerCard], now: float) -> Iterator[Finding]:
    """What workers found about store and object store, if there are workers."""
    for each in noted:
        if each.part in ("store", "files") and live:
            stale = (
                "" if state(each, now) != "stale" else f" (last looked at {now - (each.measured_at or 0.0):.0f} s ago)"
            )
            yield replace(each, name=f"{each.name}, from a worker", meaning=each.meaning + stale)


async def _stuck(store: Store, live: Sequence[WorkerCard]) -> list[Finding]:
    """Jobs that wait until somebody acts, counted by what they wait for."""
    around, now = Around(Fleet(live, await read_pauses(store))), store.now()
    counts: Counter[str] = Counter()
    for status in (Status.PENDING, Status.RUNNING):
        for job in await store.find(Filter(status=status), limit=MOST_JOBS):
            counts.update(each.message for each in reasons(job, around, now) if each.code in STUCK)
    return [
        Finding("waiting jobs", False, counted(count, "job"), message, "queues", now)
        for message, count in counts.items()
    ]


async def _definitions(store: Store) -> list[Finding]:
    definitions, part = await list_definitions(store), "pipelines"
    if not definitions:
        return [Finding("pipelines", True, "none", "a worker publishes its pipelines when it starts", part)]
    return [
        Finding(f"pipeline {each.pipeline}", True, f"of {each.app}", each.description.partition("\n")[0], part)
        for each in definitions
    ]

"""`packhorse doctor`: whether store, files and workers can keep the promise. Needs no server."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from packhorse.blob.base import Blobs
from packhorse.cli import printing
from packhorse.cli.options import Output, Places, settings_from
from packhorse.core.model import Status
from packhorse.engine import host
from packhorse.engine.explain import STUCK, Around, living, paused, reasons
from packhorse.errors import PackhorseError
from packhorse.settings import Loaded, Settings, without_secrets
from packhorse.store.base import Filter, Finding, Store
from packhorse.wiring import is_absent, open_store, opened_blobs

MOST_JOBS = 500
"""Jobs that are looked at, the newest: what keeps many of them waiting keeps one of these."""
ENOUGH = 512 * 1024**2
"""Bytes of free disk below which running stages and uploads are likely to fail."""


def doctor(*, output: Output = Output(), places: Places = Places()) -> int:
    """Check store, files and workers; the exit code is 1 if anything is bad."""
    findings = asyncio.run(examined(settings_from(places)))
    if output.json:
        printing.document(findings)
    else:
        rows = [("ok" if each.is_ok else "BAD", each.name, each.value, each.meaning) for each in findings]
        printing.table(("", "what", "is", "meaning"), rows)
    return 0 if all(each.is_ok for each in findings) else 1


async def examined(found: Loaded) -> list[Finding]:
    settings, named = found.settings, {name for name, origin in found.origins.items() if origin != "default"}
    return [
        *await _store(settings, is_named="store" in named),
        *await _blobs(settings, is_named="blobs" in named),
        _scratch(settings),
    ]


async def _store(settings: Settings, *, is_named: bool) -> list[Finding]:
    """A look must not make what it looks for. That nothing is there is bad only where somebody said there is."""
    place = without_secrets(settings.store)
    if is_absent(settings.store):
        where = urlsplit(settings.store).path
        missing = f"there is no store at {where} yet; a server, a worker or the first submit makes it"
        return [Finding("store", not is_named, place, missing)]
    try:
        store = await open_store(settings.store, settings.prefix)
    except PackhorseError as error:
        return [Finding("store", False, place, f"{error.message} {error.hint}".strip())]
    try:
        opened = Finding("store", True, place, "where jobs are remembered")
        return [
            opened,
            *await store.check(),
            *await _workers(store, settings),
            *await _stuck(store, settings),
            *await _definitions(store),
        ]
    except PackhorseError as error:
        return [Finding("store", False, place, error.message)]
    finally:
        await store.close()


async def _workers(store: Store, settings: Settings) -> list[Finding]:
    cards = await store.workers()
    if not cards:
        return [Finding("workers", True, "none", "jobs wait until one is started: packhorse worker FILE")]
    found = []
    for card in cards:
        age = max(0.0, store.now() - card.seen_at)
        is_dead = host.is_seen_dead(card.boot, card.pid_space, card.pid, card.born)
        slots = ", ".join(f"{name}={count}" for name, count in card.queues.items())
        state = "is dead; the next worker takes over its jobs" if is_dead else f"pid {card.pid} on {card.host}, {slots}"
        found.append(Finding(f"worker {card.id}", not is_dead and age < settings.lease, f"seen {age:.0f} s ago", state))
    return found


async def _stuck(store: Store, settings: Settings) -> list[Finding]:
    """Jobs that will wait until somebody starts the right worker, counted by what they wait for."""
    around = Around(await living(store, settings.lease), await paused(store))
    counts: Counter[str] = Counter()
    for status in (Status.PENDING, Status.RUNNING):
        for job in await store.find(Filter(status=status), limit=MOST_JOBS):
            counts.update(each.message for each in reasons(job, around, store.now()) if each.code in STUCK)
    return [Finding("waiting jobs", False, f"{count} jobs", message) for message, count in counts.items()]


async def _definitions(store: Store) -> list[Finding]:
    definitions = await store.definitions()
    if not definitions:
        return [Finding("pipelines", True, "none", "a worker publishes its pipelines when it starts")]
    return [
        Finding(f"pipeline {each.pipeline}", True, f"of {each.app}", each.description.partition("\n")[0])
        for each in definitions
    ]


async def _blobs(settings: Settings, *, is_named: bool) -> list[Finding]:
    place = without_secrets(settings.blobs)
    if is_absent(settings.blobs) and not is_named:
        return [Finding("files", True, place, "there is no folder yet; the first file makes it")]
    try:
        blobs = opened_blobs(settings)
        try:
            await _probe(blobs)
        finally:
            await blobs.close()
    except (PackhorseError, OSError) as error:
        return [Finding("files", False, place, f"{error}")]
    return [Finding("files", True, place, "written, read and deleted one")]


async def _probe(blobs: Blobs) -> None:
    """Write, read and delete an object under a name that no job has."""
    content = secrets.token_bytes(1024)
    key = f"doctor/{secrets.token_hex(8)}"

    async def chunks() -> AsyncIterator[bytes]:
        yield content

    await blobs.put(key, chunks())
    try:
        found = b"".join([chunk async for chunk in blobs.read(key)])
        if found != content:
            raise PackhorseError("What is read is not what was written.")
    finally:
        await blobs.delete([key])
    if await blobs.size(key) is not None:
        raise PackhorseError("What was deleted is still there.")


def _scratch(settings: Settings) -> Finding:
    """Free disk where stages work: of the folder, or of the nearest that exists."""
    folder = Path(settings.scratch).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    return Finding("free disk for stages", free > ENOUGH, f"{free // 1024**2} MiB", f"in {settings.scratch}")

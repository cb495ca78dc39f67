"""`init`, `config`, `doctor` and `adopt`: begin a project, see every setting, check or repair the installation."""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path
from string import Template
from urllib.parse import urlsplit

from msgspec.structs import replace

from packhorse.blobs.base import Blobs
from packhorse.cli import output as printing
from packhorse.cli.commands.job_actions import UNSURE
from packhorse.cli.commands.results import translate_os_errors
from packhorse.cli.options import Output, Pace, Places, settings_from
from packhorse.define.validation import list_some
from packhorse.errors import PackhorseError, WouldOverwrite, WrongDeployment
from packhorse.factory import (
    address_of,
    blobs_from,
    is_absent,
    open_store,
    other_prefixes,
    publish_blobs_from,
    publish_destination,
)
from packhorse.jobs import health
from packhorse.jobs.deployment import DESTINATION_MARK, compare, get_id, read_mark
from packhorse.jobs.deployment import adopt as adopt_files
from packhorse.plurals import counted
from packhorse.settings import (
    LOOPBACK,
    PREFIX,
    REDIS_PREFIX,
    Loaded,
    Settings,
    descriptions,
    dev_allow,
    dev_url,
    env_texts,
    printable,
    without_secrets,
)
from packhorse.store.base import Finding

NAMES = ("pipelines.py", "test_pipelines.py", "pyproject.toml", "README.md", ".gitignore")
NAMELESS = "jobs"  # what a project is called whose folder has a name that no package can have


def init(folder: Path = Path(), /) -> None:
    """Write a small project that runs, with a test. Existing files are never overwritten.

    Args:
        folder: Folder to write to. Default: the current folder.
    """
    written = {folder / name: text_of(name, folder) for name in NAMES}
    for path in written:
        if path.exists() or path.is_symlink():
            raise WouldOverwrite(path=str(path))
    with translate_os_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            printing.plain(str(path))
    printing.message("")
    printing.message("Next, in two terminals:")
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    for command in ("packhorse dev", "packhorse submit count text=@README.md --wait --output ."):
        printing.message(f"  {enter}{command}")


def text_of(name: str, folder: Path) -> str:
    template = files("packhorse.cli").joinpath("project", f"{name}.txt").read_text(encoding="utf-8")
    project = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    return Template(template).substitute(name=project[:63].rstrip("-") or NAMELESS)


def config(*, output: Output = Output(), pace: Pace = Pace(), places: Places = Places()) -> None:
    """Show every setting and where its value comes from: flag, environment, .env files, pyproject.toml or default."""
    loaded = settings_from(pace, places)
    found = [
        {"name": PREFIX + name.upper(), "value": value, "origin": loaded.origins[name]}
        for name, value in printable(loaded.settings).items()
    ]
    meaning = descriptions()
    if output.json:
        printing.document([{**each, "meaning": meaning[each["name"]]} for each in found])
        return
    texts = env_texts(loaded.settings)
    is_added = bool(dev_url()) and dev_allow(loaded.settings) != loaded.settings.outbound_allow
    added = {PREFIX + "OUTBOUND_ALLOW": f"; the running packhorse dev adds {LOOPBACK}"} if is_added else {}
    rows = [
        (name, texts[name], origin + added.get(name, ""), meaning[name])
        for name, origin in ((each["name"], each["origin"]) for each in found)
    ]
    printing.table(("setting", "value", "origin", "meaning"), rows)


def adopt(*, yes: bool = False, output: Output = Output(), places: Places = Places()) -> int:
    """Make this store the owner of the files, for example when the store they belonged to is lost.

    From then on, packhorse deletes files that no job in this store refers to once they are older than
    PACKHORSE_ORPHAN_AFTER. Another deployment that still uses the files deletes nothing any more and reports a problem.

    Args:
        yes: Do it. Without it, only show which deployment owns the files.
    """
    return asyncio.run(_adopt(settings_from(places).settings, output, is_sure=yes))


async def _adopt(settings: Settings, output: Output, *, is_sure: bool) -> int:
    store, blobs = await open_store(settings.store, settings.prefix), blobs_from(settings)
    try:
        ours, mark = await get_id(store), await read_mark(blobs)
        if mark is not None and mark.id == ours:
            output.print_one(
                {"deployment": ours, "adopted": False},
                f"Nothing to adopt: the files already belong to this store (deployment {ours}).",
            )
            return 0
        if is_sure:
            ours = await adopt_files(store, blobs, address_of(settings))
            if (published := publish_destination(store, settings)) is not None:
                await published.adopt()
                await published.blobs.close()
            message = f"The files now belong to this store (deployment {ours}). Restart what has stopped."
            output.print_one({"deployment": ours, "adopted": True}, message)
            return 0
    finally:
        await store.close()
        await blobs.close()
    theirs = "no deployment" if mark is None else f"deployment {mark.id} (store {mark.store or 'unknown'})"
    message = f"The files belong to {theirs}, the store to {f'deployment {ours}' if ours else 'none yet'}."
    output.print_one({"deployment": ours, "files": mark and mark.id, "adopted": False}, message)
    printing.message(
        f"packhorse would delete files that no job in this store refers to, {_age(settings)} after upload."
    )
    printing.message("Nothing was changed. To do it, add: --yes")
    return UNSURE


def _age(settings: Settings) -> str:
    return counted(f"{settings.orphan_after / 3600:g}", "hour")


ENOUGH = 512 * 1024**2  # bytes of free disk below which running stages and uploads are likely to fail
SHOWN = {"ok": "ok", "bad": "BAD", "stale": "STALE"}


def doctor(*, output: Output = Output(), places: Places = Places()) -> int:
    """Check store, files and workers. Exit code: 1 if a check fails, or has no result from the last minute."""
    findings, now = asyncio.run(run_checks(settings_from(places)))
    states = [health.state(each, now) for each in findings]
    if output.json:
        printing.document([_document(each, now) for each in findings])
    else:
        rows = zip((SHOWN[state] for state in states), findings, strict=True)
        printing.table(
            ("", "check", "value", "meaning"), [(word, f.name, f.value, printing.prose(f.meaning)) for word, f in rows]
        )
    return 0 if set(states) <= {"ok"} else 1


def _document(finding: Finding, now: float) -> dict[str, object]:
    """With ``is_ok`` for those who ask only that."""
    state = health.state(finding, now)
    return {
        "name": finding.name,
        "part": finding.part,
        "state": state,
        "is_ok": state == "ok",
        "value": finding.value,
        "meaning": finding.meaning,
        "measured_at": now if finding.measured_at is None else finding.measured_at,
    }


async def run_checks(found: Loaded) -> tuple[list[Finding], float]:
    """The findings, and the current time by the store's clock if it answers."""
    settings, named = found.settings, {name for name, origin in found.origins.items() if origin != "default"}
    inside, now = await _store(settings, is_named="store" in named)
    if inside[0].is_ok:
        inside += await _prefixes(settings)
    files = await _blobs(settings, is_named="blobs" in named)
    if inside[0].is_ok and files[0].is_ok:
        files += await _deployment(settings)
    published = await _published(settings)
    return [*inside, *files, *published, _scratch(settings), *_webhook_addresses(settings)], now


async def _store(settings: Settings, *, is_named: bool) -> tuple[list[Finding], float]:
    """A look must not make what it looks for. That nothing is there is bad only where somebody said there is."""
    place, now = without_secrets(settings.store), time.time()
    if is_absent(settings.store):
        where = urlsplit(settings.store).path
        missing = f"there is no store at {where} yet; a server, a worker or the first submit creates it"
        return [Finding("store", not is_named, place, missing, "store")], now
    try:
        store = await open_store(settings.store, settings.prefix)
    except PackhorseError as error:
        return [Finding("store", False, place, f"{error.message} {error.hint}".strip(), "store")], now
    try:
        answers = await health.store_answers(store)
        opened = Finding("store", answers.is_ok, place, f"jobs are stored here; it {answers.value}", "store")
        inside = await health.find_in_store(store, settings)
        return [opened, *(_judge_workers(each) for each in inside)], store.now()
    except PackhorseError as error:
        return [Finding("store", False, place, error.message, "store")], now
    finally:
        await store.close()


async def _prefixes(settings: Settings) -> list[Finding]:
    """Jobs that seem lost may lie under the prefix of another environment."""
    others = await other_prefixes(settings)
    if not others:
        return []
    meaning = (
        f"this Redis holds nothing under this prefix, but a deployment under {list_some(others)}. If that is yours, "
        f"choose it: PACKHORSE_ENV (development: dev:, production: prod:, unset: {REDIS_PREFIX}) or PACKHORSE_PREFIX"
    )
    return [Finding("jobs of this prefix", False, settings.prefix, meaning, "store")]


def _judge_workers(finding: Finding) -> Finding:
    """A server without workers is healthy, but nothing runs: a person who asks what is wrong has to know it."""
    return replace(finding, is_ok=False) if (finding.name, finding.value) == ("workers", "none") else finding


async def _blobs(settings: Settings, *, is_named: bool) -> list[Finding]:
    place = without_secrets(settings.blobs)
    if is_absent(settings.blobs) and not is_named:
        return [Finding("files", True, place, "there is no folder yet; the first file creates it", "files")]
    try:
        blobs = blobs_from(settings)
        try:
            await _probe(blobs)
        finally:
            await blobs.close()
    except (PackhorseError, OSError) as error:
        return [Finding("files", False, place, f"{error}", "files")]
    return [Finding("files", True, place, "wrote, read and deleted a test file", "files")]


async def _deployment(settings: Settings) -> list[Finding]:
    """Whether store and files belong together. A store that is not there yet would be a new one."""
    if is_absent(settings.blobs):
        return []
    blobs = blobs_from(settings)
    try:
        if is_absent(settings.store):
            compare(None, await read_mark(blobs))
            return []
        store = await open_store(settings.store, settings.prefix)
        try:
            return await health.deployment_finding(store, blobs)
        finally:
            await store.close()
    except WrongDeployment as error:
        return [Finding("deployment", False, "another one", f"{error} {error.hint}", "files")]
    finally:
        await blobs.close()


async def _published(settings: Settings) -> list[Finding]:
    """The destination of published files, and whose it is."""
    if not settings.publish_to:
        return []
    name, place = "published files", without_secrets(settings.publish_to)
    try:
        blobs = publish_blobs_from(settings)
        assert blobs is not None
        try:
            await _probe(blobs, "%%doctor")
            mark = await read_mark(blobs, DESTINATION_MARK)
            if mark is not None:
                compare(await _deployment_id(settings), mark)
        finally:
            await blobs.close()
    except (PackhorseError, OSError) as error:
        return [Finding(name, False, place, f"{error}", "files")]
    return [Finding(name, True, place, "wrote, read and deleted a test file (PACKHORSE_PUBLISH_TO)", "files")]


async def _deployment_id(settings: Settings) -> str | None:
    if is_absent(settings.store):
        return None
    store = await open_store(settings.store, settings.prefix)
    try:
        return await get_id(store)
    finally:
        await store.close()


async def _probe(blobs: Blobs, folder: str = "doctor") -> None:
    """Write, read and delete an object under a name that no job has."""
    content = secrets.token_bytes(1024)
    key = f"{folder}/{secrets.token_hex(8)}"

    async def chunks() -> AsyncIterator[bytes]:
        yield content

    await blobs.put(key, chunks())
    try:
        found = b"".join([chunk async for chunk in blobs.read(key)])
        if found != content:
            raise PackhorseError("The object store returned other bytes than were written to it.")
    finally:
        await blobs.delete([key])
    if await blobs.size(key) is not None:
        raise PackhorseError("The object store still has an object that was deleted.")


def _webhook_addresses(settings: Settings) -> Iterator[Finding]:
    """What webhooks may call although it is not public: in serve and worker, and in the dev of this folder."""
    allowed, in_dev = settings.outbound_allow, dev_allow(settings)
    if allowed:
        meaning = "webhooks may call these addresses although they are not public (PACKHORSE_OUTBOUND_ALLOW)"
        yield Finding("webhook addresses", True, allowed, meaning)
    if dev_url() and in_dev != allowed:
        meaning = "only in packhorse dev, which runs in this folder: serve and worker do not call this machine"
        yield Finding("webhook addresses in dev", True, in_dev, meaning)


def _scratch(settings: Settings) -> Finding:
    """Free disk where stages work: of the folder, or of the nearest that exists."""
    folder = Path(settings.scratch).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    value, meaning = f"{free // 1024**2} MiB", f"in {settings.scratch}"
    return Finding("free disk for stages", free > ENOUGH, value, meaning, "host")

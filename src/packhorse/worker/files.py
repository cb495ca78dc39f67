"""Inputs and outputs of an attempt: objects become files in its scratch folder, and its files become objects."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from packhorse.blobs.base import Sum, open_file
from packhorse.core import json
from packhorse.core.models import Artifact, Job, Result, Stored
from packhorse.core.plan import Need
from packhorse.core.redaction import MASK, MIN_SECRET, longest_first, partial_secret_length, redact
from packhorse.define import values
from packhorse.define.files import MAX_NAME, artifact_name, sanitize_name
from packhorse.errors import CorruptRecord, InvalidInput, SchemaTooNew, StoreError
from packhorse.host import StageUser
from packhorse.jobs.artifacts import content_type, few_at_a_time, output_prefix, safe_suffix
from packhorse.schemas.jobs import result_to_json
from packhorse.store.base import Claim, Store
from packhorse.store.collections import schedules as schedule_records
from packhorse.worker.child.messages import Argument, Document, Made
from packhorse.worker.file_cache import Files

RUNS = 50
"""Runs to look back for one that completed."""
PATIENCE = 1.0
"""Seconds between tries while the store is away."""

NOTHING = b""

SLASH = re.compile(r"[/\\]")
MARGIN = 8
"""Bytes that a truncated name may be shorter than the maximum: half a character, and blanks."""


class Inputs:
    """Collects what an attempt needs; `fetch` then puts its files into the scratch folder."""

    def __init__(self, blobs: Files, scratch: Path | str) -> None:
        self._blobs = blobs
        self._scratch = scratch
        self._wanted: list[tuple[str, Path]] = []

    def parameters(self, claim: Claim) -> Document:
        return Document(claim.spec.parameters, tuple([self._want(each.file) for each in claim.spec.inputs]))

    def arguments(self, claim: Claim) -> tuple[Argument, ...]:
        needs = claim.job.plan.stage(claim.task.stage).needs
        return tuple([self._argument(claim, need) for need in needs])

    def _argument(self, claim: Claim, need: Need) -> Argument:
        if claim.job.stage(need.stage).reason is not None:
            return Argument(need.parameter, need.how, (), is_skipped=True)
        return Argument(need.parameter, need.how, self._values(claim, need))

    @property
    def has_files(self) -> bool:
        return bool(self._wanted)

    async def fetch(self) -> None:
        if self._wanted:  # an empty gather costs as much as sending the stage to its process
            await few_at_a_time(self._fetch, self._wanted)

    def _values(self, claim: Claim, need: Need) -> tuple[Document, ...]:
        """For ``each`` only the part of this element: the result of the same element, or one element of a list."""
        results = claim.upstream[need.stage]
        if need.how != "each":
            return tuple([self._document(result, n) for n, result in enumerate(results) if not result.is_skipped])
        if claim.job.plan.stage(need.stage).over is not None:
            return (self._document(results[claim.task.element]),)
        value, files = values.element(results[0].value, results[0].files, claim.task.element)
        return (self._document(Result(value, tuple(files))),)

    def _document(self, result: Result, element: int = 0) -> Document:
        if result.error is not None:
            return Document(result.value, failed=(element, result.error.code, result.error.message))
        return Document(result.value, tuple([self._want(artifact.file) for artifact in result.files]))

    def _want(self, file: Stored) -> tuple[str, str]:
        """In a folder per file, so that two files may have the same name."""
        path = Path(self._scratch, "in", str(len(self._wanted) + 1), file.name)
        self._wanted.append((file.key, path))
        return str(path), file.name

    async def _fetch(self, wanted: tuple[str, Path]) -> None:
        key, path = wanted
        path.parent.mkdir(parents=True)
        await self._blobs.fetch(key, path)


async def previous_result(store: Store, job: Job) -> bytes:
    """JSON of the result of the newest completed run before this tick, under the same version of the schedule.

    Empty for a job without a schedule, after an edit of the schedule, and when that run's job is purged. While the
    store is away it waits: without the result, some stages would repeat all of their work.
    """
    while True:
        try:
            return await _find_previous(store, job)
        except (CorruptRecord, SchemaTooNew):
            return NOTHING
        except StoreError:
            await asyncio.sleep(PATIENCE)


async def _find_previous(store: Store, job: Job) -> bytes:
    if job.firing is None:
        return NOTHING
    schedule, tick = job.firing.schedule, job.firing.tick
    mine = await schedule_records.run(store, job.tenant, schedule, tick)
    runs = [] if mine is None else await schedule_records.runs(store, job.tenant, schedule, before=tick, limit=RUNS)
    last = next((run for run in runs if run.status == "completed" and run.job_id), None)
    if mine is None or last is None or last.version != mine.version or last.job_id is None:
        return NOTHING
    [found] = await store.get([last.job_id])
    if found is None or found.is_purging:
        return NOTHING
    return json.encode(result_to_json(found, (await store.results([found.id])).get(found.id, {})))


def give_to(folder: str, user: StageUser) -> None:
    """Give the folder with all it contains to the user that stages run as.

    The folder itself comes last: until then that user cannot enter it and put links in place of its contents.
    """
    for _, folders, names, fd in os.fwalk(folder, topdown=False, follow_symlinks=False):
        for name in (*names, *folders):
            os.chown(name, user.uid, user.gid, dir_fd=fd, follow_symlinks=False)
    os.chown(folder, user.uid, user.gid, follow_symlinks=False)


async def publish(
    blobs: Files,
    claim: Claim,
    scratch: Path | str,
    document: Document,
    made: Sequence[Made],
    user: StageUser | None = None,
) -> Result:
    """Put the files of a result into the object store, before any record refers to them."""
    if not document.files and not made:
        return Result(document.value)
    put = _Uploads(blobs, claim, scratch, user)
    # The names come from a child, and become names of files in the scratch folder of another attempt.
    named = [
        *((path, sanitize_name(name)) for path, name in document.files),
        *((each.path, artifact_name(each.name)) for each in made),
    ]
    found = await few_at_a_time(put.upload, [put.add(Path(path), name) for path, name in named])
    return Result(document.value, tuple(found[: len(document.files)]), tuple(found[len(document.files) :]))


class _Uploads:
    def __init__(self, blobs: Files, claim: Claim, scratch: Path | str, user: StageUser | None) -> None:
        self._blobs = blobs
        self._user = user
        self._prefix = output_prefix(claim.job.id, claim.task.stage, claim.token)
        self._scratch = Path(scratch).resolve()
        self._named = f"{claim.task.stage}/"
        if claim.job.plan.stage(claim.task.stage).over is not None:
            self._named += f"{claim.task.element}/"
        self._names: set[str] = set()
        self._count = 0

    def add(self, path: Path, name: str) -> tuple[Path, Artifact]:
        """The artifact it will become, without size and checksum. Keys and unique names follow the order of calls."""
        key = f"{self._prefix}/{self._count}{safe_suffix(name)}"
        self._count += 1
        stored = Stored(key, name.rpartition("/")[2], 0, "", content_type(name))
        return path, Artifact(self._named + self._unique(name), stored)

    async def upload(self, made: tuple[Path, Artifact]) -> Artifact:
        path, artifact = made
        real = path.resolve()
        if not real.is_relative_to(self._scratch) or not real.is_file():
            raise _no_file(artifact)
        if self._user is None:
            summed = await self._blobs.put_file(artifact.file.key, real)
        else:
            summed = await self._upload_owned(artifact, real, self._user)
        return replace(artifact, file=replace(artifact.file, size=summed.size, sha256=summed.sha256))

    async def _upload_owned(self, artifact: Artifact, path: Path, user: StageUser) -> Sum:
        """Only a file of the stage's user: root could read any file that the stage has put there meanwhile."""
        with ExitStack() as opened:
            try:
                fd = self._open(path, opened)
            except OSError:
                raise _no_file(artifact) from None
            if os.fstat(fd).st_uid != user.uid:
                raise _no_file(artifact)
            return await self._blobs.put_file(artifact.file.key, Path(f"/proc/self/fd/{fd}"))

    def _open(self, path: Path, opened: ExitStack) -> int:
        """Follow no link on the way: the stage may have put one in place of a folder meanwhile."""
        at = None
        *folders, name = path.relative_to(self._scratch).parts
        for folder in (str(self._scratch), *folders):
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            opened.callback(os.close, at)
        return open_file(name, opened, os.O_NOFOLLOW, dir_fd=at)

    def _unique(self, name: str) -> str:
        """A second file ``a.txt`` becomes ``a-2.txt``."""
        candidate, n = name, 2
        folder, slash, last = name.rpartition("/")
        while candidate in self._names:
            stem, dot, suffix = last.rpartition(".")
            candidate = folder + slash + (f"{stem}-{n}{dot}{suffix}" if stem else f"{last}-{n}")
            n += 1
        self._names.add(candidate)
        return candidate


def _no_file(artifact: Artifact) -> InvalidInput:
    name = artifact.file.name
    return InvalidInput(f"The stage named {name!r} as a file, but there is none in its scratch folder.")


def redact_filename(name: str, secrets: Sequence[str]) -> str:
    """A name comes here made safe: of a secret with slashes in it only the last part may be left, or it was cut."""
    if not secrets:
        return name
    parts = (
        sanitize_name(part) for secret in secrets for part in SLASH.split(secret) if len(part.strip(". ")) >= MIN_SECRET
    )
    looked_for = longest_first(text for text in (*secrets, *parts) if len(text) >= MIN_SECRET)
    was_cut = any(len(part.encode()) > MAX_NAME - MARGIN for part in name.split("/"))
    name = redact(name, looked_for)
    return "/".join(_redact_cut(part, looked_for) for part in name.split("/")) if was_cut else name


def _redact_cut(part: str, secrets: Sequence[str]) -> str:
    """Without the beginning of a secret where it was cut: at its end, or before its suffix."""
    for end in {len(part), part.rfind(".")} - {-1}:
        size = partial_secret_length(part[:end], secrets)
        if size >= MIN_SECRET:
            return part[: end - size] + MASK + part[end:]
    return part

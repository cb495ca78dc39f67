"""What an attempt leaves: its files become objects, under names that contain no secret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from packhorse.blobs.base import Blobs
from packhorse.core.models import Artifact, Result, Stored
from packhorse.core.redaction import MASK, MIN_SECRET, longest_first, partial_secret_length, redact
from packhorse.define.files import MAX_NAME, artifact_name, sanitize_name
from packhorse.errors import InvalidInput
from packhorse.jobs.artifacts import content_type, few_at_a_time, output_prefix, safe_suffix
from packhorse.store.base import Claim
from packhorse.worker.child.messages import Document, Made

SLASH = re.compile(r"[/\\]")
MARGIN = 8
"""Bytes that a truncated name may be shorter than the maximum: half a character, and blanks."""


async def publish(blobs: Blobs, claim: Claim, scratch: Path | str, document: Document, made: Sequence[Made]) -> Result:
    """Put the files of a result into the object store, before any record refers to them."""
    if not document.files and not made:
        return Result(document.value)
    put = _Uploads(blobs, claim, scratch)
    # The names come from a child, and become names of files in the scratch folder of another attempt.
    named = [
        *((path, sanitize_name(name)) for path, name in document.files),
        *((each.path, artifact_name(each.name)) for each in made),
    ]
    found = await few_at_a_time(put.upload, [put.add(Path(path), name) for path, name in named])
    return Result(document.value, tuple(found[: len(document.files)]), tuple(found[len(document.files) :]))


class _Uploads:
    def __init__(self, blobs: Blobs, claim: Claim, scratch: Path | str) -> None:
        self._blobs = blobs
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
            raise InvalidInput(
                f"The stage named {artifact.file.name!r} as a file, but there is none in its scratch folder."
            )
        summed = await self._blobs.put_file(artifact.file.key, real)
        return replace(artifact, file=replace(artifact.file, size=summed.size, sha256=summed.sha256))

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

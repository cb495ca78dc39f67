"""Results on their way here: written aside, checked against the server's sum, and then given their name in one step."""

from __future__ import annotations

import os
import re
import tempfile
from base64 import b64encode
from contextlib import suppress
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Self
from urllib.parse import unquote

import httpx2

from packhorse.define.files import sanitize_name
from packhorse.errors import Unreachable

CHUNK = 256 * 1024


def is_file(response: httpx2.Response) -> bool:
    return "content-disposition" in response.headers


class Arrival:
    """A file as it comes in. Whatever goes wrong before `kept`, leaving the context removes what there is of it."""

    def __init__(self, response: httpx2.Response, to: Path) -> None:
        self._url = str(response.url)
        self._said = response.headers.get("repr-digest")
        self._to = _unused(to / filename(response.headers["content-disposition"])) if to.is_dir() else to
        self._to.parent.mkdir(parents=True, exist_ok=True)
        fd, self._aside = tempfile.mkstemp(prefix=".packhorse-", dir=self._to.parent)
        self._file = open(fd, "wb")  # noqa: SIM115 (closed when this is left)
        self._summed = sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        with suppress(FileNotFoundError):  # it has its name
            os.unlink(self._aside)

    def add(self, piece: bytes) -> None:
        self._summed.update(piece)
        self._file.write(piece)

    def kept(self) -> Path:
        """Give it its name, in one step, if it is what the server says it sent."""
        self._file.close()
        digest = b64encode(self._summed.digest()).decode()
        if self._said is not None and self._said != f"sha-256=:{digest}:":
            raise Unreachable("The file was changed on its way here; try again.", url=self._url)
        os.chmod(self._aside, 0o666 & ~_mask())
        os.replace(self._aside, self._to)
        return self._to


def _unused(path: Path) -> Path:
    """A name that the server chose never takes the place of a file that is there: ``a.jpg``, then ``a (1).jpg``."""
    names = chain([path], (path.with_name(f"{path.stem} ({n}){path.suffix}") for n in count(1)))
    return next(each for each in names if not each.exists())


def filename(disposition: str) -> str:
    """The name in a Content-Disposition, made safe: a server must not choose where we write."""
    extended = re.search(r"filename\*=UTF-8''([^;\s]+)", disposition, re.IGNORECASE)
    if extended:
        return sanitize_name(unquote(extended[1]))
    plain = re.search(r'filename="((?:[^"\\]|\\.)*)"', disposition, re.IGNORECASE)
    return sanitize_name(re.sub(r"\\(.)", r"\1", plain[1]) if plain else "result")


def _mask() -> int:
    """The umask can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

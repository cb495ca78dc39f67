"""Downloads: written to a temporary file, checked against the server's digest, then renamed."""

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


class IncomingFile:
    """A file being downloaded. Leaving the context without `finish` removes it."""

    def __init__(self, response: httpx2.Response, to: Path) -> None:
        self._url = str(response.url)
        self._expected = response.headers.get("repr-digest")
        self._to = _unused(to / filename(response.headers["content-disposition"])) if to.is_dir() else to
        self._to.parent.mkdir(parents=True, exist_ok=True)
        fd, self._temporary = tempfile.mkstemp(prefix=".packhorse-", dir=self._to.parent)
        self._file = open(fd, "wb")  # noqa: SIM115 (closed when this is left)
        self._digest = sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        with suppress(FileNotFoundError):  # it was renamed
            os.unlink(self._temporary)

    def add(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._file.write(piece)

    def finish(self) -> Path:
        """Check the digest and give the file its name."""
        self._file.close()
        digest = b64encode(self._digest.digest()).decode()
        if self._expected is not None and self._expected != f"sha-256=:{digest}:":
            raise Unreachable("The file was corrupted during the download; try again.", url=self._url)
        os.chmod(self._temporary, 0o666 & ~_mask())
        os.replace(self._temporary, self._to)
        return self._to


def _unused(path: Path) -> Path:
    """Never overwrites an existing file with a name that the server chose: ``a.jpg``, then ``a (1).jpg``."""
    names = chain([path], (path.with_name(f"{path.stem} ({n}){path.suffix}") for n in count(1)))
    return next(each for each in names if not each.exists())


def filename(disposition: str) -> str:
    """The name in a Content-Disposition, sanitised: the server must not choose the folder."""
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

"""Results on their way here: written aside, checked against the server's sum, and then given their name in one step."""

from __future__ import annotations

import os
import re
import tempfile
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2

from packhorse.client.problems import checked, error_of, reaching
from packhorse.define.files import sanitised
from packhorse.errors import Unreachable

CHUNK = 256 * 1024


def fetch(http: httpx2.Client, path: str, to: Path) -> Any:
    with reaching(str(http.base_url)), http.stream("GET", path) as response:
        if not response.is_success:
            response.read()
            raise error_of(response)
        disposition = response.headers.get("content-disposition")
        if disposition is None:
            response.read()
            return checked(response)
        return _kept(response, to / filename(disposition) if to.is_dir() else to)


def filename(disposition: str) -> str:
    """The name in a Content-Disposition, made safe: a server must not choose where we write."""
    extended = re.search(r"filename\*=UTF-8''([^;\s]+)", disposition, re.IGNORECASE)
    if extended:
        return sanitised(unquote(extended[1]))
    plain = re.search(r'filename="((?:[^"\\]|\\.)*)"', disposition, re.IGNORECASE)
    return sanitised(re.sub(r"\\(.)", r"\1", plain[1]) if plain else "result")


def _kept(response: httpx2.Response, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    fd, aside = tempfile.mkstemp(prefix=".packhorse-", dir=to.parent)
    try:
        with open(fd, "wb") as file:
            summed = sha256()
            for chunk in response.iter_bytes(CHUNK):
                summed.update(chunk)
                file.write(chunk)
        _compare(response, summed.digest())
        os.chmod(aside, 0o666 & ~_mask())
        os.replace(aside, to)
    except BaseException:
        os.unlink(aside)
        raise
    return to


def _compare(response: httpx2.Response, digest: bytes) -> None:
    said = response.headers.get("repr-digest")
    if said is not None and said != f"sha-256=:{b64encode(digest).decode()}:":
        raise Unreachable("The file was changed on its way here; try again.", url=str(response.url))


def _mask() -> int:
    """The umask can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

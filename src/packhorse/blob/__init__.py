"""Keeping bytes: the contract of an object store, and the stores that keep it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from packhorse.blob.base import Blobs
from packhorse.blob.folder import Folder
from packhorse.errors import SettingError


def open_blobs(url: str) -> Blobs:
    scheme, _, rest = url.partition("://")
    if scheme == "file" and rest.startswith("/"):
        return Folder(Path(unquote(rest)))
    raise SettingError(name="PACKHORSE_BLOBS", value=url)

"""Finds the weights of the processors on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = "VIDEO_MODELS"
"""Environment variable that names another folder."""


class NotThere(RuntimeError):
    """Weights have not been fetched."""


def folder() -> Path:
    return Path(os.environ.get(FOLDER) or Path(sys.prefix) / "share" / "packhorse_video")


def path(name: str) -> Path:
    found = folder() / name
    if not found.is_file():
        raise NotThere(f"{name} is not in {found.parent}; python -m packhorse_video.models fetches it.")
    return found


def are_there(*names: str) -> bool:
    return all((folder() / name).is_file() for name in names)

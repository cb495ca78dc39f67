"""Schedules from a file: what they are at first. People edit them afterwards, and their edits win."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from packhorse import Secret

P = TypeVar("P")
LISTS = ("job", "job_config")


class Clock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of a job about when it runs; the rest are parameters of the fetch."""

    job_id: str
    cron: str
    zone: str = "UTC"
    user: str = "local"
    active: bool = True
    updated_at: str = ""
    """When somebody changed the document; it is not used: an edit over HTTP has a time of its own."""


def jobs(path: Path, params: type[P]) -> Iterator[tuple[Clock, P]]:
    """Those of a file, TOML or JSON by its suffix. Raises ValueError with the job that is wrong."""
    own = Clock.__struct_fields__
    for i, entry in enumerate(_read(path)):
        try:
            clock = msgspec.convert({name: value for name, value in entry.items() if name in own}, Clock)
            rest = {name: value for name, value in entry.items() if name not in own}
            yield clock, msgspec.convert(rest, params, dec_hook=_secret)
        except ValueError as error:
            raise ValueError(f"Job {entry.get('job_id', i + 1)} of {path} is not valid: {error}") from error


def _read(path: Path) -> list[dict[str, Any]]:
    """A list of jobs, also as the value of ``job`` or ``job_config``, or a single one."""
    decode: Any = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    try:
        found: Any = decode(path.read_bytes())
        if isinstance(found, dict) and "job_id" in found:
            found = [found]
        if isinstance(found, dict):
            if odd := sorted(found.keys() - set(LISTS)):
                raise ValueError(f"It has {odd[0]!r}; a list of jobs is called {' or '.join(LISTS)}")
            found = [job for name in LISTS for job in found.get(name, [])]
        return msgspec.convert(found, list[dict[str, Any]])
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _secret(kind: type[Any], value: Any) -> Any:
    """A text, or the name of a variable: ``{ env = "NASA_KEY" }``."""
    if kind is not Secret:
        raise NotImplementedError
    if not isinstance(value, dict):
        return Secret(value)
    name = str(value.get("env", ""))
    if name not in os.environ:
        raise ValueError(f"There is no variable {name!r} in the environment")
    return Secret(os.environ[name].rstrip("\r\n"))  # as a file with a key in it ends, and no key does

"""One request as a value, so that both clients share every description; and when a request is repeated."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx2
import msgspec

from packhorse.client.problems import decode_answer, translate_errors
from packhorse.client.upload import Form
from packhorse.errors import InvalidInput, PackhorseError, UnknownOutcome, Unreachable
from packhorse.outbound.calls import tls_context
from packhorse.settings import Settings, load
from packhorse.version import VERSION

Json = dict[str, Any]
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])

BASE = "/api/v1"
LOCAL = "http://127.0.0.1:3003"
"""Where ``packhorse dev`` listens."""

CONNECT = 5.0
READ = 60.0
STORING = 600.0
"""A server may take long over the last byte of an upload: it syncs gigabytes to disk before it answers."""

PAUSES = (0.2, 0.5, 1.0)
"""Seconds before a call that may be repeated is sent again: as long as a server behind a proxy takes to be replaced."""
LOST = (Unreachable, UnknownOutcome)
"""The outcome of the request is unknown."""

NO_PROXY = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""A proxy from the environment could not reach this machine's own server."""

WAIT = 30.0
"""Default for how many seconds one call waits in all."""
WAITED_FOR = frozenset({429, 503})
SAFE = frozenset({"GET", "DELETE"})
LEAST = 0.1

OnWait = Callable[[float, PackhorseError], None]

SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how to read its answer."""

    method: str
    url: str
    read: Callable[[Any], T]
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    form: Form | None = None
    patience: float = READ
    """Seconds for the answer."""
    pauses: tuple[float, ...] = ()
    """Seconds before each repeat if the answer is lost; empty if it must not be repeated."""

    @property
    def is_repeatable(self) -> bool:
        """Whether sending it twice has the same effect as once. A submit is repeatable through its idempotency key."""
        return self.method in SAFE or bool(self.pauses)

    def request(self) -> dict[str, Any]:
        """Arguments for httpx, without the body of a form: the two clients read it differently."""
        headers = dict(self.headers)
        content = None
        if self.form is not None:
            headers |= self.form.headers()
        elif self.json is not None:
            headers["Content-Type"] = "application/json"
            content = msgspec.json.encode(self.json)
        return {
            "method": self.method,
            "url": self.url,
            "params": {name: value for name, value in self.query.items() if value is not None},
            "headers": headers,
            "content": content,
            "timeout": httpx2.Timeout(READ, connect=CONNECT, read=self.patience),
        }

    def result(self, response: httpx2.Response) -> T:
        return self.read(decode_answer(response))


@dataclass(frozen=True)
class Fetch(Generic[T]):
    """A download: a path if the answer is a file, else the decoded value."""

    url: str
    to: Path

    def value(self, found: Any) -> T:
        kept: T = found
        return kept


Pages = Callable[[str | None], Call[Json]]
"""The call for the page at a cursor."""


class Server:
    """Which server to call, with which key."""

    def __init__(self, url: str | None, key: str | None) -> None:
        settings = load().settings
        named = url or settings.url
        self.url = _with_scheme(named or LOCAL).rstrip("/")
        self._serve = None if named else _address(settings)
        self._key = (settings.key if key is None else key).strip()
        if not (self._key.isascii() and self._key.isprintable()) or " " in self._key:
            raise InvalidInput("This is not a key: it contains characters that no key has.", field="key")

    def translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(self.url, self._serve)

    def options(self) -> dict[str, Any]:
        """Arguments for a client of httpx."""
        headers = {"User-Agent": f"packhorse/{VERSION}"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return {
            "base_url": self.url,
            "headers": headers,
            "timeout": READ,
            "mounts": NO_PROXY,
            "verify": tls_context(self.url),
        }


def _with_scheme(url: str) -> str:
    """``localhost:3003`` means http://localhost:3003."""
    return url if "://" in url else f"http://{url}"


def _address(settings: Settings) -> str:
    """Where `packhorse serve` listens, as seen from this machine."""
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0", "::") else settings.host  # noqa: S104 (we ask there)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


class RetryBudget:
    """How long one call may still wait for a server that said when to try again."""

    def __init__(self, limit: float, on_wait: OnWait | None, *, is_repeatable: bool) -> None:
        self._until = time.monotonic() + limit
        self._on_wait = on_wait
        self._is_repeatable = is_repeatable

    def wait(self, error: PackhorseError) -> float:
        """Seconds until the next try. Raises the error if that is too late, or if a repeat may have a second effect."""
        seconds = error.retry_after
        if not self._is_repeatable or error.status not in WAITED_FOR or seconds is None:
            raise error
        seconds = max(seconds, LEAST)
        if time.monotonic() + seconds > self._until:
            raise error
        if self._on_wait is not None:
            self._on_wait(seconds, error)
        return seconds


def copy_signature(method: M, describe: Callable[..., Any], returns: str | None = None) -> M:
    """Give a method the name, docstring and signature of its description, for `help` and the docs.

    ``returns`` is the return type, if it is not the type parameter of the description's.
    """
    update_wrapper(method, describe)
    found = inspect.signature(describe)
    returned = returns or re.sub(r"^\w+\[(.*)\]$", r"\1", str(found.return_annotation))
    signature = found.replace(parameters=[SELF, *found.parameters.values()], return_annotation=returned)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method

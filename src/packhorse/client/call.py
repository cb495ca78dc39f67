"""What a client asks, as a value: described once, sent by the plain and by the asynchronous client alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx2
import msgspec

from packhorse.client.problems import checked, reaching
from packhorse.client.retry import SAFE
from packhorse.client.upload import Form
from packhorse.errors import InvalidInput, UnknownOutcome, Unreachable
from packhorse.settings import Settings, load
from packhorse.tls import trust
from packhorse.version import VERSION

Json = dict[str, Any]
T = TypeVar("T")

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
"""Nobody knows whether it was done."""

NO_PROXY = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""A proxy from the environment could not reach this machine's own server."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

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
    """How often, and after how long, it may be sent again when the answer is lost."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it comes to the same if it is sent twice: a submit does by its key."""
        return self.method in SAFE or bool(self.pauses)

    def asked(self) -> dict[str, Any]:
        """As httpx takes it, without the form's body: that is read one way here and another way there."""
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

    def answered(self, response: httpx2.Response) -> T:
        return self.read(checked(response))


@dataclass(frozen=True)
class Fetch(Generic[T]):
    """A file to be written, or, where the answer is none, a value: the path in the one case, the value in the other."""

    url: str
    to: Path

    def value(self, found: Any) -> T:
        kept: T = found
        return kept


Pages = Callable[[str | None], Call[Json]]
"""The call for the page at a cursor."""


class Where:
    """Which server, and who asks."""

    def __init__(self, url: str | None, key: str | None) -> None:
        settings = load().settings
        named = url or settings.url
        self.url = _with_scheme(named or LOCAL).rstrip("/")
        self._serve = None if named else _address(settings)
        self._key = (settings.key if key is None else key).strip()
        if not (self._key.isascii() and self._key.isprintable()) or " " in self._key:
            raise InvalidInput("This cannot be a key: it holds characters that no key has.", field="key")

    def reaching(self) -> AbstractContextManager[None]:
        """In it, silence is an error that says where nobody answers."""
        return reaching(self.url, self._serve)

    def options(self) -> dict[str, Any]:
        """For a client of httpx."""
        headers = {"User-Agent": f"packhorse/{VERSION}"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return {
            "base_url": self.url,
            "headers": headers,
            "timeout": READ,
            "mounts": NO_PROXY,
            "verify": trust(self.url),
        }


def _with_scheme(url: str) -> str:
    """``localhost:3003`` is what a person means by http://localhost:3003."""
    return url if "://" in url else f"http://{url}"


def _address(settings: Settings) -> str:
    """Where `packhorse serve` listens, for who asks from this machine."""
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0", "::") else settings.host  # noqa: S104 (we ask there)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"

"""Which server to call and with which key; and the errors that it answers with, raised again here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
import msgspec

from packhorse import errors
from packhorse.errors import InvalidInput, NoneNamed, PackhorseError, Unreachable
from packhorse.outbound.calls import tls_context
from packhorse.settings import PRODUCTION, Settings, dev_url, load
from packhorse.version import VERSION

LOCAL = "http://127.0.0.1:3003"  # where `packhorse dev` listens by default
NO_PROXY = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""A proxy from the environment could not reach this machine's own server."""

URN = "urn:packhorse:"
MEMBERS = frozenset({"type", "title", "status", "detail", "hint"})


class Server:
    """Which server to call, with which key. Raises InvalidInput for a key that cannot be one."""

    def __init__(self, url: str | None, key: str | None) -> None:
        settings = load().settings
        named = url or settings.url or _local_url(settings)
        self.url = (named if "://" in named else f"http://{named}").rstrip("/")
        self._serve = None if url or settings.url else _serve_address(settings)
        self._key = (settings.key if key is None else key).strip()
        if not (self._key.isascii() and self._key.isprintable()) or " " in self._key:
            raise InvalidInput("This is not a key: it contains characters that no key has.", field="key")

    def options(self) -> dict[str, Any]:
        """Arguments for a client of httpx."""
        headers = {"User-Agent": f"packhorse/{VERSION}"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return {"base_url": self.url, "headers": headers, "mounts": NO_PROXY, "verify": tls_context(self.url)}

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise `Unreachable` for a connection that failed."""
        try:
            yield
        except httpx2.LocalProtocolError as error:  # ours: the body was not as long as we had said
            raise InvalidInput(f"A file changed while it was being sent ({error}).") from error
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            facts = {"url": self.url, "reason": str(error) or type(error).__name__}
            raise (Unreachable(**facts) if self._serve is None else NoneNamed(**facts, serve=self._serve)) from error


def _local_url(settings: Settings) -> str:
    """Where a server on this machine listens: that of PACKHORSE_ENV, or without it `packhorse dev`."""
    if settings.env == PRODUCTION:
        return _serve_address(settings)
    return dev_url() or (_serve_address(settings) if settings.env else LOCAL)


def _serve_address(settings: Settings) -> str:
    """Where a local `packhorse serve` listens, for the hint if no server was named."""
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0", "::") else settings.host  # noqa: S104 (we ask there)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def decode_answer(response: httpx2.Response) -> Any:
    """The JSON of a successful response, None if it is empty. The body must have been read."""
    if not response.is_success:
        raise error_of(response)
    if not response.content:
        return None
    try:
        return msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        raise _not_packhorse(response) from None


def error_of(response: httpx2.Response) -> PackhorseError:
    found = None
    with suppress(msgspec.DecodeError):
        found = msgspec.json.decode(response.content)
    if not isinstance(found, dict) or not str(found.get("type", "")).startswith(URN):
        return _not_packhorse(response)
    error = error_from(found)
    said = response.headers.get("retry-after", "")
    if said.isascii() and said.isdigit() and len(said) < 7:
        error.retry_after = float(said)
    return error


def error_from(problem: Mapping[str, Any]) -> PackhorseError:
    """The error that the server had, from its problem."""
    facts = {name: value for name, value in problem.items() if name not in MEMBERS}
    named = KNOWN.get(problem["type"].removeprefix(URN), PackhorseError)
    error = named(str(problem.get("detail") or problem.get("title") or named.type()), **facts)
    error.hint = str(problem.get("hint", error.hint))  # a newer server may have a better one
    return error


def _not_packhorse(response: httpx2.Response) -> Unreachable:
    said = f"{response.status_code} {response.reason_phrase}"
    return Unreachable(f"What answers at {response.url} is not packhorse: {said}.", url=str(response.url))


def _all(root: type[PackhorseError]) -> Iterator[type[PackhorseError]]:
    yield root
    for child in root.__subclasses__():
        yield from _all(child)


KNOWN = {each.type(): each for each in _all(PackhorseError) if each.__module__ == errors.__name__}

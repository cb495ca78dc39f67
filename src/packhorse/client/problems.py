"""Turns a problem document back into the error that the server raised, and a failed connection into `Unreachable`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import msgspec

from packhorse import errors
from packhorse.errors import InvalidInput, NoneNamed, PackhorseError, Unreachable

URN = "urn:packhorse:"
MEMBERS = frozenset({"type", "title", "status", "detail", "hint"})


@contextmanager
def translate_errors(url: str, serve: str | None = None) -> Iterator[None]:
    """``serve``: the address of a local `packhorse serve`, for the hint if no server was named."""
    try:
        yield
    except httpx2.LocalProtocolError as error:  # ours: the body was not as long as we had said
        raise InvalidInput(f"A file changed while it was being sent ({error}).") from error
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise (
            Unreachable(url=url, reason=reason) if serve is None else NoneNamed(url=url, serve=serve, reason=reason)
        ) from error


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
    found = _json_or_none(response)
    if not isinstance(found, dict) or not str(found.get("type", "")).startswith(URN):
        return _not_packhorse(response)
    facts = {name: value for name, value in found.items() if name not in MEMBERS}
    named = KNOWN.get(found["type"].removeprefix(URN), PackhorseError)
    error = named(str(found.get("detail") or found.get("title") or named.type()), **facts)
    error.hint = str(found.get("hint", error.hint))  # a newer server may have a better one
    said = response.headers.get("retry-after", "")
    error.retry_after = float(said) if said.isascii() and said.isdigit() and len(said) < 7 else None
    return error


def _not_packhorse(response: httpx2.Response) -> Unreachable:
    said = f"{response.status_code} {response.reason_phrase}"
    return Unreachable(f"What answers at {response.url} is not packhorse: {said}.", url=str(response.url))


def _json_or_none(response: httpx2.Response) -> Any:
    try:
        return msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        return None


def _all(root: type[PackhorseError]) -> Iterator[type[PackhorseError]]:
    yield root
    for child in root.__subclasses__():
        yield from _all(child)


KNOWN = {each.type(): each for each in _all(PackhorseError) if each.__module__ == errors.__name__}

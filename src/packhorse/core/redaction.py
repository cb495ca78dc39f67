"""Secrets in a job's parameters: masking them, and removing them from any text in all forms a program writes."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

from packhorse.core import json as wire
from packhorse.core.json import ANY, replace_at, values_at
from packhorse.core.plan import Path

MASK = "••••"  # shown in place of a secret of any length

SEALED = "$secret"  # the only key of the object that stores an encrypted secret: `{"$secret": "…"}`

MIN_SECRET = 4  # Minimum characters of a secret to look for. Shorter ones occur in ordinary words by chance.
MIN_BASE64 = 8  # minimum characters of a base64 form to look for
URLSAFE = str.maketrans("+/", "-_")


def is_encrypted(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {SEALED}


def mask(value: Any, paths: Sequence[Path]) -> Any:
    return replace_at(value, paths, lambda _: MASK)


def restore_masked(value: Any, before: Any, paths: Sequence[Path]) -> Any:
    """The value with the stored secret wherever the caller sent the mask back unchanged.

    In a list only if nothing but secrets differs: removing one account must not give its password to the next one.
    """
    if () in paths:
        return before if value == MASK and before is not None else value
    if isinstance(value, Mapping) and isinstance(before, Mapping):
        return {
            name: restore_masked(inner, before.get(name), _below(paths, name, ANY)) for name, inner in value.items()
        }
    below = _below(paths, ANY)
    if isinstance(value, list) and isinstance(before, list) and _public(value, below) == _public(before, below):
        return [restore_masked(inner, was, below) for inner, was in zip(value, before, strict=True)]
    return value


def redact(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def split_redacted(text: str, secrets: Sequence[str]) -> tuple[str, str]:
    """Split a text that continues: what can be shown now, and the end that may be the beginning of a secret."""
    text = redact(text, secrets)
    at = len(text) - partial_secret_length(text, secrets)
    return text[:at], text[at:]


def partial_secret_length(text: str, secrets: Sequence[str]) -> int:
    """Number of characters at the end of a text that may be the beginning of a secret."""
    return max((_overlap(text, secret) for secret in secrets), default=0)


def _overlap(text: str, secret: str) -> int:
    start = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while start >= 0:
        if secret.startswith(text[start:]):
            return len(text) - start
        start = text.find(secret[0], start + 1)
    return 0


def redact_json(value: Any, secrets: Sequence[str]) -> Any:
    """Redact every text in a JSON value, keys included."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {redact(name, secrets): redact_json(inner, secrets) for name, inner in value.items()}
    return [redact_json(inner, secrets) for inner in value] if isinstance(value, list) else value


def _public(elements: Sequence[Any], paths: Sequence[Path]) -> list[Any]:
    """The elements without their secrets. Two lists whose public parts differ cannot be matched."""
    return [_without_secrets(each, paths) for each in elements]


def _without_secrets(value: Any, paths: Sequence[Path]) -> Any:
    if () in paths:
        return None
    if isinstance(value, Mapping):
        return {
            name: _without_secrets(inner, below)
            for name, inner in value.items()
            if () not in (below := _below(paths, name, ANY))
        }
    return _public(value, _below(paths, ANY)) if isinstance(value, list) else value


def _below(paths: Sequence[Path], *steps: str) -> list[Path]:
    return [path[1:] for path in paths if path and path[0] in steps]


def secret_forms(parameters: bytes, secrets: Sequence[Path]) -> tuple[str, ...]:
    """All forms of the secrets in decrypted parameters that output is searched for, longest first."""
    if not secrets:
        return ()
    whole = [text for text in values_at(wire.decode(parameters), secrets) if isinstance(text, str)]
    # Output is split into lines, and a key read from a file ends with a newline.
    texts = {piece.strip() for text in whole for piece in (text, *text.splitlines())} | set(whole)
    return longest_first(way for text in texts if len(text.strip()) >= MIN_SECRET for way in _forms(text))


def longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    """Unique, longest first: redacting a short secret first would leave the rest of a longer one."""
    return tuple(sorted(set(texts), key=lambda text: (-len(text), text)))


def _forms(text: str) -> set[str]:
    once = _escapes(text)
    twice = {way for each in once if each != text for way in _escapes(each)}  # an error message inside a JSON log
    pages = {html.escape(text), html.escape(text, quote=False)}
    return (
        {text} | once | twice | pages | _url_forms(text) | {way for data in _encodings(text) for way in _base64(data)}
    )


def _escapes(text: str) -> set[str]:
    """As JSON and as Python's repr, of text and of bytes."""
    shown = {wire.encode(text).decode()[1:-1], json.dumps(text)[1:-1]}
    for show in (repr, ascii, lambda piece: repr(piece.encode())[1:]):
        bare = "'".join(show(piece)[1:-1] for piece in text.split("'"))
        shown |= {bare, bare.replace("'", "\\'")}  # Python chooses the quotes by the rest of the text
    return shown


def _url_forms(text: str) -> set[str]:
    """Percent-encoded, with upper and lower case hex digits."""
    found = {quote(text, safe=""), quote(text), quote_plus(text)}
    return found | {re.sub("%[0-9A-F]{2}", lambda digits: digits[0].lower(), each) for each in found}


def _encodings(text: str) -> set[bytes]:
    """As bytes: in UTF-8, and in Latin-1 as in older Basic authentication."""
    return {text.encode()} | ({text.encode("latin-1")} if all(ord(c) < 256 for c in text) else set())


def _base64(data: bytes) -> Iterator[str]:
    """Base64 of the secret alone and inside a longer text, at each of the three byte offsets.

    Inside a longer text, the first and last character may mix in bits of the neighbours, so they are left out.
    """
    forms = [b64encode(data).decode()]
    for before in range(3):
        first, behind = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        forms.append(b64encode(bytes(before) + data).decode()[first:behind])
    for form in forms:
        if len(form) >= MIN_BASE64:
            yield from (form, form.translate(URLSAFE))

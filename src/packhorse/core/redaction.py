"""Where in a job's parameters there are secrets, and how they look to everybody who may not read them."""

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

MASK = "••••"
"""What is shown in place of a secret, whatever its length."""

SEALED = "$secret"
"""The only name in the object that stands for a secret at rest: ``{"$secret": "…"}``."""

MIN_SECRET = 4
"""Characters. What is shorter is in every other word by chance: taking it out would ruin the text and hide nothing."""
MIN_BASE64 = 8
"""Characters. It has a third more than what it stands for, and looks like any other."""
URLSAFE = str.maketrans("+/", "-_")


def is_encrypted(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {SEALED}


def mask(value: Any, paths: Sequence[Path]) -> Any:
    return replace_at(value, paths, lambda _: MASK)


def restore_masked(value: Any, before: Any, paths: Sequence[Path]) -> Any:
    """The value with what was there before wherever somebody has sent the mask back: they left the secret as it was.

    In a list only if all of it is where it was: who drops one account must not give its password to the next.
    """
    if () in paths:
        return before if value == MASK and before is not None else value
    if isinstance(value, Mapping) and isinstance(before, Mapping):
        return {
            name: restore_masked(inner, before.get(name), _below(paths, name, ANY)) for name, inner in value.items()
        }
    if isinstance(value, list) and isinstance(before, list) and _is_same(value, before, _below(paths, ANY)):
        return [restore_masked(inner, was, _below(paths, ANY)) for inner, was in zip(value, before, strict=True)]
    return value


def redact(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def split_redacted(text: str, secrets: Sequence[str]) -> tuple[str, str]:
    """Of a text that goes on: what can be told of it now, and its end as far as a secret may have begun there."""
    text = redact(text, secrets)
    at = len(text) - partial_secret_length(text, secrets)
    return text[:at], text[at:]


def partial_secret_length(text: str, secrets: Sequence[str]) -> int:
    """How many characters at the end of a text are the beginning of a secret, which may go on in what follows it."""
    return max((_overlap(text, secret) for secret in secrets), default=0)


def _overlap(text: str, secret: str) -> int:
    start = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while start >= 0:
        if secret.startswith(text[start:]):
            return len(text) - start
        start = text.find(secret[0], start + 1)
    return 0


def redact_json(value: Any, secrets: Sequence[str]) -> Any:
    """The same for every text in a JSON value, names too."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {redact(name, secrets): redact_json(inner, secrets) for name, inner in value.items()}
    return [redact_json(inner, secrets) for inner in value] if isinstance(value, list) else value


def _is_same(value: Sequence[Any], before: Sequence[Any], paths: Sequence[Path]) -> bool:
    """Whether two lists differ in nothing but secrets: else nobody knows which element is which."""
    return [_without_secrets(each, paths) for each in value] == [_without_secrets(each, paths) for each in before]


def _without_secrets(value: Any, paths: Sequence[Path]) -> Any:
    """What is no secret."""
    if () in paths:
        return None
    if isinstance(value, Mapping):
        return {
            name: _without_secrets(inner, below)
            for name, inner in value.items()
            if () not in (below := _below(paths, name, ANY))
        }
    return [_without_secrets(inner, _below(paths, ANY)) for inner in value] if isinstance(value, list) else value


def _below(paths: Sequence[Path], *steps: str) -> list[Path]:
    return [path[1:] for path in paths if path and path[0] in steps]


def secret_forms(parameters: bytes, secrets: Sequence[Path]) -> tuple[str, ...]:
    """Opened parameters' secrets in all the ways they are looked for, the longest first."""
    if not secrets:
        return ()
    whole = [text for text in values_at(wire.decode(parameters), secrets) if isinstance(text, str)]
    # What is printed is cut into lines, and a key out of a file ends with one.
    texts = {piece.strip() for text in whole for piece in (text, *text.splitlines())} | set(whole)
    return longest_first(way for text in texts if len(text.strip()) >= MIN_SECRET for way in _forms(text))


def longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    """Each once. In another order, taking out a short one would leave the rest of a longer one that begins with it."""
    return tuple(sorted(set(texts), key=lambda text: (-len(text), text)))


def _forms(text: str) -> set[str]:
    once = _escapes(text)
    twice = {way for each in once if each != text for way in _escapes(each)}  # an error told in a log of JSON
    pages = {html.escape(text), html.escape(text, quote=False)}
    return (
        {text} | once | twice | pages | _url_forms(text) | {way for data in _encodings(text) for way in _base64(data)}
    )


def _escapes(text: str) -> set[str]:
    """As JSON and as Python shows it, as a text and as bytes."""
    shown = {wire.encode(text).decode()[1:-1], json.dumps(text)[1:-1]}
    for show in (repr, ascii, _bytes_repr):
        bare = "'".join(show(piece)[1:-1] for piece in text.split("'"))
        shown |= {bare, bare.replace("'", "\\'")}  # Python quotes by what else is in the text
    return shown


def _bytes_repr(text: str) -> str:
    return repr(text.encode())[1:]


def _url_forms(text: str) -> set[str]:
    """Some write the digits small."""
    found = {quote(text, safe=""), quote(text), quote_plus(text)}
    return found | {re.sub("%[0-9A-F]{2}", lambda digits: digits[0].lower(), each) for each in found}


def _encodings(text: str) -> set[bytes]:
    """As bytes: in UTF-8, and as HTTP's Basic authentication once had it."""
    return {text.encode()} | ({text.encode("latin-1")} if all(ord(c) < 256 for c in text) else set())


def _base64(data: bytes) -> Iterator[str]:
    """On its own, and within more, which moves it by none, one or two bytes: of that, what its neighbours leave alone.

    Six bits are a character, so that one at either end may be made of bits of both.
    """
    forms = [b64encode(data).decode()]
    for before in range(3):
        first, behind = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        forms.append(b64encode(bytes(before) + data).decode()[first:behind])
    for form in forms:
        if len(form) >= MIN_BASE64:
            yield from (form, form.translate(URLSAFE))

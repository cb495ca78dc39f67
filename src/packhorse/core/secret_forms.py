"""The ways in which a program is likely to write a secret down: what is looked for wherever something is told of it."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote, quote_plus

from packhorse.core import json as wire
from packhorse.core.paths import Path, found

SHORTEST = 4
"""Characters. What is shorter is in every other word by chance: taking it out would ruin the text and hide nothing."""
SHORTEST_BASE64 = 8
"""Characters. It has a third more than what it stands for, and looks like any other."""
URLSAFE = str.maketrans("+/", "-_")


def words(parameters: bytes, secrets: Sequence[Path]) -> tuple[str, ...]:
    """Opened parameters' secrets in all the ways they are looked for, the longest first."""
    if not secrets:
        return ()
    whole = [text for text in found(wire.decode(parameters), secrets) if isinstance(text, str)]
    # What is printed is cut into lines, and a key out of a file ends with one.
    texts = {piece.strip() for text in whole for piece in (text, *text.splitlines())} | set(whole)
    return longest_first(way for text in texts if len(text.strip()) >= SHORTEST for way in _ways(text))


def longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    """Each once. In another order, taking out a short one would leave the rest of a longer one that begins with it."""
    return tuple(sorted(set(texts), key=lambda text: (-len(text), text)))


def _ways(text: str) -> set[str]:
    once = _escaped(text)
    twice = {way for each in once if each != text for way in _escaped(each)}  # an error told in a log of JSON
    pages = {html.escape(text), html.escape(text, quote=False)}
    return {text} | once | twice | pages | _in_urls(text) | {way for data in _encoded(text) for way in _base64(data)}


def _escaped(text: str) -> set[str]:
    """As JSON and as Python shows it, as a text and as bytes."""
    shown = {wire.encode(text).decode()[1:-1], json.dumps(text)[1:-1]}
    for show in (repr, ascii, _of_bytes):
        bare = "'".join(show(piece)[1:-1] for piece in text.split("'"))
        shown |= {bare, bare.replace("'", "\\'")}  # Python quotes by what else is in the text
    return shown


def _of_bytes(text: str) -> str:
    return repr(text.encode())[1:]


def _in_urls(text: str) -> set[str]:
    """Some write the digits small."""
    found = {quote(text, safe=""), quote(text), quote_plus(text)}
    return found | {re.sub("%[0-9A-F]{2}", lambda digits: digits[0].lower(), each) for each in found}


def _encoded(text: str) -> set[bytes]:
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
        if len(form) >= SHORTEST_BASE64:
            yield from (form, form.translate(URLSAFE))

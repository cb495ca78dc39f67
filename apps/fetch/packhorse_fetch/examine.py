"""A look into what was fetched. What cannot be read is a warning: the file itself is kept as it came."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from packhorse import Permanent
from packhorse_fetch import charsets, feeds, fields, images, kinds, markup

LARGEST = 32 * 2**20
"""Bytes of JSON or of a feed that are read: the whole document is in memory then, several times over."""
PAGE = 2**20
"""Bytes of a page that are read. All that is taken out of it stands in its head."""
MEANT = ("image", "json", "feed")  # kinds that a server declares on purpose: another content is worth a warning


class Trouble(msgspec.Struct, frozen=True):
    """What could not be done with the file, as a failure would say it."""

    code: str
    message: str


class Findings(msgspec.Struct, frozen=True):
    kind: kinds.Kind
    charset: str | None = None
    image: images.Picture | None = None
    fields: dict[str, Any] | None = None
    missing: list[str] = []
    """Names of fields that lead nowhere."""
    warnings: list[Trouble] = []


def examine(
    path: Path, media_type: str, content_type: str, wanted: Mapping[str, str], thumbnail: Path, url: str = ""
) -> Findings:
    """What the file says, of the kind that its content has. Writes the thumbnail of a picture."""
    kind, said = kinds.kind(media_type), kinds.declared(content_type)
    found, warnings = Findings(kind), []
    if said and kinds.kind(said) in MEANT and kinds.kind(said) != kind:
        warnings.append(Trouble("WRONG_TYPE", f"The server says {said}, but it is {media_type}."))
    try:
        if kind == "image":
            found = Findings(kind, image=images.looked_at(path, thumbnail))
        elif kind in READERS:
            found = _read(kind, path, content_type, wanted, url)
    except Permanent as error:
        warnings.append(Trouble(error.code, error.message))
    missing = found.missing if found.fields is not None else list(wanted)
    return msgspec.structs.replace(found, missing=missing, warnings=warnings + found.warnings)


def _read(kind: kinds.Kind, path: Path, content_type: str, wanted: Mapping[str, str], url: str) -> Findings:
    if kind != "page" and (size := path.stat().st_size) > LARGEST:
        raise Permanent(f"The file has {size} bytes; only files up to {LARGEST} bytes are read.", code="NOT_READ")
    with path.open("rb") as file:
        decoded, warnings = charsets.decode(file.read(PAGE if kind == "page" else LARGEST), content_type), []
    if decoded.replaced:
        message = f"{decoded.replaced} characters cannot be read as {decoded.charset}, and were replaced."
        warnings.append(Trouble("BAD_CHARSET", message))
    elif decoded.is_guessed:
        message = f"The charset is not declared, or not the declared one; {decoded.charset} was guessed."
        warnings.append(Trouble("GUESSED_CHARSET", message))
    document = READERS[kind](decoded.text, url)
    if isinstance(document, feeds.Feed) and document.is_broken:
        warnings.append(Trouble("BROKEN_FEED", "The feed is not well-formed XML. Only the readable parts were used."))
    selected, missing = fields.selected(document, wanted)
    if kind != "json":  # where null is a value
        missing += [name for name, value in selected.items() if fields.is_empty(value)]
        selected = {name: value for name, value in selected.items() if name not in missing}
    return Findings(kind, decoded.charset, fields=selected, missing=missing, warnings=warnings)


READERS: Mapping[str, Callable[[str, str], Any]] = {
    "json": lambda text, _url: fields.json_document(text),
    "feed": feeds.feed,
    "page": markup.page,
}

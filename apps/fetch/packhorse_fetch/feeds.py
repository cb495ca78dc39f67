"""RSS and Atom as one shape, read without ever expanding an entity."""

from __future__ import annotations

from typing import Any, NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from packhorse import Permanent

DEEPEST = 100
"""Elements inside each other; feeds have about five."""

FIELDS = {
    "title": ("title",),
    "id": ("guid", "id"),
    "published": ("pubDate", "published", "date", "updated"),
    "summary": ("description", "summary", "content"),
}


def feed(data: bytes) -> dict[str, Any]:
    """``{"title", "link", "entries": [{"title", "link", "id", "published", "summary"}]}``."""
    root = _read(data)
    channel = root.find("channel")
    top = root if channel is None else channel
    if root.tag not in ("rss", "RDF", "feed"):
        raise Permanent(f"It is XML, but no feed: it begins with <{root.tag}>.", code="BAD_FEED")
    entries = [element for element in root.iter() if element.tag in ("item", "entry")]
    return {
        "title": _text(top, ("title",)),
        "link": _link(top),
        "entries": [
            {"link": _link(entry), **{name: _text(entry, tags) for name, tags in FIELDS.items()}} for entry in entries
        ],
    }


def _text(element: Element, tags: tuple[str, ...]) -> str | None:
    for tag in tags:
        found = element.find(tag)
        if found is not None:
            return "".join(found.itertext()).strip()
    return None


def _link(element: Element) -> str | None:
    """RSS writes it between the tags, Atom into an attribute."""
    links = element.findall("link")
    best = next((link for link in links if link.get("rel", "alternate") == "alternate"), None)
    if best is None:
        return None
    return best.get("href") or (best.text or "").strip() or None


def _read(data: bytes) -> Element:
    """Names without their namespaces: feeds mix them at will."""
    parser, builder = expat.ParserCreate(namespace_separator=" "), TreeBuilder()
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise Permanent("Its elements are nested too deeply.", code="BAD_FEED")
        builder.start(name.rpartition(" ")[2], attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name.rpartition(" ")[2])

    def refuse(*_: Any) -> NoReturn:
        raise Permanent("It declares entities, which no feed needs.", code="BAD_FEED")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    parser.EntityDeclHandler = parser.ExternalEntityRefHandler = refuse
    try:
        parser.Parse(data, True)
        return builder.close()
    except (expat.ExpatError, AssertionError, ValueError, LookupError) as error:
        raise Permanent(f"It cannot be read as XML: {error}", code="BAD_FEED") from error

"""RSS and Atom as one shape. Entities that a feed declares are never expanded, those of HTML always are."""

from __future__ import annotations

import base64
import binascii
import re
from html.entities import html5
from html.parser import HTMLParser
from typing import Any, NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from packhorse import Permanent
from packhorse_fetch.markup import joined, parse, plain

DEEPEST = 100
"""Elements inside each other; feeds have about five."""
BASE = "{base}"  # the attribute that carries the address which the links of an element are relative to

FIELDS: dict[str, tuple[str, ...]] = {
    "title": ("title", "dc:title"),
    "id": ("guid", "id", "dc:identifier"),
    "published": ("pubdate", "published", "issued", "dcterms:issued", "dc:date", "date", "updated", "modified"),
    "summary": ("description", "summary", "abstract", "dc:description", "tagline", "content:encoded", "content"),
}
PREFIXES = {
    "http://purl.org/dc/elements/1.1/": "dc:",
    "http://purl.org/dc/terms/": "dcterms:",
    "http://purl.org/rss/1.0/modules/content/": "content:",
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#": "rdf:",
    "http://www.w3.org/xml/1998/namespace": "xml:",
}
OWN = re.compile(r"|.*(rss|atom|purl\.org/net/rss|netscape\.com/(rdf|publish)|backend\.userland\.com).*", re.IGNORECASE)
"""Namespaces whose elements are those of feeds; elements of others, as `media:title`, are something else."""
XMLISH = frozenset({"amp", "lt", "gt", "quot", "apos"})
PROLOG = re.compile(r"\A(?>\s+|<!--.*?-->|<\?.*?\?>)*+<!DOCTYPE\b[^\[>]*(?:\[.*?\]\s*)?>", re.DOTALL | re.IGNORECASE)
DECLARATION = re.compile(r"^[^<]*(?:<\?xml\b.*?\?>)?", re.DOTALL)
REFERENCE = re.compile(
    r"<!\[CDATA\[.*?(?:\]\]>|\Z)|<!--.*?(?:-->|\Z)|&(?:(#x[0-9a-fA-F]+|#[0-9]+|[A-Za-z][A-Za-z0-9]*+);)?", re.DOTALL
)
"""Comments and sections that nobody closes go to the end: looking for that end again from each would take minutes."""
NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
ROOTS = ("rss", "rdf:rdf", "rdf", "feed")


class Feed(dict[str, Any]):
    """What `feed` returns. ``is_broken``: it is not well-formed XML, and was read as far as it makes sense."""

    is_broken = False


def feed(text: str, url: str = "") -> Feed:
    """``{"title", "link", "entries": [{"title", "link", "id", "published", "summary"}]}``, plain text throughout.

    Raises Permanent with the code BAD_FEED.
    """
    ready, is_broken = prepared(text), False
    try:
        root = _read(ready, url)
    except (expat.ExpatError, AssertionError, ValueError, LookupError) as error:
        made = _read_broken(ready, url)
        if made is None:
            raise Permanent(f"It cannot be read as XML: {error}", code="BAD_FEED") from error
        root, is_broken = made, True
    if root.tag not in ROOTS:
        raise Permanent(f"It is XML, but no feed: it begins with <{root.tag}>.", code="BAD_FEED")
    channel = root.find("channel")
    top = root if channel is None else channel
    entries = [element for element in root.iter() if element.tag in ("item", "entry")]
    found = Feed(title=_text(top, FIELDS["title"]), link=_link(top))
    found["entries"] = [_entry(entry) for entry in entries]
    found.is_broken = is_broken
    return found


def _entry(entry: Element) -> dict[str, Any]:
    found = {"link": _link(entry), **{name: _text(entry, tags) for name, tags in FIELDS.items()}}
    guid = entry.find("guid")
    if found["link"] is None and guid is not None and guid.get("ispermalink", "true").lower() == "true":
        found["link"] = found["id"]
    found["id"] = found["id"] or entry.get("rdf:about")
    return found


def prepared(text: str) -> str:
    """Without its declarations, and with every reference that XML does not know replaced by what it means."""
    return REFERENCE.sub(_meant, PROLOG.sub("", NO_XML.sub("", DECLARATION.sub("", text, count=1)), count=1))


def _meant(found: re.Match[str]) -> str:
    name = found[1]
    if name is None:
        return "&amp;" if found[0] == "&" else found[0]
    if name in XMLISH:
        return found[0]
    if name.startswith("#"):
        return _character(name)
    meant = html5.get(f"{name};")
    return f"&amp;{name};" if meant is None else meant.replace("&", "&amp;").replace("<", "&lt;")


def _character(name: str) -> str:
    """Numbers of Windows-1252, which many mean, and nothing for those that XML does not allow."""
    number = int(name[2:], 16) if name[1] == "x" else int(name[1:])
    if 0x80 <= number <= 0x9F:
        return bytes([number]).decode("cp1252", "ignore")
    if number > 0x10FFFF or NO_XML.match(chr(number)):
        return ""
    return f"&#{number};"


def _text(element: Element, tags: tuple[str, ...]) -> str | None:
    for tag in tags:
        for found in element.findall(tag):
            if said := _said(found):
                return said
    return None


def _said(found: Element) -> str:
    text = "".join(found.itertext())
    kind, mode = found.get("type", "").lower(), found.get("mode", "").lower()
    if mode == "base64" or (kind and "/" in kind and not kind.startswith("text/") and not kind.endswith("xml")):
        try:
            text = base64.b64decode(text, validate=False).decode()
        except (binascii.Error, ValueError):
            return ""
    if len(found) or (kind in ("text", "text/plain") and mode != "escaped"):
        return text.strip()
    return plain(text)


def _link(element: Element) -> str | None:
    """RSS writes it between the tags, Atom into an attribute."""
    for link in element.findall("link"):
        to = link.get("href") or (link.text or "").strip()
        if to and link.get("rel", "alternate").lower() == "alternate":
            return joined(link.get(BASE, ""), to)
    return None


class _Builder:
    """Elements in lower case; those of other namespaces than feeds have keep a prefix."""

    def __init__(self, url: str) -> None:
        self.tree = TreeBuilder()
        self.open: list[str] = []
        self._bases = [url]

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.open) >= DEEPEST:
            raise Permanent("Its elements are nested too deeply.", code="BAD_FEED")
        own = joined(self._bases[-1], attributes["xml:base"]) if "xml:base" in attributes else self._bases[-1]
        self._bases.append(own)
        self.open.append(name)
        self.tree.start(name, {**attributes, BASE: own})

    def end(self, name: str) -> None:
        self._bases.pop()
        self.open.pop()
        self.tree.end(name)

    def close_to(self, name: str) -> None:
        """End what was left open inside of it; nothing if it is not open."""
        if name in self.open:
            while self.open[-1] != name:
                self.end(self.open[-1])
            self.end(name)


def _read(text: str, url: str) -> Element:
    parser, builder = expat.ParserCreate("utf-8", namespace_separator=" "), _Builder(url)

    def refuse(*_: Any) -> NoReturn:
        raise Permanent("It declares entities, which no feed needs.", code="BAD_FEED")

    parser.StartElementHandler = lambda name, given: builder.start(
        _local(name), {_local(each): value for each, value in given.items()}
    )
    parser.EndElementHandler = lambda name: builder.end(_local(name))
    parser.CharacterDataHandler = builder.tree.data
    parser.EntityDeclHandler = parser.ExternalEntityRefHandler = refuse
    parser.Parse(text.encode(), True)
    return builder.tree.close()


def _local(name: str) -> str:
    space, _, local = name.rpartition(" ")
    if space in PREFIXES:
        return PREFIXES[space] + local.lower()
    return local.lower() if OWN.fullmatch(space) else f"other:{local.lower()}"


class _Lenient(HTMLParser):
    """Reads what is not well-formed: tags that nobody closes, or in the wrong order."""

    def __init__(self, builder: _Builder) -> None:
        super().__init__(convert_charrefs=True)
        self._builder = builder

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._builder.open or tag in ROOTS:
            if tag in ("item", "entry"):
                self._builder.close_to(tag)
            self._builder.start(tag.removeprefix("atom:"), {name: value or "" for name, value in attrs})

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if len(self._builder.open) > 1:
            self._builder.close_to(tag.removeprefix("atom:"))

    def handle_data(self, data: str) -> None:
        if self._builder.open:
            self._builder.tree.data(data)

    def unknown_decl(self, data: str) -> None:
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA["))


def _read_broken(text: str, url: str) -> Element | None:
    """None if there is nothing of a feed in it."""
    builder = _Builder(url)
    reader = _Lenient(builder)
    parse(reader, text, "BAD_FEED")
    if not builder.open:
        return None
    for name in builder.open[::-1]:
        builder.end(name)
    return builder.tree.close()

"""Plain text out of HTML, and what a page says of itself: title, description, language, links."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

from packhorse import Permanent

SILENT = ("script", "style", "template", "noscript")
BLOCKS = (
    *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figure", "footer", "h1", "h2", "h3"),
    *("h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "td", "th", "tr"),
    "ul",
)
INLINE = (
    *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "del", "dfn", "em", "font", "i", "img", "ins"),
    *("kbd", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "tt", "u", "var", "wbr"),
)
MARKED = re.compile(rf"&#?\w{{1,32}};|</?(?:{'|'.join(BLOCKS + INLINE + SILENT)})(?:\s[^<>]*)?/?>", re.IGNORECASE)
FEEDS = ("application/rss+xml", "application/atom+xml", "application/rdf+xml", "application/feed+json")
SPACE = re.compile(r"\s+")
TAG = re.compile(r"<[^<>]*>")
SECTION = re.compile(r"<!\[(?:temp|cdata|ignore|include|rcdata)\b", re.IGNORECASE)
SECTION_END = re.compile(r"\]\s*\]\s*>")


def parse(reader: HTMLParser, text: str, code: str) -> None:
    """Raises Permanent with the code for markup that the parser gives up on, as ``<![ x ]>``."""
    try:
        reader.feed(without_open_ends(text))
        reader.close()
    except (AssertionError, ValueError, RecursionError) as error:
        raise Permanent(f"Its markup cannot be read: {error}", code=code) from error


def without_open_ends(text: str) -> str:
    """The text without comments and sections that nobody closes, and with a last ``<`` that opens no tag as text.

    The parser looks for the end of each of them up to the end of the text: a megabyte of ``<!--`` would take minutes.
    """
    text = _cut(text, text.find("<!--", text.rfind("-->") + 1))
    ends = [found.end() for found in SECTION_END.finditer(text)]
    section = SECTION.search(text, ends[-1] if ends else 0)
    text = _cut(text, section.start() if section else -1)
    text = _cut(text, text.find("<![", text.rfind("]>") + 1))
    last = text.rfind(">") + 1
    return text[:last] + text[last:].replace("<", "&lt;")


def _cut(text: str, at: int) -> str:
    return text if at < 0 else text[:at]


def plain(text: str) -> str:
    """The text without tags and with entities decoded. A text without any is returned as it is."""
    if not MARKED.search(text):
        return text.strip()
    reader = _Plain()
    try:
        parse(reader, text, "BAD_PAGE")
    except Permanent:  # one broken summary does not make the feed around it unreadable
        return SPACE.sub(" ", unescape(TAG.sub(" ", text))).strip()
    return SPACE.sub(" ", "".join(reader.said)).strip()


class _Plain(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.said: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in SILENT
        if tag in BLOCKS:
            self.said.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(0, self._silent - (tag in SILENT))
        if tag in BLOCKS:
            self.said.append(" ")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.said.append(data)


def page(text: str, url: str = "") -> dict[str, Any]:
    """``{"title", "description", "language", "link", "image", "feeds": [{"title", "link"}]}``."""
    reader = _Page(url)
    parse(reader, text, "BAD_PAGE")
    meta, title = reader.meta, SPACE.sub(" ", "".join(reader.title)).strip()
    return {
        "title": title or meta.get("og:title"),
        "description": meta.get("description") or meta.get("og:description"),
        "language": reader.language or meta.get("content-language"),
        "link": reader.link or meta.get("og:url"),
        "image": meta.get("og:image"),
        "feeds": reader.feeds,
    }


class _Page(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.meta: dict[str, str] = {}
        self.language: str | None = None
        self.link: str | None = None
        self.feeds: list[dict[str, str | None]] = []
        self._base = url
        self._in_title = self._has_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: (value or "").strip() for name, value in attrs}
        if tag == "html":
            self.language = self.language or given.get("lang") or given.get("xml:lang") or None
        elif tag == "base" and given.get("href"):
            self._base = joined(self._base, given["href"])
        elif tag == "meta" and given.get("content"):
            name = given.get("name") or given.get("property") or given.get("http-equiv") or ""
            self.meta.setdefault(name.lower(), given["content"])
        elif tag == "link" and given.get("href"):
            self._take_link(given)
        self._in_title = tag == "title" and not self._has_title  # a drawing on the page may have titles of its own

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title, self._has_title = False, True

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)

    def _take_link(self, given: dict[str, str]) -> None:
        rel, to = given.get("rel", "").lower().split(), joined(self._base, given["href"])
        if "canonical" in rel:
            self.link = self.link or to
        elif "alternate" in rel and given.get("type", "").lower() in FEEDS:
            self.feeds.append({"title": given.get("title") or None, "link": to})


def joined(base: str, to: str) -> str:
    try:
        return urljoin(base, to.strip())
    except ValueError:  # as "http://[x"
        return to.strip()

"""What was fetched: by its content, and where that says nothing, by what the server says."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from packhorse_fetch import charsets

Kind = Literal["image", "json", "feed", "page", "xml", "other"]

SUFFIXES = {
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/avif": "avif",
    "image/bmp": "bmp",
    "image/tiff": "tif",
    "image/x-icon": "ico",
    "image/jp2": "jp2",
    "image/heic": "heic",
    "image/svg+xml": "svg",
    "application/json": "json",
    "application/rss+xml": "xml",
    "application/atom+xml": "xml",
    "application/rdf+xml": "xml",
    "application/xml": "xml",
    "text/xml": "xml",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/plain": "txt",
    "text/csv": "csv",
    "application/pdf": "pdf",
    "application/zip": "zip",
    "application/gzip": "gz",
    "video/mp4": "mp4",
    "audio/mpeg": "mp3",
}
MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBPVP8", "image/webp"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypavis", "image/avif"),
    (4, b"ftyphei", "image/heic"),
    (4, b"ftypmif1", "image/heic"),
    (4, b"ftyp", "video/mp4"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "image/jp2"),
    (0, b"\xff\x4f\xff\x51", "image/jp2"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b\x08", "application/gzip"),
    (0, b"ID3", "audio/mpeg"),
)
"""Where a file says which type it is, and how."""
ROOTS = {
    "rss": "application/rss+xml",
    "feed": "application/atom+xml",
    "rdf": "application/rdf+xml",
    "svg": "image/svg+xml",
    "html": "text/html",
}
"""Types by the first element of a document, without its prefix and in lower case."""
PROLOG = re.compile(r"\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>", re.DOTALL | re.IGNORECASE)
ROOT = re.compile(r"<(?:[\w.-]+:)?([A-Za-z][\w.-]*)")
HTML = re.compile(r"<(?:!doctype\s+html|html|head|body|title|meta|script|div|p|h1|table|a|br)\b", re.IGNORECASE)
OBJECT = re.compile(r'\{\s*["}]')
LIST = re.compile(r"\[\s*[\[{\"\]0-9tfn-]")
BOUNDARY = 64  # bytes at the end that tell whether JSON is complete
XML = frozenset({"application/xml", "text/xml"})
FEEDS = frozenset({"application/rss+xml", "application/atom+xml", "application/rdf+xml"})
SILENT = frozenset({"", "application/octet-stream", "binary/octet-stream", "application/x-download"})
TEXTUAL = re.compile(r"text/|application/(?:.*\+)?(?:json|xml|javascript)")


def declared(content_type: str) -> str:
    """The type that the server says, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def media_type(content_type: str, head: bytes, tail: bytes = b"") -> str:
    """By how the file begins and ends, since servers are often wrong; by what the server says if that tells nothing."""
    said = declared(content_type)
    if found := _by_magic(head):
        return found
    begins = charsets.beginning(head)
    if found := _by_markup(begins, said):
        return found
    if is_json(said):
        return said
    if _is_json_text(begins.lstrip(), tail or head):
        return "application/json"
    return said if said not in SILENT else "application/octet-stream"


def _by_magic(head: bytes) -> str | None:
    for at, magic, found in MAGIC:
        if head[at:].startswith(magic):
            return found
    if head.startswith(b"BM") and head[6:10] == b"\0\0\0\0":
        return "image/bmp"
    # An icon has no name in it: a type and a count, then a zero in each entry.
    if (
        head[:4] in (b"\0\0\1\0", b"\0\0\2\0")
        and 0 < int.from_bytes(head[4:6], "little") <= 256
        and head[9:10] == b"\0"
    ):
        return "image/x-icon"
    return None


def _by_markup(begins: str, said: str) -> str | None:
    is_xml = begins.lstrip().startswith("<?xml")
    at = 0
    while (found := PROLOG.match(begins, at)) and found.end() > at:
        at = found.end()
    if root := ROOT.match(begins, at):
        name = root[1].lower()
        if name in ROOTS:
            is_xhtml = name == "html" and said == "application/xhtml+xml"
            return said if is_xhtml else ROOTS[name]
        if is_xml or said in XML or said.endswith("+xml"):
            return said if said.endswith("xml") else "application/xml"
    if HTML.match(begins.lstrip()):
        return "text/html"
    return "application/xml" if is_xml and not said.endswith("xml") else None


def _is_json_text(begins: str, tail: bytes) -> bool:
    """Whether it looks like JSON from both ends: `[note]` begins like it, too."""
    close = "}" if OBJECT.match(begins) else "]" if LIST.match(begins) else None
    return close is not None and tail.rstrip(b" \t\r\n\0").endswith(close.encode())


def is_json(media_type: str) -> bool:
    return media_type in ("application/json", "text/json") or media_type.endswith("+json")


def is_text(media_type: str) -> bool:
    return TEXTUAL.match(media_type) is not None


def kind(media_type: str) -> Kind:
    if is_json(media_type):
        return "json"
    if media_type in FEEDS:
        return "feed"
    if media_type in ("text/html", "application/xhtml+xml"):
        return "page"
    if media_type.startswith("image/") and media_type != "image/svg+xml":
        return "image"
    return "xml" if media_type in XML or media_type.endswith("+xml") else "other"


def suffix(media_type: str, url: str) -> str:
    """Of the file it is kept in. Where the type says nothing, that of the address, if it is a plain one."""
    if found := SUFFIXES.get(media_type):
        return found
    if is_json(media_type):
        return "json"
    last = re.search(r"\.([A-Za-z0-9]{1,8})$", urlsplit(url).path)
    return last[1].lower() if last else "xml" if media_type.endswith("xml") else "bin"

"""What was fetched: by what the server says, and if that says nothing, by how it begins."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

Kind = Literal["image", "json", "feed", "other"]

SUFFIXES = {
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "application/json": "json",
    "application/rss+xml": "xml",
    "application/atom+xml": "xml",
    "application/xml": "xml",
    "text/xml": "xml",
    "text/html": "html",
    "text/plain": "txt",
    "text/csv": "csv",
    "application/pdf": "pdf",
}
BEGINNINGS: dict[bytes, str] = {
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"GIF8": "image/gif",
    b"{": "application/json",
    b"[": "application/json",
    b"<?xml": "application/xml",
    b"<rss": "application/rss+xml",
    b"<feed": "application/atom+xml",
}
SILENT = frozenset({"", "application/octet-stream", "binary/octet-stream"})


def media_type(said: str, beginning: bytes) -> str:
    kind = said.partition(";")[0].strip().lower()
    if kind not in SILENT:
        return kind
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "image/webp"
    begins = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((found for start, found in BEGINNINGS.items() if begins.startswith(start)), "application/octet-stream")


def kind(media_type: str) -> Kind:
    if media_type == "application/json" or media_type.endswith("+json"):
        return "json"
    if media_type in ("application/xml", "text/xml", "application/rss+xml", "application/atom+xml"):
        return "feed"
    return "image" if media_type.startswith("image/") and media_type != "image/svg+xml" else "other"


def suffix(media_type: str, url: str) -> str:
    """Of the file it is kept in. Where the type says nothing, that of the address, if it is a plain one."""
    last = re.search(r"\.([A-Za-z0-9]{1,8})$", urlsplit(url).path)
    return SUFFIXES.get(media_type) or (last[1].lower() if last else "bin")

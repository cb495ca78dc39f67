"""ETags: who has seen an answer before is told so, and is not sent it again."""

from __future__ import annotations

from hashlib import sha256

from litestar.response.base import ASGIResponse

MINE = "private, no-cache"
"""Kept by whoever asked, and never used without asking again."""


def answered(body: bytes, known: str | None) -> ASGIResponse:
    """JSON under a strong tag of all its bytes; 304 without them to who knows that tag."""
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": MINE, "X-Content-Type-Options": "nosniff"}
    if known is not None and _knows(known, tag):
        return ASGIResponse(status_code=304, headers=headers)
    return ASGIResponse(body=body, media_type="application/json", headers=headers)


def _knows(known: str, tag: str) -> bool:
    """The comparison of If-None-Match is the weak one: a proxy that packed the answer has marked its tag as weak."""
    return any(each.strip().removeprefix("W/") in (tag, "*") for each in known.split(","))

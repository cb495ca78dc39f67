"""The files of the pages: scripts and styles of ours, and what was fetched from npm at set-up. No others."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Annotated

from litestar import Response, get
from litestar.params import FromPath, HeaderParameter

from packhorse.errors import NotFound
from packhorse.web.render import HEADERS

KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

Known = Annotated[str | None, HeaderParameter(name="If-None-Match")]


@cache
def _names() -> frozenset[str]:
    """All that may be asked for: looked up once, so that no path leads out of the folder."""
    folder = files("packhorse.web").joinpath("static")
    own = [each.name for each in folder.iterdir() if each.is_file()]
    vendor = folder.joinpath("vendor")
    fetched = [f"vendor/{each.name}" for each in vendor.iterdir()] if vendor.is_dir() else []
    return frozenset(name for name in (*own, *fetched) if _kind(name))


def _kind(name: str) -> str | None:
    return next((kind for end, kind in KINDS.items() if name.endswith(end)), None)


@get("/favicon.ico", scope=None, include_in_schema=False, sync_to_thread=False)
def icon(known: Known = None) -> Response[bytes | None]:
    """Where browsers look for it on pages that do not say, such as an answer in JSON. They go by its type."""
    return _kept("icon.svg", known)


@get("/static/{name:path}", scope=None, include_in_schema=False, sync_to_thread=False)
def static(name: FromPath[str], known: Known = None) -> Response[bytes | None]:
    name = name.lstrip("/")
    if name not in _names():
        raise NotFound(path=f"/static/{name}")
    return _kept(name, known)


def _kept(name: str, known: str | None) -> Response[bytes | None]:
    body = files("packhorse.web").joinpath("static", name).read_bytes()
    tag = f'"{sha256(body).hexdigest()[:16]}"'
    headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
    if known == tag:
        return Response(None, status_code=304, headers=headers)
    return Response(body, media_type=_kind(name), headers=headers)


ROUTES = [static, icon]

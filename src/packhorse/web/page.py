"""The page at ``/``: a few files, and nothing from anywhere else."""

from __future__ import annotations

from importlib.resources import files
from typing import Any
from urllib.parse import quote

from litestar import Request, Response, get, head
from litestar.params import FromPath

from packhorse.errors import NotFound

STATIC = {"page.js": "text/javascript", "page.css": "text/css", "docs.css": "text/css"}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def _read(name: str) -> bytes:
    return files("packhorse.web").joinpath("static", name).read_bytes()


@get("/", scope=None, include_in_schema=False, sync_to_thread=False)
def index(request: Request[Any, Any, Any]) -> Response[bytes]:
    here = quote(request.scope.get("root_path", "")).encode()
    return Response(
        _read("index.html").replace(b'="/static/', b'="%s/static/' % here), media_type="text/html", headers=HEADERS
    )


@head("/", scope=None, include_in_schema=False, sync_to_thread=False)
def index_head() -> Response[None]:
    """For those who only ask whether it is there."""
    return Response(None, media_type="text/html", headers=HEADERS)


@get("/static/{name:str}", scope=None, include_in_schema=False, sync_to_thread=False)
def static(name: FromPath[str]) -> Response[bytes]:
    if name not in STATIC:
        raise NotFound(path=f"/static/{name}")
    return Response(_read(name), media_type=STATIC[name], headers=HEADERS)


ROUTES = [index, index_head, static]

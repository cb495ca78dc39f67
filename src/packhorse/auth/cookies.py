"""The cookie of a browser that has logged in, and what protects it: no other site may act with it.

A browser sends it along with whatever any page makes it ask for. It says where that page is from: in Sec-Fetch-Site,
or, where the connection is not encrypted and it leaves that out, in Origin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from litestar.types import HTTPScope

from packhorse.auth.headers import header_values
from packhorse.errors import Foreign

COOKIE = "packhorse_session"
"""The name of the session cookie starts with this."""
FAILED_LOGINS = "failed"
"""The rate limit for requests whose key or session was refused."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OURS = frozenset({"same-origin", "none"})
"""``none``: nobody's page, but the person, by the address bar."""


def session(scope: HTTPScope) -> str | None:
    """Looked for by hand: other servers of this host have cookies too, and none of them may hide ours."""
    ours = session_cookie(scope)
    for line in header_values(scope["headers"], b"cookie"):
        for each in line.split(";"):
            name, _, value = each.strip().partition("=")
            if name == ours:
                return value
    return None


def check_origin(scope: HTTPScope) -> None:
    """Raises Foreign for a write that a page of another site has asked for, or nobody knows which."""
    if scope["method"] in SAFE:
        return
    sites = header_values(scope["headers"], b"sec-fetch-site")
    if sites and not OURS.issuperset(sites):
        raise _foreign("Sec-Fetch-Site", sites)
    origins, hosts = header_values(scope["headers"], b"origin"), header_values(scope["headers"], b"host")
    if not sites and (len(origins) != 1 or len(hosts) != 1 or urlsplit(origins[0]).netloc != hosts[0]):
        raise _foreign("Origin", origins)


def _foreign(name: str, values: Sequence[str]) -> Foreign:
    value = ", ".join(values)[:100]
    error = Foreign(
        f"What a page asks for has to come from our own pages: {name} was {value!r}.", name=name, value=value
    )
    error.hint = "A script uses the API, with a key. A proxy has to pass on Host."
    return error


def session_cookie(scope: Any) -> str:
    return cookie_name(COOKIE, scope)


def cookie_name(stem: str, scope: Any) -> str:
    """The whole name of a cookie, with the port and the path at which the browser knows us.

    To it, all ports of a host are one: under one name, each server would take the cookies of the others for its own,
    and sessions among them for somebody's guesses.
    """
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    port = host.rpartition(":")[2] if ":" in host else ""
    path = scope.get("root_path", "")
    return "_".join([stem, *re.findall(r"[0-9A-Za-z]+", f"{port if port.isdecimal() else ''} {path}")])

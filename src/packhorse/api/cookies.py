"""The cookie of a browser that has logged in, and what protects it: no other site may act with it.

A browser sends it along with whatever any page makes it ask for. It says where that page is from: in Sec-Fetch-Site,
or, where the connection is not encrypted and it leaves that out, in Origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from litestar.types import HTTPScope

from packhorse.api.headers import every
from packhorse.errors import Foreign
from packhorse.web.rendering import session_cookie

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OURS = frozenset({"same-origin", "none"})
"""``none``: nobody's page, but the person, by the address bar."""


def session(scope: HTTPScope) -> str | None:
    """Looked for by hand: other servers of this host have cookies too, and none of them may hide ours."""
    ours = session_cookie(scope)
    for line in every(scope["headers"], b"cookie"):
        for each in line.split(";"):
            name, _, value = each.strip().partition("=")
            if name == ours:
                return value
    return None


def check_origin(scope: HTTPScope) -> None:
    """Raises Foreign for a write that a page of another site has asked for, or nobody knows which."""
    if scope["method"] in SAFE:
        return
    sites = every(scope["headers"], b"sec-fetch-site")
    if sites and not OURS.issuperset(sites):
        raise _foreign("Sec-Fetch-Site", sites)
    origins, hosts = every(scope["headers"], b"origin"), every(scope["headers"], b"host")
    if not sites and (len(origins) != 1 or len(hosts) != 1 or urlsplit(origins[0]).netloc != hosts[0]):
        raise _foreign("Origin", origins)


def _foreign(name: str, values: Sequence[str]) -> Foreign:
    value = ", ".join(values)[:100]
    error = Foreign(
        f"What a page asks for has to come from our own pages: {name} was {value!r}.", name=name, value=value
    )
    error.hint = "A script uses the API, with a key. A proxy has to pass on Host."
    return error

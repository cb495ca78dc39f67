"""Authenticates a request: its client address, its key or session cookie, and the site whose page sent it.

A page of another site can make a browser send requests here with our session cookie, or point a name of its own at
127.0.0.1. The browser says where the page is from: in Sec-Fetch-Site, or, where the connection is not encrypted and it
leaves that out, in Origin. Headers are read from the ASGI scope: Litestar's headers object costs more than a small
request may.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from litestar.types import HTTPScope
from msgspec.structs import replace

from packhorse.auth import keys
from packhorse.auth.access import LOCAL, NOBODY, Caller, permissions
from packhorse.auth.audit_log import Auditor
from packhorse.auth.keys import Keyring
from packhorse.auth.rate_limits import WINDOW, Limit, Rates, limit_headers, refusal, token_share
from packhorse.errors import Foreign, RateExceeded, Refused, TokenRefused, TooMany, Unauthorized
from packhorse.settings import Settings
from packhorse.store.base import Charge, Spent, Store
from packhorse.store.collections.keys import Key

BEARER = "bearer "
FAILED_LOGINS = "failed"
"""The rate limit for requests whose key or session was refused."""
FAILURES = 60.0
"""Window, in seconds, in which failed attempts of one address are counted."""
MOST = 10_000
"""Blocked addresses that are cached here; for more, the store decides."""

COOKIE = "packhorse_session"
"""The name of the session cookie starts with this."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OURS = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site. ``none``: no page, but the person, by the address bar."""
FORWARDED = frozenset(
    {
        *(b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port"),
        *(b"x-forwarded-server", b"x-forwarded-prefix", b"x-real-ip", b"x-client-ip", b"cf-connecting-ip"),
    }
)
"""Headers that proxies add."""
HOST = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")
ORIGIN = re.compile(rf"https?://{HOST.pattern}")

Headers = Iterable[tuple[bytes, bytes]]
"""As the ASGI server gives them, names in lower case."""
Network = IPv4Network | IPv6Network


class Authenticator:
    def __init__(self, settings: Settings, store: Store, keyring: Keyring, audit: Auditor) -> None:
        self._store = store
        self._keyring = keyring
        self._audit = audit
        self._trusted = networks(settings.trust_proxy)
        self._failed_limit = settings.failed_limit
        self._blocked: dict[str, float] = {}
        self.limit = Limit("api", settings.api_limit, WINDOW, "requests", RateExceeded)
        self.rates = Rates(store, settings.api_limit) if settings.api_limit else None
        share = token_share(settings.api_limit, settings)
        self._token_limit = Limit("token-api", share, WINDOW, "requests", RateExceeded, who="this token")
        self._token_rates = Rates(store, share) if share else None

    def local_caller(self, scope: HTTPScope) -> Caller:
        """The caller where no key is needed: only this machine is served. Raises `Foreign`."""
        _check_peer(scope["client"])
        _check_direct(scope["headers"])
        _check_host(scope["method"], scope["headers"])
        return local_caller(self._address(scope))

    async def caller(self, scope: HTTPScope) -> Caller:
        """Raises `Unauthorized`, or `RateExceeded` after too many failed attempts."""
        address = self._address(scope)
        presented = header_values(scope["headers"], b"authorization")
        if not presented and (cookie := cookie_value(scope, session_cookie(scope))) is not None:
            return await self._session_caller(scope, cookie, address)
        if not presented:
            raise await self._refused("key.missing", address, "the request has none")
        text = presented[0]
        is_bearer = text[: len(BEARER)].lower() == BEARER and len(presented) == 1
        found = keys.read(text[len(BEARER) :].strip()) if is_bearer else None
        return await self._key_caller(found, ", ".join(presented), address)

    async def holder(self, scope: HTTPScope, text: str) -> Caller:
        """The caller whose key or token was typed in a form, or is in an address. Raises as `caller` does."""
        return await self._key_caller(keys.read(text), f"Bearer {text}", self._address(scope))

    def token_holder(self, scope: HTTPScope, tenant: str, name: str) -> Caller:
        """The caller with a valid signed token, who has no key; ``name`` says whom requests are counted for."""
        return replace(NOBODY, tenant=tenant, client=name, address=self._address(scope))

    async def token_refused(self, scope: HTTPScope, token: str) -> Refused:
        """The error for a request without a valid signed token; counts it as a failed attempt of its address."""
        mark = keys.fingerprint(token) if token else ""
        event = "trigger.wrong" if token else "key.missing"
        refused = await self._refused(event, self._address(scope), "", fingerprint=mark)
        return TokenRefused() if isinstance(refused, Unauthorized) else refused

    async def admit(self, caller: Caller) -> dict[str, str]:
        """Count the request; return the headers that say what is left. Raises `RateExceeded`."""
        if self.rates is None or self._token_rates is None:
            return {}
        if caller.token:  # first by itself: what is refused here takes nothing from the others
            self._check_rate(caller, self._token_limit, await self._token_rates.admit(caller.token))
        spent = await self.rates.admit(caller.client)
        self._check_rate(caller, self.limit, spent)
        return limit_headers([self.limit], spent)

    async def admit_jobs(self, caller: Caller, count: int) -> tuple[int, TooMany | None]:
        """Count the further jobs of one request, each as if it were one; how many are admitted, and why no more."""
        if self.rates is None or not caller.client or count < 1:
            return count, None
        admitted, spent = await self.rates.admit_many(caller.client, count)
        refused = refusal([self.limit], spent)
        if refused is not None:
            self._audit.tell("api.refused", caller, why="rate")
        return admitted, refused

    async def run_rates(self) -> None:
        """Give back what was not used, for as long as the server runs."""
        if self.rates is not None and self._token_rates is not None:
            await asyncio.gather(self.rates.run(), self._token_rates.run())

    async def close(self) -> None:
        if self.rates is not None and self._token_rates is not None:
            await self.rates.give_back()
            await self._token_rates.give_back()

    def _check_rate(self, caller: Caller, limit: Limit, spent: Spent) -> None:
        if (refused := refusal([limit], spent)) is not None:
            self._audit.tell("api.refused", caller, why="rate")
            raise refused

    def _address(self, scope: HTTPScope) -> str:
        peer = scope["client"][0] if scope["client"] else ""
        return client_address(peer, header_values(scope["headers"], b"x-forwarded-for"), self._trusted)

    async def _key_caller(self, found: keys.Presented | None, presented: str, address: str) -> Caller:
        if found is None:
            mark = keys.fingerprint(presented)
            reason = f"this key is incomplete. Copy it again: {keys.LOOKS}"
            raise await self._refused("key.malformed", address, reason, fingerprint=mark)
        key = await self._keyring.get(found.id)
        if key is None or not keys.is_digest(key.digest, found):
            mark = found.digest[:12]
            raise await self._refused("key.wrong", address, "this key does not exist here", key=key, fingerprint=mark)
        if not self._keyring.is_live(key):
            raise await self._refused("key.ended", address, "this key has expired or was revoked", key=key)
        caller = _caller(key, address)
        self._audit.tell("key.accepted", caller)
        return caller

    async def _session_caller(self, scope: HTTPScope, cookie: str, address: str) -> Caller:
        """A session that has ended does not count as a failed attempt: pages left open keep sending requests."""
        check_origin(scope)
        session = await keys.find_session(self._store, cookie)
        if session is None:
            mark = keys.fingerprint(cookie)
            raise await self._refused("session.wrong", address, "there is no such session", fingerprint=mark)
        key = await self._keyring.get(session.key_id)
        if key is None or not self._keyring.is_live(key) or not await self._keyring.is_session_live(session):
            raise Unauthorized(reason="the session has ended")
        return replace(_caller(key, address), session=session.id)

    async def _refused(
        self, event: str, address: str, reason: str, *, key: Key | None = None, fingerprint: str = ""
    ) -> Unauthorized | RateExceeded:
        counted = rate_limit_address(address)
        is_guess = event != "key.missing"
        blocked_for = self._blocked.get(counted, 0.0) - time.monotonic()
        if is_guess and blocked_for > 0:
            raise self._too_often(blocked_for)
        who = replace(NOBODY, address=address) if key is None else _caller(key, address)
        self._audit.tell(event, who, **({"fingerprint": fingerprint} if fingerprint else {}))
        if self._failed_limit and is_guess:
            charge = Charge(f"ratelimit:{FAILED_LOGINS}:{counted}", 1, self._failed_limit, FAILURES)
            spent = await self._store.spend([charge])
            if spent.refused is not None:
                self._block(counted, spent.wait)
                self._audit.tell("key.blocked", who)
                return self._too_often(spent.wait)
        return Unauthorized(reason=reason)

    def _block(self, address: str, seconds: float) -> None:
        now = time.monotonic()
        if len(self._blocked) >= MOST:
            self._blocked = {each: until for each, until in self._blocked.items() if until > now}
        if len(self._blocked) < MOST:
            self._blocked[address] = now + seconds

    def _too_often(self, wait: float) -> RateExceeded:
        limit = Limit(
            *(FAILED_LOGINS, self._failed_limit, FAILURES, "requests", RateExceeded),
            what="requests without a valid key",
            who="this address",
        )
        refused = refusal([limit], Spent(0.0, 0, (0,), wait))
        assert isinstance(refused, RateExceeded)
        return refused


def _caller(key: Key, address: str) -> Caller:
    return Caller(
        tenant=key.tenant,
        allowed=permissions(key.scopes),
        key_id=key.id,
        client=key.client if key.job_id is None else f"{key.client}/tokens",
        client_name=key.client_name,
        token="" if key.job_id is None else key.id,
        user=key.user,
        job_id=key.job_id,
        address=address,
    )


@lru_cache(maxsize=1000)
def local_caller(address: str) -> Caller:
    return replace(LOCAL, address=address)


def header_values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for header, value in headers if header == name]


def first_header(headers: Headers, name: bytes) -> str | None:
    for header, value in headers:
        if header == name:
            return value.decode("latin-1")
    return None


# The client's address, behind proxies


def networks(text: str) -> tuple[Network, ...]:
    """``127.0.0.1, 10.0.0.0/8``. Raises ValueError for anything else."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def client_address(peer: str, forwarded: Iterable[str], trusted: Sequence[Network]) -> str:
    """The address that the outermost trusted proxy reports, or the peer if that is no trusted proxy.

    ``X-Forwarded-For`` grows to the right, and anybody may send one: it is read from the right, as long as a trusted
    proxy added the next address.
    """
    hops = [hop.strip() for line in forwarded for hop in line.split(",")]
    found = peer
    while hops and _is_in(found, trusted):
        hop = _without_port(hops.pop())
        if hop is None:
            break
        found = hop
    return found


def rate_limit_address(address: str) -> str:
    """What counts as one address: an IPv6 customer has at least a /64, and would never run out of addresses."""
    found = _parse_address(address)
    if isinstance(found, IPv6Address):
        return str(IPv6Network((found, 64), strict=False))
    return address


def _without_port(hop: str) -> str | None:
    """Some proxies add the port."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    found = _parse_address(hop)
    return None if found is None else str(found)


def _is_in(address: str, trusted: Sequence[Network]) -> bool:
    found = _parse_address(address)
    return found is not None and any(found in network for network in trusted)


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


# The session cookie


def session_cookie(scope: Any) -> str:
    return cookie_name(COOKIE, scope)


def cookie_name(stem: str, scope: Any) -> str:
    """The whole name of a cookie, with the port and the path at which the browser knows us; ``__Host-`` by https.

    To a browser, all ports of a host are one: under one name, each server would take the cookies of the others for its
    own, and count their sessions as failed attempts.
    """
    host = first_header(scope["headers"], b"host") or ""
    port = host.rpartition(":")[2] if ":" in host else ""
    path = scope.get("root_path", "")
    stem = f"__Host-{stem}" if is_encrypted(scope) else stem
    return "_".join([stem, *re.findall(r"[0-9A-Za-z]+", f"{port if port.isdecimal() else ''} {path}")])


def is_encrypted(scope: Any) -> bool:
    """Whether the browser came by https, as far as we or the proxy in front of us know.

    A proxy that is not ours to trust can only make cookies stricter by claiming it.
    """
    if scope.get("scheme") == "https":
        return True
    forwarded = first_header(scope["headers"], b"x-forwarded-proto") or ""
    return forwarded.partition(",")[0].strip().lower() == "https"


def cookie_attributes(scope: Any, name: str) -> dict[str, Any]:
    """Of a cookie by `cookie_name`, also to delete it. A browser takes ``__Host-`` only for the whole host, encrypted,
    from the host itself: no other host of the domain, and no proxy, can set it."""
    return {"key": name, "path": "/", "httponly": True, "secure": is_encrypted(scope), "samesite": "lax"}


def cookie_value(scope: Any, name: str) -> str | None:
    """The cookie of exactly this name, as it was sent.

    Read by hand, and no other cookie with it. Other servers of this host have cookies too, and none of them may hide
    ours; Litestar would parse all of them and keep the last 1024 cookie headers of any client in memory.
    """
    for line in header_values(scope["headers"], b"cookie"):
        for each in line.split(";"):
            found, _, value = each.strip().partition("=")
            if found == name:
                return value
    return None


# The site that a request comes from


def check_origin(scope: HTTPScope) -> None:
    """Raises Foreign for a write that a page of another site, or an unknown one, has sent."""
    if scope["method"] in SAFE:
        return
    sites = header_values(scope["headers"], b"sec-fetch-site")
    if sites and not OURS.issuperset(sites):
        raise _foreign_page("Sec-Fetch-Site", sites)
    origins, hosts = header_values(scope["headers"], b"origin"), header_values(scope["headers"], b"host")
    if not sites and (len(origins) != 1 or len(hosts) != 1 or _host_of(origins[0]) != hosts[0]):
        raise _foreign_page("Origin", origins)


def _host_of(origin: str) -> str:
    """With the port; not by `urlsplit`, which fails on text that a client may send."""
    return origin.partition("://")[2]


def _foreign_page(name: str, values: Sequence[str]) -> Foreign:
    value = ", ".join(values)[:100]
    error = Foreign(
        f"What a page asks for has to come from our own pages: {name} was {value!r}.", name=name, value=value
    )
    error.hint = "A script uses the API, with a key. A proxy has to pass on Host."
    return error


def is_local(host: str) -> bool:
    """Whether a host, without its port, can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _check_peer(peer: tuple[str, int] | None) -> None:
    """The server may listen on a public address, and anybody can send our Host. A socket file has no address."""
    if peer is not None and _is_remote(peer[0]):
        raise Foreign(name="the address", value=peer[0])


def _check_direct(headers: Headers) -> None:
    """A request through a proxy on this machine looks like one from this machine, so refuse it. Raises Foreign."""
    for name, _ in headers:
        if name in FORWARDED:
            shown = name.decode().title()
            error = Foreign(f"Without keys, no request that a proxy forwards is served: it has {shown}.", name=shown)
            error.hint = "Call the server without the proxy, or set PACKHORSE_KEYLESS to no and send a key."
            raise error


@lru_cache(maxsize=1000)
def _is_remote(text: str) -> bool:
    try:
        return not ip_address(text).is_loopback
    except ValueError:
        return False


def _check_host(method: str, headers: Headers) -> None:
    hosts = header_values(headers, b"host")
    if len(hosts) != 1 or not _is_local_address(HOST, hosts[0]):
        raise Foreign(name="Host", value=", ".join(hosts)[:100])
    if method in SAFE:
        return
    sites = header_values(headers, b"sec-fetch-site")
    if not OURS.issuperset(sites):
        raise Foreign(name="Sec-Fetch-Site", value=", ".join(sites)[:100])
    for origin in header_values(headers, b"origin"):
        # A page that another program serves on this machine is not ours either, unless the browser says that it is:
        # then a front end's own server passes requests on under our name.
        if not _is_local_address(ORIGIN, origin) or not (sites or _host_of(origin).lower() == hosts[0].lower()):
            raise Foreign(name="Origin", value=origin[:100])


@lru_cache(maxsize=1000)
def _is_local_address(pattern: re.Pattern[str], address: str) -> bool:
    found = pattern.fullmatch(address)
    return found is not None and is_local(found["host"].strip("[]"))

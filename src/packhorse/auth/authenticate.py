"""Authenticates a request by its key or session cookie, and counts failed attempts."""

from __future__ import annotations

import time

from litestar.types import HTTPScope
from msgspec.structs import replace

from packhorse.auth import cookies, keys, sessions
from packhorse.auth.audit_log import Auditor
from packhorse.auth.caller import OPERATOR, Caller, granted
from packhorse.auth.cookies import FAILED_LOGINS
from packhorse.auth.headers import client_address, header_values, networks, rate_limit_address
from packhorse.auth.keyring import Keyring
from packhorse.auth.rate_limits import WINDOW, Limit, Rates, limit_headers, refusal
from packhorse.errors import RateExceeded, Unauthorized
from packhorse.settings import Settings
from packhorse.store.base import Charge, Spent, Store
from packhorse.store.collections.keys import Key

BEARER = "bearer "
FAILURES = 60.0
"""Window, in seconds, in which failed attempts of one address are counted."""
MOST = 10_000
"""Blocked addresses that are remembered here; for more, the store decides."""


class Door:
    def __init__(self, settings: Settings, store: Store, keyring: Keyring, audit: Auditor) -> None:
        self._store = store
        self._keyring = keyring
        self._audit = audit
        self._trusted = networks(settings.trust_proxy)
        self._failed_limit = settings.failed_limit
        self._blocked: dict[str, float] = {}
        self.limit = Limit("api", settings.api_limit, WINDOW, "requests", RateExceeded)
        self.rates = Rates(store, settings.api_limit) if settings.api_limit else None

    def address(self, scope: HTTPScope) -> str:
        peer = scope["client"][0] if scope["client"] else ""
        return client_address(peer, header_values(scope["headers"], b"x-forwarded-for"), self._trusted)

    async def caller(self, scope: HTTPScope) -> Caller:
        """Raises `Unauthorized`, or `RateExceeded` after too many failed attempts."""
        address = self.address(scope)
        presented = header_values(scope["headers"], b"authorization")
        if not presented and (cookie := cookies.session(scope)) is not None:
            return await self._session_caller(scope, cookie, address)
        if not presented:
            raise await self._refused("key.missing", address, "none was sent")
        text = presented[0]
        is_bearer = text[: len(BEARER)].lower() == BEARER and len(presented) == 1
        found = keys.read(text[len(BEARER) :].strip()) if is_bearer else None
        return await self._holder(found, ", ".join(presented), address)

    async def holder(self, scope: HTTPScope, text: str) -> Caller:
        """The caller whose key or token was typed in a form, or is in an address. Raises as `caller` does."""
        return await self._holder(keys.read(text), f"Bearer {text}", self.address(scope))

    async def _holder(self, found: keys.Presented | None, presented: str, address: str) -> Caller:
        if found is None:
            mark = keys.fingerprint(presented)
            reason = f"what was sent is not a whole one; {keys.LOOKS}"
            raise await self._refused("key.malformed", address, reason, fingerprint=mark)
        key = await self._keyring.get(found.id)
        if key is None or not keys.is_same(key, found):
            mark = found.digest[:12]
            raise await self._refused("key.wrong", address, "what was sent is not known", key=key, fingerprint=mark)
        if not self._keyring.is_live(key):
            raise await self._refused("key.ended", address, "what was sent has ended", key=key)
        caller = _caller(key, address)
        self._audit.tell("key.accepted", caller)
        return caller

    async def _session_caller(self, scope: HTTPScope, cookie: str, address: str) -> Caller:
        """A session that has ended does not count as a failed attempt: pages left open keep sending requests."""
        cookies.check_origin(scope)
        session = await sessions.find(self._store, cookie)
        if session is None:
            mark = keys.fingerprint(cookie)
            raise await self._refused("session.wrong", address, "there is no such session", fingerprint=mark)
        key = await self._keyring.get(session.key_id)
        if session.is_ended or self._store.now() >= session.ends_at or key is None or not self._keyring.is_live(key):
            raise Unauthorized(reason="the session has ended")
        return replace(_caller(key, address), session=session.id)

    async def admit(self, caller: Caller) -> dict[str, str]:
        """Count the request; return the headers that say what is left. Raises `RateExceeded`."""
        if self.rates is None:
            return {}
        standing = await self.rates.admit(caller.client)
        spent = Spent(0.0, None if standing.is_admitted else 0, (standing.left,), standing.wait)
        if (refused := refusal([self.limit], spent)) is not None:
            self._audit.tell("api.refused", caller, why="rate")
            raise refused
        return limit_headers([self.limit], spent)

    def _refuse_blocked(self, address: str) -> None:
        if self._blocked.get(rate_limit_address(address), 0.0) > time.monotonic():
            raise self._too_often(self._blocked[rate_limit_address(address)] - time.monotonic())

    async def _refused(
        self, event: str, address: str, reason: str, *, key: Key | None = None, fingerprint: str = ""
    ) -> Unauthorized | RateExceeded:
        if event != "key.missing":
            self._refuse_blocked(address)
        who = Caller(OPERATOR, frozenset(), address=address) if key is None else _caller(key, address)
        self._audit.tell(event, who, **({"fingerprint": fingerprint} if fingerprint else {}))
        if self._failed_limit and event != "key.missing":
            charge = Charge(f"ratelimit:{FAILED_LOGINS}:{rate_limit_address(address)}", 1, self._failed_limit, FAILURES)
            spent = await self._store.spend([charge])
            if spent.refused is not None:
                self._block(rate_limit_address(address), spent.wait)
                self._audit.tell("key.blocked", who)
                return self._too_often(spent.wait)
        return Unauthorized(reason=reason)

    def _block(self, address: str, seconds: float) -> None:
        if len(self._blocked) >= MOST:
            now = time.monotonic()
            self._blocked = {each: until for each, until in self._blocked.items() if until > now}
        if len(self._blocked) < MOST:
            self._blocked[address] = time.monotonic() + seconds

    def _too_often(self, wait: float) -> RateExceeded:
        limit = Limit(FAILED_LOGINS, self._failed_limit, FAILURES, "requests", RateExceeded)
        refused = refusal([limit], Spent(0.0, 0, (0,), wait))
        assert isinstance(refused, RateExceeded)
        return refused


def _caller(key: Key, address: str) -> Caller:
    return Caller(
        tenant=key.tenant,
        allowed=granted(key.scopes),
        key_id=key.id,
        client=key.client,
        user=key.user,
        job_id=key.job_id,
        address=address,
    )

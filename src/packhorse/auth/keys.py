"""Keys, tokens of one job, and browser sessions: created, read, cached, rotated and revoked.

A key is ``ph_`` + 20 characters that name it + 32 of secret + 8 of checksum, all lower case. The name is no secret and
stands for the key in every log; the checksum tells a key that was cut or mistyped from a wrong one. Only a digest of
the secret is ever stored. A session's secret looks like a key but is none: keys are never looked up among sessions, nor
the other way round.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple
from weakref import WeakValueDictionary

from packhorse.core.models import Job
from packhorse.define.validation import invalid, list_some, quote_short
from packhorse.errors import CorruptRecord, KeyNotFound, StoreError
from packhorse.log import log
from packhorse.store.base import Store
from packhorse.store.collections import keys as records
from packhorse.store.collections.keys import Key, Session

PREFIX = "ph_"
LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
"""Nothing in it can be mistaken for something else when it is read aloud."""
SECRET = 32
TEXT = re.compile(rf"{PREFIX}(?P<id>[0-9a-f]{{20}})(?P<secret>[{LETTERS}]{{{SECRET}}})(?P<sum>[0-9a-f]{{8}})")

LOOKS = f"a key is {PREFIX} and {20 + SECRET + 8} lowercase letters and digits"
"""The message for any other key."""

SCOPES = ("submit", "read", "operate", "admin")
TOKEN_SCOPES = ("read", "cancel")
"""What an end user may do with their one job."""

LONGEST = 255

FRESH = 0.5
"""Seconds for which a process trusts what it has read of a key."""
MOST = 10_000
"""Keys remembered per process. Others are read again."""
TOUCHED = 60.0
"""Seconds after which the use of a session is noted again."""


class Presented(NamedTuple):
    """A key that somebody sent: who it says it is, and what proves it."""

    id: str
    digest: str


def mint(
    tenant: str,
    scopes: Sequence[str],
    *,
    now: float,
    by: str,
    name: str = "",
    user: str | None = None,
    job_id: str | None = None,
    ends_at: float | None = None,
    client: str | None = None,
    client_name: str = "",
) -> tuple[Key, str]:
    """A new key and, this once, its text. It stands for itself, unless for another ``client``."""
    key_id = f"{int(now * 1000):012x}{secrets.token_hex(4)}"
    secret = "".join(secrets.choice(LETTERS) for _ in range(SECRET))
    key = Key(
        id=key_id,
        digest=_digest(secret),
        tenant=tenant,
        scopes=tuple(scopes),
        name=name,
        client=client or key_id,
        client_name=client_name,
        user=user,
        job_id=job_id,
        created_at=now,
        created_by=by,
        ends_at=ends_at,
    )
    return key, f"{PREFIX}{key_id}{secret}{_sum(key_id + secret)}"


def check(tenant: str, scopes: Sequence[str], name: str = "", user: str | None = None, client_name: str = "") -> None:
    """Raises InvalidInput that names what a key cannot have."""
    mistakes = [
        {"field": field, "message": f"It must have 1 to {LONGEST} characters, all printable"}
        for field, text in (
            ("tenant_id", tenant),
            ("user_id", user),
            ("name", name or None),
            ("client_name", client_name or None),
        )
        if text is not None and not (0 < len(text) <= LONGEST and text.isprintable())
    ]
    if user is not None and "admin" in scopes:
        mistakes.append({"field": "scopes", "message": "A key with the scope admin cannot be restricted to one user"})
    if not scopes:
        mistakes.append({"field": "scopes", "message": f"At least one is required: {list_some(SCOPES)}"})
    mistakes += [
        {"field": "scopes", "message": f"There is no scope {quote_short(scope)}. Scopes: {list_some(SCOPES)}"}
        for scope in scopes
        if scope not in SCOPES
    ]
    if mistakes:
        raise invalid("The key is not valid", mistakes)


def read(text: str) -> Presented | None:
    """None for what cannot be a key."""
    found = TEXT.fullmatch(text)
    if found is None or not hmac.compare_digest(found["sum"], _sum(found["id"] + found["secret"])):
        return None
    return Presented(found["id"], _digest(found["secret"]))


def is_digest(digest: str, presented: Presented) -> bool:
    """Takes as long for a wrong one as for the right one."""
    return hmac.compare_digest(digest, presented.digest)


def fingerprint(text: str) -> str:
    """What the audit may store of a text that was sent as a key, but is not one."""
    return sha256(text.encode()).hexdigest()[:12]


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


async def create(
    store: Store,
    tenant: str,
    scopes: Sequence[str],
    *,
    by: str,
    name: str = "",
    user: str | None = None,
    client_name: str = "",
    lasting: float | None = None,
) -> tuple[Key, str]:
    """The key and its text, which is not stored. Raises `InvalidInput`."""
    check(tenant, scopes, name, user, client_name)
    now = store.now()
    ends_at = None if lasting is None else now + lasting
    key, text = mint(tenant, scopes, now=now, by=by, name=name, user=user, ends_at=ends_at, client_name=client_name)
    await records.add(store, key)
    return key, text


async def create_token(store: Store, job: Job, *, by: str, client: str, lasting: float) -> tuple[Key, str]:
    """A token for one job; it is deleted with the job. Its use is charged to the key that created it."""
    now = store.now()
    key, text = mint(
        job.tenant, TOKEN_SCOPES, now=now, by=by, user=job.user, job_id=job.id, ends_at=now + lasting, client=client
    )
    await records.add(store, key)
    return key, text


async def rotate(store: Store, old: Key, *, by: str, overlap: float) -> tuple[Key, str]:
    """A key with the same rights; the old one ends after the overlap. The new key is stored first."""
    now = store.now()
    if old.ends_at is not None and old.ends_at <= now:
        raise KeyNotFound(f"The key {old.id} has ended; make a new one.", key_id=old.id)
    key, text = mint(
        old.tenant,
        old.scopes,
        now=now,
        by=by,
        name=old.name,
        user=old.user,
        ends_at=old.ends_at,
        client=old.client,
        client_name=old.client_name,
    )
    await records.add(store, key)
    await records.end(store, old.id, now + overlap, by)
    return key, text


async def revoke(store: Store, key_id: str, *, by: str) -> Key:
    ended = await records.end(store, key_id, store.now(), by)
    if ended is None:
        raise KeyNotFound(key_id=key_id)
    return ended


async def find(store: Store, key_id: str, tenant: str | None = None, *, job_id: str | None = None) -> Key:
    """A key, or a token of the job, if given; of this tenant, if given. Any other looks the same as a missing one."""
    [key] = [None] if "\0" in key_id else await records.get(store, [key_id])
    if key is None or key.job_id != job_id or tenant not in (None, key.tenant):
        raise KeyNotFound(key_id=key_id)
    return key


async def start_session(
    store: Store, key: Key, lasting: float, *, address: str = "", most: int = 0
) -> tuple[Session, str]:
    """The session and its secret, which is not stored. The session ends no later than the key.

    A key has at most ``most`` sessions: otherwise its owner could fill the store.
    """
    now = store.now()
    minted, text = mint(key.tenant, key.scopes, now=now, by=key.id)
    session = Session(
        id=minted.id,
        digest=minted.digest,
        key_id=key.id,
        created_at=now,
        ends_at=min(now + lasting, key.ends_at or now + lasting),
        tenant=key.tenant,
        address=address,
        seen_at=now,
    )
    await records.add_session(store, session, most=most)
    return session, text


async def find_session(store: Store, text: str) -> Session | None:
    """The session, which may have ended; None if there is none."""
    presented = read(text)
    [session] = [None] if presented is None else await records.get_sessions(store, [presented.id])
    if presented is None or session is None or not is_digest(session.digest, presented):
        return None
    return session


class _Watched(NamedTuple):
    """What something is streamed with."""

    key_id: str
    session_id: str


class _Read(NamedTuple):
    key: Key
    at: float


class Keyring:
    """The keys that this process has read lately.

    A key is trusted for half a second after it was read, so that most requests cost no read, and a revoked key is
    refused within a second: also for what is being streamed with it.
    """

    def __init__(self, store: Store, *, idle: float = 0.0) -> None:
        """``idle``: seconds after which an unused session ends."""
        self._store = store
        self._idle = idle
        self._known: OrderedDict[str, _Read] = OrderedDict()
        self._asked: dict[str, asyncio.Task[Key | None]] = {}
        self._ends: WeakValueDictionary[_Watched, asyncio.Event] = WeakValueDictionary()

    async def get(self, key_id: str) -> Key | None:
        """The key, ended or not; None if there is none."""
        found = self._known.get(key_id)
        if found is not None and time.monotonic() - found.at < FRESH:
            return found.key
        if key_id not in self._asked:
            self._asked[key_id] = asyncio.create_task(self._read(key_id))
        return await asyncio.shield(self._asked[key_id])

    def is_live(self, key: Key) -> bool:
        return key.ends_at is None or self._store.now() < key.ends_at

    async def is_session_live(self, session: Session) -> bool:
        """Whether it lets somebody in. If so, note about once a minute that it is used."""
        now = self._store.now()
        if session.is_over(now, self._idle):
            return False
        if self._idle and now >= session.seen_at + min(TOUCHED, self._idle / 4):
            await records.touch_session(self._store, session.id)
        return True

    def end_of(self, key_id: str, session_id: str = "") -> asyncio.Event:
        """Set when the key, or the session, has ended. It is checked for as long as somebody holds the event."""
        watched = _Watched(key_id, session_id)
        event = self._ends.get(watched)
        if event is None:
            event = self._ends[watched] = asyncio.Event()
        return event

    def forget(self, key_id: str) -> None:
        """Read it again: it was changed here."""
        self._known.pop(key_id, None)

    async def run(self) -> None:
        """Notice the end of keys that something is streamed with."""
        while True:
            await asyncio.sleep(FRESH)
            if not self._ends:
                continue
            try:
                await self._look()
            except StoreError as error:
                log.store_away(error)

    async def _look(self) -> None:
        watched = dict(self._ends)  # keeps the events alive meanwhile
        ids = list(dict.fromkeys(each.key_id for each in watched))
        try:
            found = await records.get(self._store, ids)
        except CorruptRecord:
            found = [await self._readable(key_id) for key_id in ids]
        dead = {id for id, key in zip(ids, found, strict=True) if key is None or not self.is_live(key)}
        over = await self._ended_sessions([each.session_id for each in watched if each.session_id])
        for key_id in dead:
            self.forget(key_id)
        for each, event in watched.items():
            if each.key_id in dead or each.session_id in over:
                event.set()

    async def _ended_sessions(self, ids: Sequence[str]) -> set[str]:
        if not ids:
            return set()
        now, found = self._store.now(), await records.get_sessions(self._store, ids)
        return {id for id, each in zip(ids, found, strict=True) if each is None or each.is_over(now, self._idle)}

    async def _readable(self, key_id: str) -> Key | None:
        """None if it cannot be read: it counts as ended."""
        try:
            [key] = await records.get(self._store, [key_id])
        except CorruptRecord:
            return None
        return key

    async def _read(self, key_id: str) -> Key | None:
        at = time.monotonic()
        try:
            [key] = await records.get(self._store, [key_id])
        finally:
            del self._asked[key_id]
        if key is None:
            self.forget(key_id)
            return None
        self._known[key_id] = _Read(key, at)
        self._known.move_to_end(key_id)
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        return key

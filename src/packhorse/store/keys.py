"""The contract's part about who may ask, what they did, and how much of it: keys, the audit, and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field

from packhorse.core import json


class Key(Struct, frozen=True, omit_defaults=True):
    """Who may ask, on whose behalf and for what. Of the secret only its digest is kept."""

    id: str
    """Sorts by time: 20 hex digits, 48 bits of milliseconds and 32 of chance."""
    digest: str
    """SHA-256 of the secret, in hex."""
    tenant: str
    scopes: tuple[str, ...]
    """Of submit, read, operate and admin."""
    name: str = ""
    client: str = ""
    """Whom its requests are counted for: a key made in place of another, or a token, stands for the same client."""
    user: str | None = None
    """The bound user: it acts for nobody else."""
    job_id: str | None = None
    """A token for the person who waits: for this job only, and it goes with the job."""
    created_at: float = 0.0
    created_by: str = ""
    """The id of the key that made it, or ``cli``."""
    ends_at: float | None = None
    """From then on it is refused: expiry, revocation and the overlap of a rotation are one fact."""
    ended_by: str = ""


def key_from(body: bytes) -> Key:
    """Raises CorruptRecord for what cannot be read."""
    return json.record(body, Key)


class Keys(Protocol):
    async def add_key(self, key: Key) -> None:
        """Raises `Conflict` if the id is taken, `JobNotFound` for the token of a job that is not there."""

    async def keys(self, ids: Sequence[str]) -> list[Key | None]:
        """The keys in the order asked for, None where there is none. One read for all. Raises `CorruptRecord`."""

    async def list_keys(self, tenant: str | None, *, before: str | None = None, limit: int = 50) -> list[Key]:
        """Keys of the tenant, or of all, newest first, older than the id ``before``. Tokens of jobs are not listed."""

    async def job_keys(self, job_id: str) -> list[Key]:
        """The tokens of a job, newest first."""

    async def end_key(self, key_id: str, at: float, by: str) -> Key | None:
        """Let the key end then; an end is never moved later. Returns the key as it is kept, None if it is unknown."""


DROPPED = 100
"""Sessions that have long ended which are dropped for each that begins: soon there is none left."""
REMEMBERED = 86_400.0
"""Seconds for which a session is known after its end: who comes with it was let in once, and does not guess."""


class Session(Struct, frozen=True):
    """Somebody who has logged in to the pages with a key: let in until then, or until the key ends."""

    id: str
    digest: str
    """SHA-256 of the secret, in hex."""
    key_id: str
    created_at: float
    ends_at: float
    is_ended: bool = False
    """Somebody has logged out. Not a question of clocks: no server may find that this is still to come."""


class Sessions(Protocol):
    async def add_session(self, session: Session) -> None:
        """Keep it until `REMEMBERED` after its end, at least. Some that are older are dropped on the way."""

    async def session(self, session_id: str) -> Session | None:
        """The session, though it may have ended; None if there is none. Raises `CorruptRecord`."""

    async def end_session(self, session_id: str) -> None:
        """It is ended, and `REMEMBERED` from now on; if it is unknown, or has ended before, nothing happens."""


class Entry(Struct, frozen=True, omit_defaults=True):
    """One line of the audit. ``n`` is given by the store and rises."""

    at: float
    event: str
    """``key.accepted``, ``download.completed``, ..."""
    tenant: str = ""
    """Empty where nobody was known."""
    actor: str = ""
    """The id of a key."""
    address: str = ""
    job_id: str = ""
    trace_id: str = ""
    count: int = 1
    """Equal ones in a short time are folded into one line."""
    details: Mapping[str, Any] = field(default_factory=dict)
    n: int = 0


class Audit(Protocol):
    async def audit(self, entries: Sequence[Entry], *, keep: int) -> None:
        """Append, and drop about as many of the oldest as there are beyond ``keep``, of whatever tenant."""

    async def audited(self, tenant: str | None = None, *, before: int | None = None, limit: int = 50) -> list[Entry]:
        """Entries of the tenant, or of all, newest first, with a number below ``before``."""


class Charge(NamedTuple):
    """So much of a limit per window of seconds. With another window it is another counter, whatever its name."""

    name: str
    """``ratelimit:client:ab12``, ``quota:hour:ab12``: in Redis, the key behind the prefix."""
    amount: int
    """0 only looks, and is never refused."""
    limit: int
    window: float


class Spent(Struct, frozen=True):
    at: float
    """The store's clock: the receipt that a refund needs."""
    refused: int | None
    """The index of the first charge that did not fit; nothing was added then."""
    left: tuple[int, ...]
    """Of each limit, after this. Never below 0."""
    wait: float
    """Seconds until the refused charge could fit; 0 if none was refused. One that never can: its whole window."""


class Counters(Protocol):
    """Sliding windows, each kept in `counting.BUCKETS` buckets.

    Every bucket that overlaps the window counts whole, so no stretch of that length ever holds more than the limit.
    Two processes, two machines: what is admitted is the limit exactly. The counts of the last moment may be lost with
    the server or the power: they are made at every request, and are not worth a sync of the disk.
    """

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        """Add every amount if none goes over its limit, else none: one atomic step, by the store's clock."""

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        """Take these amounts back from where a `spend` at ``at`` has put them; never below zero.

        For unsent bytes, and for a permit that is released: a charge of 1 whose window is the longest it may be held,
        so that it ends by itself if its holder dies.
        """

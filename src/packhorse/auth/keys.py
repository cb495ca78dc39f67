"""Keys as text: made, read and compared. Of the secret in them only a digest is ever kept.

``ph_`` + 20 characters that name the key + 32 of secret + 8 of checksum, all lower case. The name is no secret and
stands for the key in every log; the checksum tells a key that was cut or mistyped from a wrong one.
"""

from __future__ import annotations

import hmac
import re
import secrets
import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from packhorse.define.validation import invalid, list_some, quote_short
from packhorse.store.collections.keys import Key

PREFIX = "ph_"
LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
"""Nothing in it can be mistaken for something else when it is read aloud."""
SECRET = 32
TEXT = re.compile(rf"{PREFIX}(?P<id>[0-9a-f]{{20}})(?P<secret>[{LETTERS}]{{{SECRET}}})(?P<sum>[0-9a-f]{{8}})")

LOOKS = f"a key is {PREFIX} and {20 + SECRET + 8} digits and small letters, of which the last 8 check the others"
"""Said to whoever sent something else."""

SCOPES = ("submit", "read", "operate", "admin")
TOKEN_SCOPES = ("read", "cancel")
"""What the person who waits may do with the one job that is theirs."""

LONGEST = 255


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
        user=user,
        job_id=job_id,
        created_at=now,
        created_by=by,
        ends_at=ends_at,
    )
    return key, f"{PREFIX}{key_id}{secret}{_sum(key_id + secret)}"


def check(tenant: str, scopes: Sequence[str], name: str = "", user: str | None = None) -> None:
    """Raises InvalidInput that names what a key cannot have."""
    mistakes = [
        {"field": field, "message": f"It must have 1 to {LONGEST} characters, all printable"}
        for field, text in (("tenant_id", tenant), ("user_id", user), ("name", name or None))
        if text is not None and not (0 < len(text) <= LONGEST and text.isprintable())
    ]
    if user is not None and "admin" in scopes:
        mistakes.append({"field": "scopes", "message": "Who may make keys for anybody cannot act for one user only"})
    if not scopes:
        mistakes.append({"field": "scopes", "message": f"At least one is needed, of {list_some(SCOPES)}"})
    mistakes += [
        {"field": "scopes", "message": f"There is no scope {quote_short(scope)}; there is {list_some(SCOPES)}"}
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


def is_same(key: Key, presented: Presented) -> bool:
    return is_digest(key.digest, presented)


def is_digest(digest: str, presented: Presented) -> bool:
    """Takes as long for a wrong one as for the right one."""
    return hmac.compare_digest(digest, presented.digest)


def fingerprint(text: str) -> str:
    """What may be written down of something that was sent as a key and is none."""
    return sha256(text.encode()).hexdigest()[:12]


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"

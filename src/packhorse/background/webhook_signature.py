"""Signs what is sent to webhooks, as https://www.standardwebhooks.com describes it."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

from packhorse.errors import NoSecretKey

PREFIX = "whsec_"


def secret_of(secret_key: str, endpoint_id: str) -> str:
    """What an endpoint's messages are signed with: made anew each time, and never stored."""
    if not secret_key:
        raise NoSecretKey
    return PREFIX + b64encode(_hmac(secret_key.encode(), f"webhook:{endpoint_id}".encode())).decode()


def signed(secret: str, message_id: str, at: float, body: bytes) -> dict[str, str]:
    """The headers that tell a receiver who sent this, when, and whether it has seen it before."""
    timestamp = str(int(at))
    signature = _hmac(b64decode(secret.removeprefix(PREFIX)), f"{message_id}.{timestamp}.".encode() + body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{b64encode(signature).decode()}",
    }


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()

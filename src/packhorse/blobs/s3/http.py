"""Signed requests to a bucket (AWS Signature Version 4), retried until they are answered or time runs out.

Reading is left to obstore. It has no word for what is here: create-only objects larger than one request, uploads that
somebody left open, a page of folders, links that name the file.
"""

from __future__ import annotations

import hmac
import random
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import md5, sha256
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import httpx2
from msgspec import Struct

from packhorse.blobs.s3.address import Address, Keys
from packhorse.errors import BlobUnavailable
from packhorse.outbound.calls import tls_context

PAUSE, MAX_PAUSE = 0.05, 1.0
"""Seconds before the second try, doubling; each time a random part of it, so that not all come back at once."""

AGAIN = frozenset({408, 429, 500, 502, 503, 504})
AGAIN_CODES = frozenset({"RequestTimeout", "BadDigest", "ConditionalRequestConflict", "OperationAborted"})
"""What another try may better: the server's bad moments, bytes that changed on the way, a delete at the same time."""

UNSIGNED = "UNSIGNED-PAYLOAD"


class Patience(Struct, frozen=True):
    """How long a server is waited for. As it is here, an outage is told after 10 to 15 seconds."""

    seconds: float = 10.0
    """After the first try, in which another may begin."""
    silence: float = 5.0
    """Seconds without a byte that end a try."""


class Answer:
    """What the server said."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.body = response.content
        self.code = self._code()
        """S3's word for the error, or the status if it gave none; empty if all is well."""

    @property
    def at(self) -> float:
        """The server's time, which is the one its listings speak of."""
        return parsedate_to_datetime(self.headers["date"]).timestamp()

    def document(self) -> ElementTree.Element:
        """Without the namespace, on which servers do not agree."""
        root = ElementTree.fromstring(self.body)  # noqa: S314 (of the server that has all our objects; bounded pages)
        for each in root.iter():
            each.tag = each.tag.rpartition("}")[2]
        return root

    def _code(self) -> str:
        if b"<Error" in self.body[:1000]:  # under any status: a server may have to begin its answer before it knows
            return self.document().findtext("Code") or str(self.status)
        return str(self.status) if self.status >= 300 else ""


class Signed:
    """One bucket. Its methods block and may be called from any thread."""

    def __init__(
        self,
        address: Address,
        keys: Keys,
        connections: int,
        *,
        patience: Patience = Patience(),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._address = address
        self._keys = keys
        self._patience = patience
        self._is_down = False
        """An outage that has been told is not waited for again: one try each, until one is answered."""
        self._now = now
        limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
        self._client = httpx2.Client(
            timeout=patience.silence, limits=limits, transport=transport, verify=tls_context(address.host)
        )

    def close(self) -> None:
        self._client.close()

    def ask(
        self,
        method: str,
        key: str | None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[bytes] = (),
        expect: Collection[str] = (),
    ) -> Answer:
        """A good answer, or one with an expected code; `BlobUnavailable` if patience ends before there is one.

        Without a key it is the bucket that is asked.
        """
        path, asked = self._path(key), encode_query(query or {})
        summed = {**(headers or {}), "content-length": str(sum(map(len, body)))} | _sums(body)
        end, pause = time.monotonic() + (0 if self._is_down else self._patience.seconds), PAUSE
        while True:
            try:
                answer = self._once(method, path, asked, summed, body)
            except httpx2.TransportError as error:
                reason = str(error) or type(error).__name__
            else:
                reason = answer.code
                is_final = answer.status not in AGAIN and answer.code not in AGAIN_CODES
                self._is_down = self._is_down and not is_final
                if not answer.code or answer.code in expect:
                    return answer
                if is_final:
                    raise BlobUnavailable(reason=reason)
            wait = pause * random.uniform(0.5, 1)  # noqa: S311 (not a secret)
            if time.monotonic() + wait > end:
                self._is_down = True
                raise BlobUnavailable(reason=reason)
            time.sleep(wait)
            pause = min(2 * pause, MAX_PAUSE)

    def copy_source(self, key: str) -> str:
        """As a copy names what it is made of."""
        return quote(f"/{self._address.bucket}/{self._address.prefix}{key}", safe="/~")

    def link(self, key: str, query: Mapping[str, str], *, seconds: int) -> str:
        """An address with which anybody can read the object for so long."""
        keys, at = self._keys, _stamp(self._now())
        path = self._path(key)
        asked = {
            **query,
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{keys.access}/{self._scope(at)}",
            "X-Amz-Date": at,
            "X-Amz-Expires": str(seconds),
            "X-Amz-SignedHeaders": "host",
        }
        if keys.token:
            asked["X-Amz-Security-Token"] = keys.token
        proof = self._proof(keys, at, ["GET", path, encode_query(asked), f"host:{self._host}", "", "host", UNSIGNED])
        return f"{self._address.host}{path}?{encode_query(asked)}&X-Amz-Signature={proof}"

    def _once(self, method: str, path: str, query: str, headers: Mapping[str, str], body: Sequence[bytes]) -> Answer:
        keys, at = self._keys, _stamp(self._now())
        sent = {**headers, "x-amz-date": at} | ({"x-amz-security-token": keys.token} if keys.token else {})
        signed = {name: value for name, value in sent.items() if name.startswith("x-amz-")} | {"host": self._host}
        names = ";".join(sorted(signed))
        lines = [f"{name}:{signed[name]}" for name in sorted(signed)]
        proof = self._proof(keys, at, [method, path, query, *lines, "", names, sent["x-amz-content-sha256"]])
        sent["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.access}/{self._scope(at)}, SignedHeaders={names}, Signature={proof}"
        )
        url = f"{self._address.host}{path}" + (f"?{query}" if query else "")
        return Answer(self._client.request(method, url, headers=sent, content=iter(body)))

    @property
    def _host(self) -> str:
        return urlsplit(self._address.host).netloc

    def _path(self, key: str | None) -> str:
        return quote(self._address.root + ("" if key is None else self._address.prefix + key), safe="/~")

    def _scope(self, at: str) -> str:
        return f"{at[:8]}/{self._address.region}/s3/aws4_request"

    def _proof(self, keys: Keys, at: str, request: Iterable[str]) -> str:
        secret = f"AWS4{keys.secret}".encode()
        for part in self._scope(at).split("/"):
            secret = hmac.digest(secret, part.encode(), "sha256")
        asked = sha256("\n".join(request).encode()).hexdigest()
        return hmac.digest(secret, f"AWS4-HMAC-SHA256\n{at}\n{self._scope(at)}\n{asked}".encode(), "sha256").hex()


def encode_query(query: Mapping[str, str]) -> str:
    return "&".join(sorted(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in query.items()))


def _sums(body: Iterable[bytes]) -> dict[str, str]:
    """The server refuses a body that is not this one. Both, because not every server looks at the signed one."""
    signed, plain = sha256(), md5(usedforsecurity=False)
    for piece in body:
        signed.update(piece)
        plain.update(piece)
    return {"x-amz-content-sha256": signed.hexdigest(), "content-md5": b64encode(plain.digest()).decode()}


def _stamp(now: datetime) -> str:
    return now.strftime("%Y%m%dT%H%M%SZ")

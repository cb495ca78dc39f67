"""The address of a bucket, and signed requests to it (AWS Signature Version 4), retried until time runs out.

obstore does the reading. It cannot do what is here: create-only objects larger than one request, removal of abandoned
uploads, pages of folders, links with a file name.
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
from typing import NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree

import httpx2
from msgspec import Struct

from packhorse.blobs.base import check_key
from packhorse.errors import BlobUnavailable, PathRefused, SettingError
from packhorse.outbound.calls import tls_context

PAUSE, MAX_PAUSE = 0.05, 1.0
"""Seconds before the second try, doubling. Each pause is a random part of it, so that clients do not retry together."""

AGAIN = frozenset({408, 429, 500, 502, 503, 504})
AGAIN_CODES = frozenset({"RequestTimeout", "BadDigest", "ConditionalRequestConflict", "OperationAborted"})
"""Errors that another try may avoid: overload, bytes that changed on the way, a concurrent delete."""

UNSIGNED = "UNSIGNED-PAYLOAD"

OPTIONS = frozenset({"endpoint", "region", "path_style"})

REGION = "us-east-1"

MAX_PREFIX = 128  # bytes, with its slash: what a key leaves of the 1024 that S3 takes


class Keys(Struct, frozen=True):
    access: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        return "Keys(...)"


class Address(Struct, frozen=True):
    bucket: str
    prefix: str  # of every key, with a slash at its end; or nothing
    region: str
    host: str  # scheme and authority of every request
    root: str  # the path before every key: the bucket where it is not part of the host's name


def address(url: str, env: Mapping[str, str]) -> Address:
    """From the URL, and from the environment what the URL omits. Raises SettingError for a secret: URLs are shown."""
    try:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        prefix = unquote(parts.path).strip("/")
        if prefix and len(check_key(prefix).encode()) >= MAX_PREFIX:
            raise PathRefused(key=prefix)
    except (ValueError, PathRefused):
        _refuse("must be s3://BUCKET/PREFIX")
    if "@" in parts.netloc or not given.keys() <= OPTIONS:
        _refuse(f"takes only {', '.join(sorted(OPTIONS))}; a key belongs into PACKHORSE_S3_ACCESS_KEY")
    bucket = parts.netloc
    if not bucket or parts.fragment or ":" in bucket:
        _refuse("must be s3://BUCKET/PREFIX")
    region = given.get("region") or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or REGION
    own = given.get("endpoint") or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or ""
    scheme, _, host = (own or f"https://s3.{region}.amazonaws.com").rstrip("/").partition("://")
    if scheme not in ("http", "https") or not host or set(host) & set("@/?# "):
        _refuse("needs an endpoint such as https://HOST:PORT")
    # TLS does not work for a bucket with a dot in its name; self-hosted servers mostly have no host name per bucket.
    in_path = {"1": True, "0": False, "": bool(own) or "." in bucket}.get(given.get("path_style", ""))
    if in_path is None:
        _refuse("takes path_style=0 or path_style=1")
    return Address(
        bucket=bucket,
        prefix=f"{prefix}/" if prefix else "",
        region=region,
        host=f"{scheme}://{host}" if in_path else f"{scheme}://{bucket}.{host}",
        root=f"/{bucket}/" if in_path else "/",
    )


def keys(access: str, secret: str, env: Mapping[str, str]) -> Keys:
    """Those given, else those of the environment, never one of each."""
    found = Keys(access, secret)
    if not access and not secret:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        found = Keys(*(env.get(name, "") for name in names))
    if not found.access or not found.secret:
        raise SettingError(
            "PACKHORSE_BLOBS names a bucket: set PACKHORSE_S3_ACCESS_KEY and PACKHORSE_S3_SECRET_KEY, "
            "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
            name="blobs",
        )
    return found


def _refuse(reason: str) -> NoReturn:
    """Without the address itself, which may contain a secret."""
    raise SettingError(f"PACKHORSE_BLOBS {reason}.", name="blobs")


class Patience(Struct, frozen=True):
    """How long to wait for a server. With the defaults, an outage is reported after 10 to 15 seconds."""

    seconds: float = 10.0  # after the first try; no other begins later
    silence: float = 5.0  # seconds without a byte that end a try


class Answer:
    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.body = response.content
        self.code = self._code()
        """S3's code of the error, or the status if there is none; empty for a success."""

    @property
    def at(self) -> float:
        """The server's time, as in its listings."""
        return parsedate_to_datetime(self.headers["date"]).timestamp()

    def document(self) -> ElementTree.Element:
        """Without the namespace, which differs between servers."""
        root = ElementTree.fromstring(self.body)  # noqa: S314 (of the server that has all our objects; bounded pages)
        for each in root.iter():
            each.tag = each.tag.rpartition("}")[2]
        return root

    def _code(self) -> str:
        if b"<Error" in self.body[:1000]:  # under any status: a server may begin its answer before it fails
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
        """After a reported outage, each request gets one try until one is answered."""
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
        digest: str = "",
        expect: Collection[str] = (),
    ) -> Answer:
        """A successful answer, or one with an expected code. Raises `BlobUnavailable` if there is none in time.

        Without a key, the request is about the bucket. ``digest`` is the SHA-256 of the body if the caller has it.
        """
        path, asked = self._path(key), encode_query(query or {})
        summed = {**(headers or {}), "content-length": str(sum(map(len, body)))} | _sums(body, digest)
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
        """The name of the source in a copy request."""
        return quote(f"/{self._address.bucket}/{self._address.prefix}{key}", safe="/~")

    def link(self, key: str, query: Mapping[str, str], *, seconds: int) -> str:
        """A URL with which anybody can read the object for ``seconds``."""
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


def _sums(body: Iterable[bytes], digest: str) -> dict[str, str]:
    """The server refuses a body with other checksums. Both, because not every server checks the signed one."""
    signed, plain = sha256(), md5(usedforsecurity=False)
    for piece in body:
        plain.update(piece)
        if not digest:
            signed.update(piece)
    return {"x-amz-content-sha256": digest or signed.hexdigest(), "content-md5": b64encode(plain.digest()).decode()}


def _stamp(now: datetime) -> str:
    return now.strftime("%Y%m%dT%H%M%SZ")

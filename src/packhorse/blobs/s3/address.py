"""Address and keys of a bucket, from `s3://bucket/prefix?endpoint=...` and the AWS_* environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from packhorse.blobs.base import check_key
from packhorse.errors import PathRefused, SettingError

OPTIONS = frozenset({"endpoint", "region", "path_style"})

REGION = "us-east-1"

MAX_PREFIX = 128
"""Bytes, with its slash: what a key leaves of the 1024 that S3 takes."""


class Keys(Struct, frozen=True):
    access: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        return "Keys(...)"


class Address(Struct, frozen=True):
    bucket: str
    prefix: str
    """Of every key, with a slash at its end; or nothing."""
    region: str
    host: str
    """Scheme and authority of every request."""
    root: str
    """The path before every key: the bucket where it is not part of the host's name."""


def address(url: str, env: Mapping[str, str]) -> Address:
    """What the URL says, and the environment where it says nothing. A secret in it is refused: addresses are shown."""
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
    # A bucket with a dot in its name has no certificate; a server of one's own mostly has no name for each bucket.
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
    """Those given, else those of the environment, and never one of each."""
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
    """Without the address itself: what is wrong with it may be that it holds a secret."""
    raise SettingError(f"PACKHORSE_BLOBS {reason}.", name="blobs")

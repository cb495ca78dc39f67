"""Whom we trust at the other end of a connection."""

from __future__ import annotations

import ssl

import httpx2


def trust(url: str) -> ssl.SSLContext:
    """Where nothing is encrypted nobody need vouch: to read all who could takes longer than most requests."""
    if url.lower().startswith("https:"):
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody, should the way lead to TLS all the same

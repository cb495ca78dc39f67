"""TLS context for outgoing connections."""

from __future__ import annotations

import ssl

import httpx2


def trust(url: str) -> ssl.SSLContext:
    """The TLS context for a URL. Loading all certificates is slow, so plain HTTP gets an empty context."""
    if url.lower().startswith("https:"):
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no certificate, in case of a redirect to https

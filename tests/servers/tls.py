"""TLS in front of a server that has none: a proxy with a certificate of its own; and how tests read those of others."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path

import httpcore2


def read_authorities_once() -> None:
    """Let all HTTP clients of this process share the certificates they trust: to read them takes 18 ms, for each."""
    read = httpcore2.default_ssl_context

    @cache
    def shared(trust_env: bool, *_places: str | None) -> ssl.SSLContext:
        return read(_trust_env=trust_env)

    def default_ssl_context(*, _trust_env: bool = True) -> ssl.SSLContext:
        return shared(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    httpcore2.default_ssl_context = default_ssl_context


def certificate(folder: Path, name: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A new key and a certificate for the name that only itself vouches for."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", f"/CN={name.partition(':')[2]}", "-addext", f"subjectAltName={name}"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*made, "-keyout", key, "-out", cert, *subject], check=True, capture_output=True)
    return key, cert


@asynccontextmanager
async def proxy(port: int, key: Path, cert: Path) -> AsyncIterator[int]:
    """A port on which the server behind the other port is reached by TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(_pass(reader, behind_writer), _pass(behind_reader, writer))
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

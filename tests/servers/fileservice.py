"""A file service behind OAuth 2 client credentials, on a socket of this machine, that misbehaves as it is told."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from base64 import b64decode, b64encode
from collections import deque
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, unquote_plus

CLIENT, SECRET = "packhorse client", "s3cr:t/%canary"


class FileService:
    """Files in memory, by their path. ``faults`` are taken one per PUT: a status, ``drop``, ``silence``, or None."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.released = threading.Event()
        self.reset()
        service = self

        class Handler(_Handler):
            own = service

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def settings(self) -> dict[str, Any]:
        return {
            "promote_to": f"{self.url}/kept/here",
            "promote_token_url": f"{self.url}/token",
            "promote_client_id": CLIENT,
            "promote_client_secret": SECRET,
            "promote_scope": "files.write",
            "promote_timeout": 1,
        }

    def reset(self, *, keep: bool = False) -> None:
        """As it was at first; with its files, if they are to be kept. What waits in silence is let go."""
        self.released.set()
        self.released = threading.Event()
        self.files = dict(self.files) if keep else {}
        self.faults: deque[int | str | None] = deque()
        self.token_faults: deque[int | str | None] = deque()
        self.puts: list[str] = []
        self.tokens: list[str] = []
        self.scopes: list[str | None] = []
        self.good: set[str] = set()
        self.expires_in: float = 3600
        self.tells_sums = True

    def revoke(self) -> None:
        """Whatever was granted is not good any more, before its time."""
        self.good.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    own: FileService
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self._misbehaves(self.own.token_faults):
            return
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        kind, _, proof = self.headers["authorization"].partition(" ")
        names = [unquote_plus(each) for each in b64decode(proof).decode().split(":")]
        if kind != "Basic" or names != [CLIENT, SECRET] or asked.get("grant_type") != "client_credentials":
            self._answer(401, b"{}")
            return
        token = secrets.token_hex(8)
        self.own.good.add(token)
        self.own.tokens.append(token)
        self.own.scopes.append(asked.get("scope"))
        granted = {"access_token": token, "token_type": "Bearer", "expires_in": self.own.expires_in}
        self._answer(200, json.dumps(granted).encode())

    def do_HEAD(self) -> None:
        if not self._is_known():
            self._answer(401)
        elif (kept := self.own.files.get(self._path)) is None:
            self._answer(404)
        else:
            self._answer(200, kept, **({"Repr-Digest": _digest(kept)} if self.own.tells_sums else {}))

    def do_PUT(self) -> None:
        self.own.puts.append(self._path)
        if self.own.faults and self.own.faults[0] == "drop":
            self.own.faults.popleft()
            self.rfile.read(10)
            self._drop()
            return
        body = self.rfile.read(int(self.headers["content-length"]))
        if self._misbehaves(self.own.faults):
            return
        if not self._is_known():
            self._answer(401)
        elif len(body) != int(self.headers["content-length"]) or self.headers["repr-digest"] != _digest(body):
            self._answer(422)
        else:
            self.own.files[self._path] = body
            self._answer(201)

    @property
    def _path(self) -> str:
        return unquote(self.path)

    def _is_known(self) -> bool:
        return self.headers.get("authorization", "").removeprefix("Bearer ") in self.own.good

    def _misbehaves(self, faults: deque[int | str | None]) -> bool:
        fault = faults.popleft() if faults else None
        if fault == "silence":
            self.own.released.wait(10)
            self._drop()
        elif fault == "drop":
            self._drop()
        elif fault is not None:
            self._answer(int(fault), b'{"error": "echo of s3cr:t/%canary"}')
        return fault is not None

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def _digest(body: bytes) -> str:
    return f"sha-256=:{b64encode(sha256(body).digest()).decode()}:"

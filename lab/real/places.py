"""Where a round takes place: a real store with everything that can go wrong underneath its clients.

Each process of packhorse has its own way to the store, a TCP proxy, so that one of them can be cut off alone.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.servers import seaweed
from tests.servers.flaky import Flaky
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.servers.valkey import Cluster, Sentinel, Valkey

from lab.real import tools
from lab.real.faulty import HOST, Bucket, Clock, Disk, ProcessClock, join_env

PREFIX = "{b}:"
"""Of all keys in Redis. Its slot is 3300, which the first of three masters has."""
MASTER = "lab"
DAY = 86_400.0


class Place:
    """A folder for SQLite and files; other stores add their servers. Blocking calls are short, or before the load."""

    store = "sqlite"

    def __init__(self, *, with_s3: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="packhorse-lab-"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.data.mkdir()
        self.disk = Disk(self.folder, "disk")
        self.clocks = [ProcessClock(self.folder, f"process{n}") for n in range(4)]
        """Of packhorse's own processes: the server, then the workers."""
        self.bucket: Bucket | None = None
        self._s3 = seaweed.Seaweed() if with_s3 else None
        self.ways: list[Flaky] = []

    async def start(self, processes: int) -> None:
        await self.start_store()
        for _ in range(processes if self._port() else 0):
            way = Flaky(self._port())
            await way.open()
            self.ways.append(way)
        if self._s3 is not None:
            self._s3.start()
            self.bucket = Bucket(self._s3.port)
            await self.bucket.open()

    async def close(self) -> None:
        self.disk.set()
        for way in (*self.ways, *([self.bucket] if self.bucket else [])):
            await way.close()
        await self.close_store()
        if self._s3 is not None:
            self._s3.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def settings(self, number: int | None) -> dict[str, str]:
        """The addresses for a process of packhorse; for the lab itself, which goes there directly, with None."""
        found = {"store": self.address(None if number is None or not self.ways else self.ways[number].port)}
        if self._s3 is not None:
            assert self.bucket is not None
            port = None if number is None else self.bucket.port
            keys = seaweed.KEYS
            blobs = self._s3.url(f"{seaweed.BUCKET}/lab", port)
            return found | {"blobs": blobs, "s3_access_key": keys.access, "s3_secret_key": keys.secret}
        return found | {"blobs": f"file://{self.data / 'blobs'}"}

    def env(self, number: int) -> dict[str, str]:
        """Variables for a process of packhorse."""
        return join_env(self.disk.env(str(self.data)), self.clocks[number].env())

    # The store itself.

    def address(self, port: int | None) -> str:  # noqa: ARG002 (SQLite has none)
        return f"sqlite://{self.data / 'store.db'}"

    def _port(self) -> int:
        return 0

    async def start_store(self) -> None: ...

    async def close_store(self) -> None: ...


class Served(Place, ABC):
    """A place whose store is a server, with a disk and a clock of its own."""

    def __init__(self, *, with_s3: bool = False) -> None:
        super().__init__(with_s3=with_s3)
        self.clock = Clock(self.folder, "server")
        self.server_disk = Disk(self.folder, "server-disk")

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL every process of the store."""

    @abstractmethod
    def restart(self) -> None:
        """Start it on the same port and data, if it does not run."""

    @abstractmethod
    def pause(self) -> None:
        """SIGSTOP every process of the store."""

    @abstractmethod
    def resume(self) -> None:
        """SIGCONT them."""

    def server_env(self, root: str) -> dict[str, str]:
        return join_env(self.server_disk.env(root), self.clock.env())


class OnPostgres(Served):
    store = "postgresql"

    async def start_store(self) -> None:
        self.server = Postgres(env=self.server_env("{folder}"))

    async def close_store(self) -> None:
        self.server_disk.set()
        if self.server.is_running:
            self.server.resume()
        self.server.close()

    def address(self, port: int | None) -> str:
        return f"postgresql://postgres@{HOST}:{port or self.server.port}/postgres?schema=lab"

    def _port(self) -> int:
        assert self.server.port is not None
        return self.server.port

    def kill(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        if not self.server.is_running:
            self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()


class BehindPgbouncer(OnPostgres):
    """Every process reaches PostgreSQL through one pgbouncer in transaction mode."""

    async def start_store(self) -> None:
        await super().start_store()
        self.pool_port = free_port()
        config = self.folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n* = host={HOST} port={self.server.port} user=postgres\n[pgbouncer]\nlisten_addr={HOST}\n"
            f"listen_port={self.pool_port}\nauth_type=any\npool_mode=transaction\ndefault_pool_size=20\n"
            "max_client_conn=300\nunix_socket_dir=\nlogfile=\nadmin_users=postgres\nserver_login_retry=1\n"
        )
        self.start_pool()

    def start_pool(self) -> None:
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to be run by root
            nobody = pwd.getpwnam("nobody")
            identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.pool = subprocess.Popen(
            [tools.pgbouncer(), "-q", str(self.folder / "pgbouncer.ini")],
            **identity,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill_pool(self) -> None:
        self.pool.send_signal(signal.SIGKILL)
        self.pool.wait()

    async def close_store(self) -> None:
        self.kill_pool()
        await super().close_store()

    def address(self, port: int | None) -> str:
        if port is None:
            return super().address(None)
        return f"postgresql://postgres@{HOST}:{port}/postgres?schema=lab&statement_cache_size=0"

    def _port(self) -> int:
        return self.pool_port


class OnRedis(Served):
    store = "redis"

    async def start_store(self) -> None:
        self.server = Valkey()
        self.server.env = self.server_env(str(self.server.folder))
        self.server.start()

    async def close_store(self) -> None:
        self.server_disk.set()
        self.server.remove()

    def address(self, port: int | None) -> str:
        return f"redis://{HOST}:{port or self.server.port}?prefix={PREFIX}"

    def _port(self) -> int:
        return self.server.port

    def kill(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        if self.server.process is None or self.server.process.poll() is not None:
            self.server.start()

    def pause(self) -> None:
        self.server.freeze()

    def resume(self) -> None:
        self.server.thaw()


class WithSentinel(Place):
    """A master, a replica and a sentinel that makes the replica the master if that one dies."""

    store = "redis"

    async def start_store(self) -> None:
        self.master = Valkey().start()
        self.replica = Valkey("--replicaof", HOST, str(self.master.port)).start()
        self.sentinel = Sentinel(MASTER, self.master.port)
        self.sentinel.start()
        with self.sentinel.client() as client:
            client.execute_command("SENTINEL", "SET", MASTER, "failover-timeout", "3000")
            await _until(lambda: len(client.execute_command("SENTINEL", "REPLICAS", MASTER)) == 1)
        with self.replica.client() as client:
            await _until(lambda: client.info("replication")["master_link_status"] == "up")

    async def close_store(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.remove()

    def address(self, port: int | None) -> str:  # noqa: ARG002 (the sentinel says where the master is)
        return f"redis+sentinel://{HOST}:{self.sentinel.port}/{MASTER}?prefix={PREFIX}"

    async def fail_over(self) -> None:
        """Kill the master; the sentinel notices, and promotes the replica. Then the old one returns as a replica."""
        self.master.kill()
        with self.replica.client() as client:
            await _until(lambda: client.info("replication")["role"] == "master")
        self.master.start()


class OnCluster(Place):
    """Three masters, and a replica of the one that has the keys."""

    store = "redis"

    async def start_store(self) -> None:
        bounds = [(0, 5460), (5461, 10_922), (10_923, 16_383)]
        self.masters = [Cluster(first, last) for first, last in bounds]
        self.replica = Cluster()
        nodes = [*self.masters, self.replica]
        for master in self.masters:
            master.begin()
        Valkey.start(self.replica)
        for node in nodes:
            with node.client() as client:
                client.config_set("cluster-node-timeout", 1500)
        with self.masters[0].client() as client:
            home = client.execute_command("CLUSTER", "MYID").decode()
            for node in nodes[1:]:
                client.execute_command("CLUSTER", "MEET", HOST, node.port, node.bus)
            await _until(lambda: client.execute_command("CLUSTER INFO")["cluster_known_nodes"] == "4")
        with self.replica.client() as client:
            await _until(lambda: _replicates(client, home))
        for node in nodes:
            node.settle()

    async def close_store(self) -> None:
        for node in (*self.masters, self.replica):
            node.remove()

    def address(self, port: int | None) -> str:  # noqa: ARG002 (the cluster says where a slot is)
        nodes = ",".join(f"{HOST}:{node.port}" for node in self.masters)
        return f"redis+cluster://{nodes}?prefix={PREFIX}"

    async def lose_node(self) -> None:
        """Kill the master that has the keys; the others make its replica the master. Then the old one returns."""
        self.masters[0].kill()
        with self.replica.client() as client:
            await _until(lambda: client.info("replication")["role"] == "master")
        Valkey.start(self.masters[0])


def _replicates(client: Any, master: str) -> bool:
    try:
        client.execute_command("CLUSTER", "REPLICATE", master)
    except Exception:  # broad: it does not know that node yet, or is still getting to know it
        return False
    return bool(client.info("replication")["master_link_status"] == "up")


async def _until(condition: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("The store did not get there in time.")
        await asyncio.sleep(0.05)


PLACES: dict[str, type[Place]] = {
    "sqlite": Place,
    "postgresql": OnPostgres,
    "pgbouncer": BehindPgbouncer,
    "redis": OnRedis,
    "sentinel": WithSentinel,
    "cluster": OnCluster,
}

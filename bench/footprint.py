"""What a job costs and leaves behind, counted in each store: ``python -m bench.footprint [--jobs N]``.

Counts and bytes, not times: they are the same on a busy machine. docs/scaling.md does its arithmetic with them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import asyncpg
from tests.servers import postgres
from tests.servers.valkey import Valkey

from packhorse.define.registry import load as load_code
from packhorse.define.submit import Options
from packhorse.runtime import Runtime
from packhorse.settings import load

APP = """
from packhorse import App, Context, Params, needs

app = App("footprint")


class Nothing(Params):
    text: str = "a parameter of some forty characters in all"


one = app.pipeline("one", Nothing)
three = app.pipeline("three", Nothing)


@one.stage
def only(ctx: Context, p: Nothing) -> int:
    return 1


@three.stage
def first(ctx: Context, p: Nothing) -> int:
    return 1


@three.stage
def second(ctx: Context, p: Nothing, x: int = needs(first)) -> int:
    return x + 1


@three.stage
def third(ctx: Context, p: Nothing, x: int = needs(second)) -> int:
    return x + 1
"""

Counts = dict[str, float]


class Kind(NamedTuple):
    name: str
    url: str
    look: Callable[[], Counts]


def sqlite(folder: Path) -> Kind:
    path = folder / "jobs.db"

    def count() -> Counts:
        if not path.exists():
            return {}
        with closing(apsw.Connection(str(path))) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            pages = db.execute("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count").get
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            rows = {f"rows {name}": float(db.execute(f'SELECT count(*) FROM "{name}"').get) for name in names}
            return rows | {"bytes": pages * float(db.execute("PRAGMA page_size").get)}

    return Kind("SQLite", f"sqlite://{path}", count)


def postgresql(_: Path) -> Kind:
    url = postgres.server().url("footprint")

    async def counted() -> Counts:
        db = await asyncpg.connect(url.partition("?")[0])
        try:
            tables = [
                row["tablename"] for row in await db.fetch("SELECT * FROM pg_tables WHERE schemaname = 'footprint'")
            ]
            found: Counts = {}
            for name in tables:
                await db.execute(f"VACUUM (FULL, ANALYZE) footprint.{name}")
                found[f"rows {name}"] = float(await db.fetchval(f"SELECT count(*) FROM footprint.{name}"))
            size = "SELECT sum(pg_total_relation_size(format('footprint.%I', tablename)::regclass)) FROM pg_tables"
            found["bytes"] = float(await db.fetchval(f"{size} WHERE schemaname = 'footprint'") or 0)
            return found
        finally:
            await db.close()

    return Kind("PostgreSQL", url, lambda: asyncio.run(counted()))


def redis(_: Path) -> Kind:
    server = Valkey().start()

    def count() -> Counts:
        with server.client() as client:
            stats: dict[str, Any] = client.info("commandstats")
            facts: dict[str, Any] = client.info("all")
        own = {"cmdstat_info", "cmdstat_config|get"}
        calls = sum(each["calls"] for name, each in stats.items() if name not in own)
        facts = {
            "commands": calls,
            "keys": facts["db0"]["keys"] if "db0" in facts else 0,
            "bytes": facts["used_memory"],
        }
        return {name: float(value) for name, value in facts.items()}

    return Kind("Redis", server.url(), count)


async def carried(url: str, app: Path, pipeline: str, jobs: int) -> None:
    """Submit so many and wait until they have ended."""
    settings = load({"store": url, "blobs": f"file://{app.parent / 'blobs'}"}, env={}, folder=app.parent).settings
    runtime, code = Runtime(settings), load_code(str(app))
    chosen = code.pipelines[pipeline]
    options = Options(user="ann")
    handles = await asyncio.gather(*(runtime.a_submit(chosen, chosen.params(), options) for _ in range(jobs)))
    for handle in handles:
        await handle.a_wait()
    await asyncio.to_thread(runtime.close)


def measured(kind: Kind, app: Path, pipeline: str, jobs: int) -> Counts:
    before = kind.look()
    asyncio.run(carried(kind.url, app, pipeline, jobs))
    after = kind.look()
    return {name: (after[name] - before.get(name, 0)) / jobs for name in after}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    jobs: int = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as name:
        for make in (sqlite, postgresql, redis):
            folder = Path(name) / make.__name__  # each store needs an object store of its own
            folder.mkdir()
            app = folder / "app.py"
            app.write_text(APP)
            kind = make(folder)
            env = {each: value for each, value in os.environ.items() if not each.startswith("PACKHORSE_")}
            worker = subprocess.Popen(
                [sys.executable, "-m", "packhorse.cli", "worker", str(app), "--store", kind.url],
                env=env | {"PACKHORSE_BLOBS": f"file://{folder / 'blobs'}", "PACKHORSE_LOG_LEVEL": "warning"},
                cwd=folder,
            )
            try:
                asyncio.run(carried(kind.url, app, "one", 50))
                for pipeline in ("one", "three"):
                    counts = measured(kind, app, pipeline, jobs)
                    shown = ", ".join(f"{name} {value:.2f}" for name, value in counts.items() if round(value, 2))
                    print(f"{kind.name}, a job of {pipeline} stage(s) that has ended: {shown}", flush=True)
            finally:
                worker.terminate()
                worker.wait(60)


if __name__ == "__main__":
    main()

"""The server's own settings, each with what it means for the promise."""

from __future__ import annotations

import time

from packhorse.store import sql_files
from packhorse.store.base import Finding
from packhorse.store.postgres.connection import Session

OLDEST = 14
DRIFT = 1.0
"""Seconds that this machine's clock may differ from the server's before somebody should know."""

SQL = sql_files.load(__package__, "check")


async def findings(session: Session) -> list[Finding]:
    found = await session.row(SQL.settings)
    assert found is not None
    before = time.time()
    server = await session.value(SQL.now)
    drift = server - (before + time.time()) / 2
    syncs = found["synchronous_commit"]
    return [
        Finding(
            "PostgreSQL version",
            found["version"] >= OLDEST * 10_000,
            found["shown"],
            f"older than {OLDEST} is not supported",
        ),
        Finding(
            "synchronous_commit",
            syncs in ("on", "remote_apply", "remote_write", "local"),
            syncs,
            "off: a job whose submit was acknowledged may be lost when the server crashes",
        ),
        Finding("fsync", found["fsync"] == "on", found["fsync"], "on: a job survives a power cut"),
        Finding(
            "full_page_writes",
            found["full_page_writes"] == "on",
            found["full_page_writes"],
            "off: a power cut may tear a page, unless the disk cannot",
        ),
        Finding(
            "autovacuum",
            found["autovacuum"] == "on",
            found["autovacuum"],
            "off: the queue grows slower with every job that went through it",
        ),
        Finding(
            "server_encoding", found["encoding"] == "UTF8", found["encoding"], "another one cannot hold every name"
        ),
        Finding(
            "role",
            not found["is_standby"],
            "standby" if found["is_standby"] else "primary",
            "a standby cannot be written to",
        ),
        Finding(
            "clock",
            abs(drift) < DRIFT,
            f"{drift:+.3f} s",
            "the server's, against this machine's: deadlines go by the server's, files and logs by this one's",
        ),
        Finding(
            "connections",
            found["used"] < 0.9 * found["most"],
            f"{found['used']} of {found['most']}",
            "each process of packhorse takes up to six",
        ),
    ]

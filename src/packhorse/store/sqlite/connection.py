"""Opening a database file: the settings the promise depends on, and the migrations."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import apsw

from packhorse.errors import SchemaTooNew, StoreUnavailable

PATIENCE = 10.0
"""Seconds to wait for another process's write lock before giving up."""

STATEMENTS = 300
"""Prepared statements kept: more than this adapter has."""


class Session(apsw.Connection):
    """A connection, and what is known of the transaction that is open in it."""

    touched: set[str]
    """Jobs with something new, told to watchers in one row when the transaction ends."""
    is_promoted: bool
    """Whether this transaction has looked for delayed entries that are due."""

    def begin(self) -> None:
        """IMMEDIATE takes the write lock before reading.

        A deferred transaction would read an old snapshot and fail, or worse decide on it, when it turns into a write.
        """
        self.touched, self.is_promoted = set(), False
        self.execute("BEGIN IMMEDIATE")


SYNCS = {"normal": 1, "full": 2}
"""What SQLite calls them: full survives a power cut, normal only a crash."""


def connect(path: Path, *, read_only: bool = False, synchronous: str = "full") -> Session:
    """A connection with settings checked, not assumed: another default would break the promise silently."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOMUTEX
    try:
        db = Session(str(path), flags=flags, statementcachesize=STATEMENTS)
        db.set_busy_handler(_wait_a_little())
        # Plans do not depend on bound values. Else SQLite plans a query again at each use, to look at its LIMIT.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        mode = _into_wal(db)
        db.pragma("synchronous", synchronous)
        # A savepoint keeps what it may have to put back, past 64 KiB in a file: that was a third of a commit's work.
        db.pragma("temp_store", "memory")
        db.pragma("cache_size", -32_000)
        db.pragma("journal_size_limit", 64 * 1024 * 1024)
        if read_only:
            db.pragma("query_only", True)
        given = db.pragma("synchronous")
    except apsw.Error as error:
        raise StoreUnavailable(f"SQLite cannot open {path}: {error}") from error
    if mode != "wal" or given != SYNCS[synchronous]:
        raise StoreUnavailable(
            f"SQLite gave journal_mode={mode}, synchronous={given} for {path};"
            f" need wal, {SYNCS[synchronous]} ({synchronous})."
        )
    return db


def _into_wal(db: apsw.Connection) -> object:
    """The journal mode, asked for again while it is busy.

    Of two processes that make a new file together, SQLite tells one "busy" without asking its busy handler.
    """
    wait, calls = _wait_a_little(), 0
    while True:
        try:
            return db.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if not wait(calls):
                raise
            calls += 1


def migrate(db: apsw.Connection, scripts: list[tuple[int, str]] | None = None) -> int:
    """Bring an older schema up to this one; refuse a newer one. Returns the version it found."""
    scripts = scripts if scripts is not None else list(migrations())
    known = scripts[-1][0]
    found = _version(db)
    if found < known:
        # The write lock before looking: two processes that start together migrate one after the other.
        db.execute("BEGIN IMMEDIATE")
        try:
            found = _version(db)
            for version, script in scripts:
                if version > found:
                    db.execute(script)
                    db.pragma("user_version", version)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # a full disk makes SQLite roll back by itself
                db.execute("ROLLBACK")
            raise
    if found > known:
        raise SchemaTooNew(found=found, known=known)
    return found


def migrations() -> Iterator[tuple[int, str]]:
    folder = resources.files(__package__) / "migrations"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".sql"):
            yield int(entry.name.removesuffix(".sql")), entry.read_text()


def _version(db: apsw.Connection) -> int:
    version = db.pragma("user_version")
    assert isinstance(version, int)
    return version


class _wait_a_little:
    """A busy handler: a millisecond or two, spread so that two writers do not keep meeting.

    SQLite's own backs off to 100 ms, which is a hundred commits of the process that holds the lock.
    """

    def __init__(self) -> None:
        self.since = 0.0

    def __call__(self, calls: int) -> bool:
        if calls == 0:
            self.since = time.monotonic()
        if time.monotonic() - self.since > PATIENCE:
            return False
        time.sleep(random.uniform(0.0005, 0.002))  # noqa: S311
        return True

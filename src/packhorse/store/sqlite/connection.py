"""Opening a database file: the settings the promise depends on, and the migrations."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import apsw

from packhorse.errors import SchemaTooNew, StoreUnavailable
from packhorse.store import sql_files

MIGRATIONS = sql_files.migrations(__package__)

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
    foremost: dict[tuple[str, tuple[str, ...]], tuple[int, str] | None]
    """Rank and job of the most urgent entry by queue and kinds, as this transaction first saw it."""
    is_limited: bool | None
    """Whether any task is parked or takes turns, once it was asked."""
    limits: dict[str, int] | None
    """What operators have set, once it was read."""
    waiting: dict[str, list[Sequence[Any]]]
    """Rows that are only to be added, by the statement that inserts one."""
    added: int
    """Of the changes so far, those that added rows which had been waiting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._forget()

    def begin(self) -> None:
        """IMMEDIATE takes the write lock before reading.

        A deferred transaction would read an old snapshot and fail, or worse decide on it, when it turns into a write.
        """
        self._forget()
        self.execute("BEGIN IMMEDIATE")

    def execute(self, *args: Any, **kwargs: Any) -> apsw.Cursor:
        if self.waiting:  # so that every read sees them
            self.add_all()
        return super().execute(*args, **kwargs)

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The only row that a statement returns. Read to its end, which is when SQLite has written what it writes."""
        [row] = self.execute(statement, values).fetchall()
        return row

    def later(self, insert: str, row: Sequence[Any]) -> None:
        """Add a row when somebody looks, or at the end: those of a group travel together, and so cost half as much.

        A statement lets go of the interpreter and has to win it back from the thread that serves requests. Raises
        nothing: what is wrong with a row is found when it is added.
        """
        self.waiting.setdefault(insert, []).append(row)

    def add_all(self) -> None:
        """Raises `NotAdded`, and then some of them may be there."""
        waiting, self.waiting = self.waiting, {}
        before = self.total_changes()
        try:
            for insert, rows in waiting.items():
                for start, count in _shares(len(rows)):
                    share = rows[start : start + count]
                    super().execute(_together(insert, count), list(chain.from_iterable(share)))
        except Exception as error:  # broad: a value that cannot be bound is no error of SQLite's, and loses as much
            raise NotAdded from error
        self.added += self.total_changes() - before

    def roll_back(self) -> None:
        self._forget()
        self.execute("ROLLBACK")

    def _forget(self) -> None:
        self.touched, self.is_promoted, self.foremost, self.waiting, self.added = set(), False, {}, {}, 0
        self.limits = self.is_limited = None


class NotAdded(BaseException):
    """Rows that had been waiting could not be added. Not an error of the read that had them added."""


SHARES = (64, 16, 4, 1)
"""Rows that are added by one statement; few sizes, because each is a statement to be prepared."""


def _shares(count: int) -> Iterator[tuple[int, int]]:
    start = 0
    for size in SHARES:
        while count - start >= size:
            yield start, size
            start += size


@cache
def _together(insert: str, count: int) -> str:
    """The statement for ``count`` rows, from the one for a single row."""
    beginning, row = insert.split("VALUES")
    return f"{beginning}VALUES {', '.join([row] * count)}"


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


def migrate(db: apsw.Connection, scripts: Sequence[tuple[int, str]] = MIGRATIONS) -> int:
    """Bring an older schema up to this one; refuse a newer one. Returns the version it found."""
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

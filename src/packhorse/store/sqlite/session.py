"""Which thread does what: a few readers, and one writer that makes all waiting work one transaction, with one sync."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

import apsw

from packhorse.core import json
from packhorse.crashpoints import reach
from packhorse.errors import PackhorseError, StoreUnavailable, UnknownOutcome
from packhorse.store import sql_files
from packhorse.store.rows import Plans
from packhorse.store.sqlite.connection import NotAdded, Session, connect, migrate

H = TypeVar("H", bound="Handle")
P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[[Session], T]

SQL = sql_files.load(__package__, "watch")

READERS = 2

GROUP = 512
"""Operations in one transaction at most, so that the first caller does not wait for ever more to join."""
IN_MEMORY = ":memory:"  # SQLite's name for a database without a file
TAKEN_BACK = "SQLite took the transaction back: is the disk full?"


class Handle:
    """A database file that is open: its threads, and what is known about it. The parts of the store build on it."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.now = clock
        self._plans = Plans()
        self._local = threading.local()
        self._connections: list[Session] = []
        self._watcher = _open(path)
        try:
            migrate(self._watcher)
            self._writer = Writer(connect(path), _announce)
        except BaseException as error:
            self._watcher.close()
            if isinstance(error, apsw.Error):
                raise StoreUnavailable(f"SQLite cannot migrate {path}: {error}") from error
            raise
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="packhorse-sqlite-reader")

    @classmethod
    async def open(cls, path: Path, clock: Callable[[], float] = time.time) -> Self:
        return await asyncio.to_thread(cls, path, clock)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        self._readers.shutdown()
        for connection in (*self._connections, self._watcher):
            connection.close()

    async def _read(self, question: Operation[T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, lambda: question(self._db()))
        except (apsw.Error, RuntimeError) as error:
            raise StoreUnavailable(f"SQLite: {error}") from error

    def _db(self) -> Session:
        if not hasattr(self._local, "db"):
            self._local.db = connect(self.path, read_only=True)
            self._connections.append(self._local.db)
        db: Session = self._local.db
        return db


def read(
    question: Callable[Concatenate[H, Session, P], T],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """The method runs on a reader thread, with a connection that cannot write."""

    @wraps(question)
    async def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(lambda db: question(self, db, *args, **kwargs))

    return method


def write(
    operation: Callable[Concatenate[H, Session, P], T],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """The method runs on the writer thread, in its transaction, and is committed when it returns."""

    @wraps(operation)
    async def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writer.run(lambda db: operation(self, db, *args, **kwargs))

    return method


def _open(path: Path) -> Session:
    """Folders that are new are synced into those above them: SQLite syncs only the folder that its file is in."""
    if path.name == IN_MEMORY:
        raise StoreUnavailable("SQLite needs a file: several processes share it. Give a path.")
    folder = path.absolute().parent
    missing = [each for each in folder.parents if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for new in (folder, *missing):  # the last one in any case: another process may have made it just now
            with contextlib.suppress(PermissionError):  # then it is not ours, and not new
                _sync(new.parent)
        # For nobody else, whatever the umask is. SQLite gives -wal and -shm the same mode.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            _sync(folder)
    except OSError as error:
        raise StoreUnavailable(f"SQLite cannot open {path}: {error}") from error
    return connect(path)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _announce(db: Session) -> None:
    """Tell watchers which jobs have something new, once for the whole transaction."""
    if db.touched:
        db.execute(SQL.announce, (json.encode(db.touched),))


class _Waiting(NamedTuple):
    operation: Operation[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Writer:
    def __init__(self, db: Session, last: Callable[[Session], None]) -> None:
        """``last`` is done once at the end of every transaction."""
        self._last = last
        self._inbox: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, args=(db,), name="packhorse-sqlite-writer", daemon=True)
        self._thread.start()

    async def run(self, operation: Operation[T]) -> T:
        """Commit what the operation does, together with whatever else is waiting. Its errors are its own."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:  # what came in behind the word to stop would never be answered
            if self._is_closed:
                raise StoreUnavailable("The store is closed.")
            self._inbox.put(_Waiting(operation, loop, future))
        return await future

    def close(self) -> None:
        """Commit what is waiting, then stop."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._inbox.put(None)
        self._thread.join()

    def _work(self, db: Session) -> None:
        with contextlib.closing(db):
            while group := self._next_group():
                self._answer(group, self._transact(db, [waiting.operation for waiting in group]))

    def _next_group(self) -> list[_Waiting]:
        """Wait for one operation, then take all that came meanwhile. No timer: an idle store answers at once."""
        group: list[_Waiting] = []
        with contextlib.suppress(queue.Empty):
            while len(group) < GROUP:
                waiting = self._inbox.get(block=not group)
                if waiting is None:
                    if group:
                        self._inbox.put(None)  # answer the group first, then stop at the next turn
                    break
                group.append(waiting)
        return group

    def _transact(self, db: Session, operations: list[Operation[Any]]) -> list[Any]:
        """Outcomes, an exception being one of them."""
        reach("store.write.before")
        try:
            db.begin()
        except apsw.Error as error:
            return [_unavailable(error) for _ in operations]
        try:
            outcomes = _all(db, operations)
            self._last(db)
        except Exception as error:  # broad: a member could not be taken back, or the end failed; nobody's work may stay
            _roll_back(db)
            return [StoreUnavailable(str(error)) for _ in operations]
        reach("store.write.open")
        try:
            db.execute("COMMIT")
        except apsw.Error as error:
            _roll_back(db)
            return [_unknown(error) for _ in operations]
        reach("store.write.after")
        return outcomes

    @staticmethod
    def _answer(group: list[_Waiting], outcomes: list[Any]) -> None:
        """One wake-up per event loop, not per operation."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
        for waiting, outcome in zip(group, outcomes, strict=True):
            by_loop.setdefault(waiting.loop, []).append((waiting.future, outcome))
        for loop, answers in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed: its callers are gone, the others are not
                loop.call_soon_threadsafe(_resolve, answers)


class _Mode(threading.local):
    is_careful = False
    """Every member in a savepoint. That costs as much as writing a row, and hardly any member fails after its first."""


_mode = _Mode()


class _HalfDone(BaseException):
    """A member failed after it had written: the group has to be done again, carefully."""


def _all(db: Session, operations: list[Operation[Any]]) -> list[Any]:
    try:
        outcomes = [alone(db, operation) for operation in operations]
        db.add_all()
    except (_HalfDone, NotAdded):
        if not db.in_transaction:
            raise StoreUnavailable(TAKEN_BACK) from None
        db.roll_back()
        db.begin()
    else:
        return outcomes
    _mode.is_careful = True
    try:
        return [alone(db, operation) for operation in operations]
    finally:
        _mode.is_careful = False


def is_careful() -> bool:
    return _mode.is_careful


def alone(db: Session, operation: Operation[Any]) -> Any:
    """Run one operation: a failure takes back its own writes, nobody else's, and is the outcome.

    A refusal comes before the first write, so there is nothing to take back. Raises `StoreUnavailable` when that is not
    possible any more: the whole transaction is lost.
    """
    if _mode.is_careful:
        return _in_savepoint(db, operation)
    before = db.total_changes() - db.added
    try:
        return operation(db)
    except Exception as error:  # broad: whatever one member trips over must not take its neighbours along
        if not db.in_transaction:
            raise StoreUnavailable(TAKEN_BACK) from error
        if db.total_changes() - db.added != before:
            raise _HalfDone from error
        return _unavailable(error) if isinstance(error, apsw.Error) else error


def _in_savepoint(db: Session, operation: Operation[Any]) -> Any:
    db.execute("SAVEPOINT one")
    try:
        outcome = operation(db)
    except Exception as error:  # broad: whatever one member trips over must not take its neighbours along
        _take_back(db)
        return _unavailable(error) if isinstance(error, apsw.Error) else error
    db.execute("RELEASE one")
    return outcome


def _take_back(db: Session) -> None:
    if not db.in_transaction:
        raise StoreUnavailable(TAKEN_BACK)
    try:
        db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")
        db.is_promoted = False  # what was made ready may be delayed again
        db.limits = db.is_limited = None
    except apsw.Error as error:
        raise _unavailable(error) from error


def _roll_back(db: Session) -> None:
    with contextlib.suppress(apsw.Error):
        db.roll_back()


def _resolve(answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in answers:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _unavailable(error: apsw.Error) -> StoreUnavailable:
    return StoreUnavailable(f"SQLite: {error}")


def _unknown(error: apsw.Error) -> PackhorseError:
    """A commit that failed on input or output may still be found by the next reader; any other failure is a no."""
    return UnknownOutcome(f"SQLite: {error}") if isinstance(error, apsw.IOError) else _unavailable(error)

"""SQLite: the store of one machine. Open it with `SqliteStore.open(path)`."""

from packhorse.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]

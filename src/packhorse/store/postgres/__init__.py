"""PostgreSQL: the store of many machines. Open it with `PostgresStore.open(url)`."""

from packhorse.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]

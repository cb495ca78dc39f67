"""Schemas move forward only: an older one is brought up to this one, a newer one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from packhorse.errors import SchemaTooNew
from packhorse.store import sql_files
from packhorse.store.postgres.connection import BEGIN, Session

MIGRATING = 600.0
"""Seconds a migration may take."""

SQL = sql_files.load(__package__, "migrate")


async def migrate(session: Session, schema: str, scripts: list[tuple[int, str]] | None = None) -> int:
    """Returns the version it found."""
    scripts = scripts if scripts is not None else list(migrations())
    known = scripts[-1][0]
    found = await _version(session, schema)
    if found < known:
        await session.run(BEGIN)
        try:
            # The lock before looking: two processes that start together migrate one after the other.
            await session.value(SQL.lock, schema)
            found = await _version(session, schema)
            if found == 0:
                await _prepare(session, schema)
            for version, script in scripts:
                if version > found:
                    await session.run(script)
                    await session.value(SQL.set_version, version)
            await session.commit()
        except BaseException:
            await session.roll_back()
            raise
    if found > known:
        raise SchemaTooNew(found=found, known=known)
    return found


def migrations() -> Iterator[tuple[int, str]]:
    folder = resources.files(__package__) / "migrations"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".sql"):
            yield int(entry.name.removesuffix(".sql")), entry.read_text()


async def _version(session: Session, schema: str) -> int:
    if not await session.value(SQL.has_version, schema):
        return 0
    version = await session.value(SQL.version)
    assert isinstance(version, int)
    return version


async def _prepare(session: Session, schema: str) -> None:
    """The schema may have been made for us by somebody who does not let us make any."""
    if not await session.value(SQL.has_schema, schema):
        await session.run(f'CREATE SCHEMA "{schema}"')
    await session.run(SQL.create_version)

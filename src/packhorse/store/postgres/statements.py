"""The parts that a write is put together from, and the one statement that makes them all or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import asyncpg

from packhorse.store import sql_files
from packhorse.store.postgres.connection import Clock, Row, Session

PARTS = sql_files.load(__package__, "parts")

Parts = dict[str, Sequence[Any]]
"""By name, the values of each part."""


class Outdated(Exception):
    """What was taken for granted does not hold: the group is rolled back, and looks before it writes."""


def columns(found: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    return list(zip(*found, strict=True))


async def write(
    session: Session, parts: Parts, clock: Clock, counts: Mapping[str, int] = MappingProxyType({}), *,
    is_last: bool = False,
) -> Row | None:  # fmt: skip
    """Write the parts in one statement, if of each in ``counts`` so many rows are found. Raises `Outdated` if not."""
    if not parts:
        return None
    values = (each for given in parts.values() for each in given)
    ask = session.whole if is_last else session.fetch
    try:
        [found] = await ask(_statement(tuple(parts), tuple(counts)), *values, *counts.values())
    except asyncpg.RaiseError as error:
        raise Outdated from error
    clock.adjust(found["now"])
    return found


@cache
def _statement(names: tuple[str, ...], counted: tuple[str, ...]) -> str:
    """Where a count is not what it must be, `expect` raises, and the server takes back the whole statement.

    The first that differs ends it: what comes after has not waited for anybody.
    """
    parts = ", ".join(f"{name} AS ({PARTS[name]})" for name in names)
    answers = "".join(f", ({PARTS[f'answer_{name}']}) AS {name}" for name in names if f"answer_{name}" in PARTS)
    conditions = " AND ".join(f"({_count(name)}) = %::int8" for name in counted) or "true"
    pieces = f"WITH {parts} SELECT @now() AS now, @expect({conditions}){answers}".split("%")
    return "".join(piece if n == 0 else f"${n}{piece}" for n, piece in enumerate(pieces))


def _count(name: str) -> str:
    return PARTS.get(f"count_{name}", f"SELECT count(*) FROM {name}")

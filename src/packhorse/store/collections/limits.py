"""What operators have set for limits, with its versions: who, when, why, and the number before.

The record is written first, then the number in force (`Limits.set_limit`). Who dies in between leaves the record ahead;
`apply_limits` makes up for it, and may be called at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from packhorse.core import json
from packhorse.core.records import Put, Record
from packhorse.errors import Conflict
from packhorse.store.base import Store
from packhorse.store.collections.base import by_id, readable, scan_all, update

SET_LIMIT = "limit"
VERSIONS = 50
"""Versions that are kept."""


class Version(Struct, frozen=True, omit_defaults=True):
    version: int
    most: int | None
    """None: the numbers of the plans apply again."""
    at: float
    by: str
    reason: str = ""


class SetLimit(Struct, frozen=True):
    name: str
    versions: tuple[Version, ...]
    """Newest first."""

    @property
    def newest(self) -> Version:
        return self.versions[0]


async def put_limit(
    store: Store, name: str, most: int | None, *, by: str, reason: str, expected: int | None = None
) -> SetLimit:
    """Set the number of a limit, or with None remove it. Raises `Conflict` if the version is not the ``expected``."""

    def decide(found: Record | None) -> tuple[Put, SetLimit]:
        before = () if found is None else json.record(found.body, SetLimit).versions
        newest = before[0].version if before else 0
        if expected not in (None, newest):
            raise _Outdated
        version = Version(newest + 1, most, store.now(), by, reason)
        made = SetLimit(name, (version, *before)[:VERSIONS])
        stamp = 0 if found is None else found.stamp
        return Put(SET_LIMIT, name, json.encode(made), stamp=stamp, index=by_id(name)), made

    try:
        made = await update(store, SET_LIMIT, name, decide)
    except _Outdated:
        raise Conflict(f"The limit {name} was changed in the meantime.", kind=SET_LIMIT, id=name) from None
    await _enforce(store, name)
    return made


class _Outdated(Exception):
    """Is no `Conflict`, which `update` would retry."""


async def list_limits(store: Store) -> dict[str, SetLimit]:
    found: Sequence[SetLimit] = readable(
        await scan_all(store, SET_LIMIT), lambda each: json.record(each.body, SetLimit)
    )
    return {each.name: each for each in found}


async def apply_limits(store: Store) -> None:
    """Put in force what is written. Does nothing where it is in force already."""
    for name in await list_limits(store):
        await _enforce(store, name)


async def _enforce(store: Store, name: str) -> None:
    """Until nobody has written meanwhile: of several who do, the last one must not put an older number in force."""
    [found] = await store.fetch(SET_LIMIT, [name])
    while found is not None:
        await store.set_limit(name, json.record(found.body, SetLimit).newest.most)
        [again] = await store.fetch(SET_LIMIT, [name])
        if again is None or again.stamp == found.stamp:
            return
        found = again

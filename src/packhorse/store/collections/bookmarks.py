"""Bookmarks: small texts in which background roles of all workers note where they are."""

from __future__ import annotations

from packhorse.core import json
from packhorse.core.records import Put
from packhorse.store.base import Records

KIND = "bookmark"


async def get(store: Records, name: str) -> str | None:
    [found] = await store.fetch(KIND, [name])
    return None if found is None else json.record(found.body, str)


async def put(store: Records, name: str, value: str) -> None:
    await store.put([Put(KIND, name, json.encode(value))])

"""Pipeline definitions that workers publish: schema and graph, for servers that import no user code."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.plan import Definition
from packhorse.core.records import Put
from packhorse.store.base import Records
from packhorse.store.collections.base import by_id, list_by_id
from packhorse.store.tolerant_reads import readable

KIND = "definition"


async def publish(store: Records, definitions: Sequence[Definition]) -> None:
    now = store.now()
    puts = [
        Put(KIND, each.pipeline, json.encode(replace(each, published_at=now)), index=by_id(each.pipeline))
        for each in definitions
    ]
    await store.put(puts)


async def list_all(store: Records) -> list[Definition]:
    """By pipeline. One that cannot be read is logged and left out, until its worker publishes it again."""
    return list(readable(((found.id, found.body) for found in await list_by_id(store, KIND)), Definition))

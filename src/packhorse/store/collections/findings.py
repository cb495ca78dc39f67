"""Findings of the health check: what workers last found of each part, for those who only read."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core import json
from packhorse.core.records import Put
from packhorse.store.base import Finding, Records
from packhorse.store.collections.base import by_id, list_by_id

KIND = "finding"


async def save(store: Records, findings: Sequence[Finding]) -> None:
    """Keep what was found of each part, in place of what was found before."""
    puts = [Put(KIND, each.part, json.encode(each), index=by_id(each.part)) for each in findings]
    await store.put(puts, quiet=True)


async def list_all(store: Records) -> list[Finding]:
    """By part. How old a finding may be is for the reader to judge: it has a time."""
    return [json.record(found.body, Finding) for found in await list_by_id(store, KIND)]

"""How much: counters, which a group of callers locks together, judges one after the other and writes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from packhorse.core import json
from packhorse.store import rate_window
from packhorse.store.base import Charge, Spent
from packhorse.store.postgres.connection import NOW, Clock, Session
from packhorse.store.rate_window import Buckets, Counter

# In the order of names, like everybody: whoever waits for a lock holds none that a holder of it waits for. One that is
# not there cannot be locked, so it is made; of one that is there the update changes nothing. The commit does not wait
# for the disk: a crash of the server may forget the counts of its last moment, and a busy one counts at every request.
LOCK = f"""
INSERT INTO @counters AS c (name, seconds, until, buckets)
SELECT name, seconds, 0, '{{}}' FROM unnest($1::text[], $2::float8[]) AS n (name, seconds)
ORDER BY name COLLATE "C", seconds
ON CONFLICT (name, seconds) DO UPDATE SET until = c.until
RETURNING name, seconds, buckets, {NOW} AS now, set_config('synchronous_commit', 'off', TRUE)
"""

KEEP = """
UPDATE @counters AS c SET until = n.until, buckets = n.buckets
FROM unnest($1::text[], $2::float8[], $3::float8[], $4::bytea[]) AS n (name, seconds, until, buckets)
WHERE (c.name, c.seconds) = (n.name, n.seconds)
"""

# What somebody holds is just being counted, and is passed by.
TRIM = f"""
DELETE FROM @counters AS c USING (
    SELECT name, seconds FROM @counters WHERE until <= (SELECT coalesce($1, {NOW})) FOR UPDATE SKIP LOCKED
) AS over
WHERE (c.name, c.seconds) = (over.name, over.seconds)
"""


class Ask(NamedTuple):
    """A spend, or the refund of what was spent at that time."""

    charges: Sequence[Charge]
    at: float | None = None


async def count_all(session: Session, asks: Sequence[Ask], clock: Clock) -> list[Spent]:
    """What each caller is told, who comes first first; of a refund that is nothing of interest."""
    stored, now = await _locked(session, rate_window.counters(charge for ask in asks for charge in ask.charges), clock)
    kept: dict[Counter, Buckets] = {each: json.record(body, Buckets) for each, body in stored.items()}
    answers = [_counted(kept, ask, now) for ask in asks]
    written = {each: json.encode(buckets) for each, buckets in kept.items()}
    moved = [
        (*each, rate_window.until(each[1], kept[each]), body) for each, body in written.items() if body != stored[each]
    ]
    if moved:
        await session.fetch(KEEP, *zip(*moved, strict=True))
    return answers


async def trim(session: Session, clock: Clock) -> None:
    await session.fetch(TRIM, clock.parameter())


async def _locked(session: Session, names: Sequence[Counter], clock: Clock) -> tuple[dict[Counter, bytes], float]:
    """What is kept of the counters, and the time when the last of them was ours."""
    if not names:
        return {}, clock.now()
    found = await session.fetch(LOCK, *zip(*names, strict=True))
    given, now = clock.parameter(), max(row["now"] for row in found)
    return {(row["name"], row["seconds"]): row["buckets"] for row in found}, now if given is None else given


def _counted(kept: dict[Counter, Buckets], ask: Ask, now: float) -> Spent:
    if ask.at is None:
        return rate_window.spend(kept, ask.charges, now)
    rate_window.refund(kept, ask.charges, ask.at)
    return Spent(now, None, (), 0.0)

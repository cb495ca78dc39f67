"""Workers that are killed and stopped while ten keys are full: no limit is exceeded, no room is lost, nothing leaks."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from packhorse.core.plan import Status
from packhorse.runtime import Handle
from tests.contract.limited import LIMITED
from tests.journey.places import PLACES
from tests.journey.site import LEASE, Site, descendants
from tests.journey.stages import GUARDED
from tests.servers.forks import Started
from tests.tiers import is_release

USERS = ("ann", "bob")
WORKERS, SECONDS, JOBS = (8, 60.0, 400) if is_release() else (3, 3.0, 40)
"""Workers at a time, how long they are harmed, and jobs for each key per number of its limit."""


class Held(NamedTuple):
    """A time in which an attempt ran, as its stage and the end of its process tell it."""

    begin: float
    end: float
    job_id: str


class Fleet:
    """Workers, and when their processes died or stopped."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site = site
        self.chance = chance
        self.alive: list[Started] = []
        self.gone: dict[int, list[float]] = {}
        """By process: when it died or stopped, so that what it had begun may count no longer."""
        for _ in range(WORKERS):
            self.add()

    def add(self) -> None:
        self.alive.append(self.site.start_worker(slots=12))

    def _take(self) -> Started:
        return self.alive.pop(self.chance.randrange(len(self.alive)))

    def _note(self, pids: Iterable[int]) -> None:
        for pid in pids:
            self.gone.setdefault(pid, []).append(time.monotonic())

    async def kill(self) -> None:
        victim = self._take()
        pids = [child.pid for child in descendants(victim)]
        victim.kill()
        await asyncio.to_thread(victim.wait)
        self._note(pids)
        self.add()

    async def stop(self) -> None:
        """The whole worker sleeps, for less than a lease or for more."""
        victim = self._take()
        await self.site.stop(victim)
        children = list(descendants(victim))
        for child in children:
            child.suspend()
        self._note(child.pid for child in children)
        await asyncio.sleep(LEASE * self.chance.choice((0.2, 1.6)))  # how long it sleeps, not a wait for anything
        for child in children:
            child.resume()
        victim.send_signal(signal.SIGCONT)
        self.alive.append(victim)


def times(site: Site, gone: dict[int, list[float]]) -> Iterator[Held]:
    """When each attempt ran: until its stage said so, or until its process was gone if another attempt followed."""
    ledger = site.ledger()
    ends = {(entry.job_id, entry.attempt, entry.pid): entry.at for entry in ledger if entry.what == "end"}
    last = {entry.job_id: entry.attempt for entry in ledger if entry.what == "begin"}
    for entry in ledger:
        if entry.what != "begin":
            continue
        end = ends.get((entry.job_id, entry.attempt, entry.pid))
        lost = min((at for at in gone.get(entry.pid, ()) if at >= entry.at), default=entry.at)
        if end is None or (entry.attempt < last[entry.job_id] and entry.at < lost < end):
            end = lost
        yield Held(entry.at, end, entry.job_id)


def most_together(held: list[Held]) -> int:
    moments = sorted([(each.begin, 1) for each in held] + [(each.end, -1) for each in held])
    running = most = 0
    for _, step in moments:
        running += step
        most = max(most, running)
    return most


@pytest.mark.parametrize("site", [name for name in PLACES if name in LIMITED], indirect=True)
async def test_limits_hold_while_workers_are_killed_and_stopped(site: Site) -> None:
    chance = random.Random(7)
    fleet = Fleet(site, chance)
    keys = [(most, user) for most in GUARDED for user in USERS]
    handles: dict[str, tuple[int, str]] = {}

    async def submit(count: int, seconds: float) -> list[Handle[object]]:
        made = []
        for most, user in keys:
            for _ in range(most * count):
                made.append(await site.submit(GUARDED[most], user=user, seconds=seconds))
                handles[made[-1].id] = most, user
        return made

    first = await submit(JOBS // 20, 0.1)
    await site.started(first[0])
    until_then = time.monotonic() + SECONDS
    while time.monotonic() < until_then:
        await chance.choice((fleet.kill, fleet.kill, fleet.stop))()
        if sum(each.begin > 0 for each in times(site, fleet.gone)) > 0.8 * len(handles):
            first += await submit(2, 0.1)

    # All of the room is used again, although nothing but ends of tasks wakes what waits.
    last = await submit(3, 2.0)
    store = await site.store()
    ended = [await site.ended(handle, 120.0) for handle in first + last]

    assert {job.status for job in ended} == {Status.COMPLETED}
    by_key: dict[tuple[int, str], list[Held]] = {key: [] for key in keys}
    for each in times(site, fleet.gone):
        by_key[handles[each.job_id]].append(each)
    together = {key: most_together(held) for key, held in by_key.items()}
    afterwards = {each.id for each in last}
    again = {key: most_together([each for each in held if each.job_id in afterwards]) for key, held in by_key.items()}
    assert all(count <= most for (most, _), count in together.items()), together
    assert all(count == most for (most, _), count in again.items()), f"room was left unused: {again}"
    assert await store.limit_states() == []
    await site.assert_whole()

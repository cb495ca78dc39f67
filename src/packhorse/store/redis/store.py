"""The Redis store: its parts put together; leases, sweeps and purges; and the check of the server's own settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from packhorse.core.models import Job, TaskId
from packhorse.errors import PackhorseError, StoreError
from packhorse.store.base import Claim, Decide, Finding, Lease, OverdueTasks, Renewal
from packhorse.store.redis import keys
from packhorse.store.redis.claim import Claimer
from packhorse.store.redis.client import Address
from packhorse.store.redis.commit import CommitStore
from packhorse.store.redis.counters import CounterStore
from packhorse.store.redis.failures import FailureStore
from packhorse.store.redis.limits import LimitStore
from packhorse.store.redis.reads import ReadStore, drop_index_entry
from packhorse.store.redis.records import RecordStore
from packhorse.store.redis.rows import FIELDS, jobs_from
from packhorse.store.redis.session import pack, pack_effects
from packhorse.store.redis.views import ViewStore
from packhorse.store.redis.watch import WatchStore

FEED = "2500"
"""Entries of the feed kept for watchers that are a little behind. A watcher that is further behind reads everything."""
MANY = 200
"""Leases renewed by one script, and ended jobs cleared in one trim."""
ENDED = ("purge", "litter", *(keys.index(name) for name in keys.WHOLE))
"""Indexes that an ended job may be in and that are found without its record. From the others `find` takes it."""

OLDEST = (7, 0)
"""The oldest version of a server that is supported."""
AHEAD = 1.0
"""Seconds by which the clocks may differ before somebody should look."""
MEANINGS = {
    "server version": "versions before 7.0 can stop a script halfway",
    "append-only file": "without it, a restart loses all jobs since the last snapshot",
    "appendfsync": "not readable here; ask the operator: jobs survive a power cut only with `always`",
    "last write of the file": "after a failed write the server refuses new jobs: check whether the disk is full",
    "maxmemory-policy": "any other policy than noeviction deletes jobs when memory runs short",
    "prefix": "all keys are in the slot of this prefix: one server of the cluster holds this deployment",
    "clock": "packhorse uses the server's clock; with a difference, times look wrong on this machine",
}
SYNCS = {
    "always": "an acknowledged job survives a power cut",
    "everysec": "up to a second of acknowledged jobs can be lost in a power cut; a crash of the server loses none",
    "no": "up to about half a minute of acknowledged jobs is lost in a power cut",
}


class RedisStore(CommitStore, ReadStore, RecordStore, FailureStore, CounterStore, WatchStore, ViewStore, LimitStore):
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._claim = Claimer(self._link, self.now, self._write, self._plans)
        self._closing.insert(0, self._claim.close)

    # Queue

    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        return await self._claim(wants, kinds, decide)

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        self._open()
        states = await (self._lease_states(leases) if seconds is None else self._renew(leases, seconds))

        def those(wanted: str) -> frozenset[Lease]:
            return frozenset(lease for lease, state in zip(leases, states, strict=True) if state == wanted)

        return Renewal(those("lost"), those("stopping"))

    async def _renew(self, leases: Sequence[Lease], seconds: float) -> list[str]:
        states: list[str] = []
        for first in range(0, len(leases), MANY):
            page = leases[first : first + MANY]
            flat = [text for lease in page for text in (lease.job_id, _entry(lease), lease.token)]
            words = await self._link.run("renew", self.now.argument(), seconds, pack(flat))
            states += [word.decode() for word in words]
        return states

    async def _lease_states(self, leases: Sequence[Lease]) -> list[str]:
        questions = [
            question
            for lease in leases
            for question in (["HGET", "holders", _entry(lease)], ["HGET", keys.job(lease.job_id), "stopping"])
        ]
        answers = await self._link.ask(questions)
        states = []
        for lease, held, stopping in zip(leases, answers[::2], answers[1::2], strict=True):
            is_ours = held is not None and held.decode().partition("\t")[0] == lease.token
            states.append("lost" if not is_ours else "stopping" if stopping else "")
        return states

    # Sweeps: pages of an index with their jobs. They skip what cannot be read; a read of it raises.

    async def overdue(
        self, limit: int, *, queued_after: float | None = None, leased_after: float | None = None
    ) -> OverdueTasks:
        sent = time.monotonic()
        index, which = "leases", "past" if leased_after is None else str(leased_after)
        if queued_after is not None:
            index, which = "queued", str(queued_after)
        now, found = await self._sweep(index, which, limit)
        self.now.learn(now, sent)
        return OverdueTasks(now, [(job, keys.entry_from(entry)[1]) for entry, job in found])

    async def held_by(self, worker: str, limit: int) -> list[tuple[Job, TaskId]]:
        _, found = await self._sweep(worker, "held", limit)
        return [(job, keys.entry_from(entry)[1]) for entry, job in found]

    async def expired(self, limit: int) -> list[Job]:
        return [job for _, job in (await self._sweep("deadlines", "past", limit))[1]]

    async def purgeable(self, limit: int) -> list[Job]:
        """Begun purges first, whatever the time: the clock that decided them may have been ahead of this one."""
        _, begun = await self._sweep("purging", "all", limit)
        _, over = await self._sweep("purge", "past", limit - len(begun)) if len(begun) < limit else (0.0, [])
        return [job for _, job in begun + over]

    async def jobs_with_litter(self, limit: int) -> list[Job]:
        return [job for _, job in (await self._sweep("litter", "all", limit))[1]]

    async def _sweep(self, index: str, which: str, limit: int) -> tuple[float, list[tuple[str, Job]]]:
        """The time that the server judged the first page by, and what it found."""
        found: list[tuple[str, Job]] = []
        passed, now = 0, self.now()
        while len(found) < limit:
            at, *flat = await self._link.run("sweep", self.now.argument(), index, which, passed, limit, *FIELDS)
            now = float(at) if passed == 0 else now
            members = [member.decode() for member in flat[::2]]
            ids = [member.partition(" ")[0] for member in members]
            jobs = dict(await jobs_from(list(zip(ids, flat[1::2], strict=True)), self._plans, self._link.ask))
            for member, job_id in zip(members, ids, strict=True):
                if isinstance(job := jobs.get(job_id), Job):
                    found.append((member, job))
            passed += len(members)
            if len(members) < limit:
                break
        return now, found[:limit]

    # Purges

    async def erase(self, job_id: str) -> None:
        """The job's state need not be readable for that."""
        wanted = ("version", "lineage", "is_purging", "tenant", "user", "pipeline", "key", "plan")
        [row] = await self._link.ask([["HMGET", keys.job(job_id), *wanted]])
        version, lineage, is_purging, *rest = (None if value is None else value.decode() for value in row)
        if version is None or not is_purging:
            return
        tenant, user, pipeline, key, plan = (value or "" for value in rest)
        of = (keys.job, keys.events, keys.changes, keys.result, keys.output, keys.log, keys.progress)
        gone = [each(job_id) for each in of] + [keys.metrics(job_id, what) for what in ("cpu", "memory", "duration")]
        gone += [keys.stage(job_id, name) for name in await self._stage_names(plan, job_id)]
        if key:
            gone.append(keys.idempotency(key))
        pair = keys.pair(tenant, pipeline)
        indexes = [keys.index(name, of) for name in keys.WHOLE for of in (None, pair)]
        indexes += [keys.index("running"), keys.user(tenant, user), "deadlines", "purge", "purging", "litter"]
        job = (job_id, f"{version} {lineage or 0}")
        await self._write.put(pack_effects(["erase", *gone], ["leave", job_id, *indexes], job=job))

    async def _stage_names(self, plan: str, job_id: str) -> list[str]:
        if plan not in self._plans.known:  # cached jobs share the plan that is known
            [body] = await self._link.ask([["HGET", "plans", plan]])
            if body is not None:
                self._plans.add(plan, body)
        try:
            return [stage.name for stage in self._plans.get(plan, job_id).stages]
        except PackhorseError:  # then what people read of its stages is left to its own end
            return []

    async def trim(self) -> None:
        """Also clears ended jobs that nobody purged in a week, so that the server dropped them by itself: their index
        entries, tokens and records. Their objects are the sweep's."""
        await self._write.put(pack_effects(["trim_feed", FEED]))
        _, *flat = await self._link.run("sweep", self.now.argument(), "purge", "past", 0, MANY, "version")
        gone = [flat[i].decode() for i in range(0, len(flat), 2) if flat[i + 1][0] is None]
        await self._write.put(*(drop_index_entry(index, job_id) for job_id in gone for index in ENDED))
        orphans = (pack_effects(["orphan", job_id], guards=[["absent", keys.job(job_id)]]) for job_id in gone)
        await self._write.put(*orphans)
        await self._trim_limits()

    # Check

    async def check(self) -> list[Finding]:
        fsync, eviction = [await self._setting(name) for name in ("appendfsync", "maxmemory-policy")]
        return findings(await self._link.info(), fsync, eviction, self._link.prefix, self.now.ahead)

    async def _setting(self, name: str) -> str:
        try:
            found = await self._link.call("CONFIG", "GET", name)
        except StoreError:  # the operator of the server does not allow it
            found = None
        return found[1].decode() if found else "cannot be asked"


def _entry(lease: Lease) -> str:
    return keys.entry(lease.job_id, lease.task)


def findings(info: Mapping[str, str], fsync: str, eviction: str, prefix: str, ahead: float) -> list[Finding]:
    """What the server's own settings mean for the promise. ``info`` is what INFO says."""
    number = info.get("redis_version", "0")
    version = tuple(int(part) for part in number.split(".")[:2] if part.isdigit())
    server = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {number}"
    has_file = info.get("aof_enabled") == "1"
    states = {name: info.get(name, "ok") for name in ("aof_last_write_status", "aof_last_bgrewrite_status")}
    bad = [name for name, state in states.items() if state != "ok"]
    place = "cluster" if info.get("cluster_enabled") == "1" else "one server"
    checks = {
        "server version": (version >= OLDEST, server),
        "append-only file": (has_file, "on" if has_file else "off"),
        "appendfsync": (has_file and fsync == "always", fsync),
        "last write of the file": (not bad, ", ".join(bad) or "ok"),
        "maxmemory-policy": (eviction == "noeviction", eviction),
        "prefix": (True, f"{prefix} ({place})"),
        "clock": (abs(ahead) < AHEAD, f"{ahead:+.3f} s"),
    }
    meanings = {**MEANINGS, "appendfsync": SYNCS.get(fsync, MEANINGS["appendfsync"])}
    return [Finding(name, is_ok, value, meanings[name]) for name, (is_ok, value) in checks.items()]

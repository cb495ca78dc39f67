"""The SQLite store: what is asked of it, and where each answer is."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import apsw

from packhorse.core import json
from packhorse.core.changes import Change
from packhorse.core.models import Event, FailedRun, Job, Result, Settled, Spec, TaskId
from packhorse.core.records import Drop, LogEntry, Put, Record
from packhorse.errors import PackhorseError, StoreError, StoreUnavailable
from packhorse.store import sql_files
from packhorse.store.base import (
    Charge,
    Claim,
    Count,
    Decide,
    Filter,
    Finding,
    Lease,
    Line,
    Progress,
    Renewal,
    Report,
    Sample,
    Snapshot,
    Spent,
)
from packhorse.store.counters import Counts, Head, Tally, first
from packhorse.store.failures import FailureFilter, FailureGroup, Recent
from packhorse.store.sqlite import claim, commit, counters, failures, maintenance, notes, reads, records, statistics
from packhorse.store.sqlite.session import Handle

SQL = sql_files.load(__package__, "lookups")

EAGER, PATIENT = 0.002, 0.02
"""Seconds between looks at another process's commits: while things happen, and after a quiet second."""
QUIET = 1.0


class SqliteStore(Handle):
    # Jobs

    async def commit(self, changes: Sequence[Change]) -> list[PackhorseError | None]:
        try:
            return await self._write(lambda db: commit.make_all(db, changes, self.now(), self._plans))
        except StoreError as error:
            return [error] * len(changes)

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        return await self._read(reads.jobs, job_ids, self._plans)

    async def find(self, filter: Filter, *, before: str | None = None, limit: int = 50) -> list[Job]:
        return await self._read(reads.find, filter, before, limit, self._plans)

    async def count(self, filter: Filter, *, most: int) -> Count:
        return await self._read(reads.count, filter, most)

    async def snapshot(self, job_id: str, *, events: int, lines: int, stage: str | None = None) -> Snapshot | None:
        return await self._read(reads.snapshot, job_id, events, lines, stage, self._plans)

    async def specs(self, job_ids: Sequence[str]) -> dict[str, Spec]:
        return await self._read(reads.specs, job_ids)

    async def results(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
        return await self._read(reads.results, job_ids)

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return await self._read(reads.events, job_id, after, limit)

    async def made(self, job_id: str, change_id: str) -> bool:
        return await self._row(SQL.change, job_id, change_id) is not None

    async def keyed(self, key: str) -> tuple[str, str] | None:
        row = await self._row(SQL.job_of_key, key)
        return None if row is None else (row[0], row[1])

    async def holder(self, slot: str) -> str | None:
        row = await self._row(SQL.holder, slot)
        return None if row is None else str(row[0])

    # Queue

    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        return await self._write(lambda db: claim.claim(db, wants, kinds, decide, self.now(), self._plans))

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        if seconds is None:
            return await self._read(maintenance.standing, leases)
        return await self._write(lambda db: maintenance.renew(db, leases, self.now() + seconds))

    async def overdue(self, limit: int) -> list[tuple[Job, TaskId]]:
        return await self._read(maintenance.overdue, self.now(), limit, self._plans)

    async def held_by(self, worker: str, limit: int) -> list[tuple[Job, TaskId]]:
        return await self._read(maintenance.held_by, worker, limit, self._plans)

    async def expired(self, limit: int) -> list[Job]:
        return await self._read(maintenance.expired, self.now(), limit, self._plans)

    async def ahead(self, job: Job, task: TaskId, *, limit: int = 1000) -> int:
        return await self._read(claim.ahead, commit.entry(job, task), limit, self.now())

    async def ready(self, kinds: Mapping[str, Collection[str]], *, limit: int = 1000) -> dict[str, int]:
        return await self._read(claim.ready, kinds, limit)

    # Notes

    async def report(self, reports: Sequence[Report]) -> None:
        await self._write(lambda db: notes.report(db, reports))

    async def log(self, lines: Sequence[Line], *, keep: int) -> None:
        await self._write(lambda db: notes.log(db, lines, keep))

    async def sample(self, samples: Sequence[Sample], *, keep: int) -> None:
        await self._write(lambda db: notes.sample(db, samples, keep))

    async def progress(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
        return await self._read(reads.progress, job_ids)

    async def lines(
        self, job_id: str, *, after: int = 0, limit: int = 1000, stage: str | None = None, newest: bool = False
    ) -> list[Line]:
        return await self._read(reads.lines, job_id, after, limit, stage, newest)

    async def samples(self, job_id: str) -> list[Sample]:
        found = await self._rows(SQL.samples, job_id)
        return [Sample(job_id, TaskId(stage, element), *rest) for stage, element, *rest in found]

    # Watch

    async def changed(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:  # noqa: ARG002
        """The mark is the data version as this connection sees it: it moves with every commit of any other."""
        deadline = time.monotonic() + timeout
        while (found := self._data_version()) == mark and (left := deadline - time.monotonic()) > 0:
            is_quiet = time.monotonic() - self._moved_at > QUIET
            await asyncio.sleep(min(left, PATIENT if is_quiet else EAGER))
        if found != mark:
            self._moved_at = time.monotonic()
        return found

    def _data_version(self) -> int:
        """Asked as a pragma, which looks at the file; apsw's own data_version() says what this connection last saw."""
        try:
            with self._watching:  # one connection, asked from whatever loop waits
                version = self._watcher.pragma("data_version")
        except apsw.Error as error:
            raise StoreUnavailable(f"SQLite: {error}") from error
        assert isinstance(version, int)
        return version

    async def touched(self, since: int | None) -> tuple[int, Collection[str] | None]:
        return await self._read(reads.touched, since)

    # Failures

    async def failures(
        self, wanted: FailureFilter | Sequence[str], *, before: str | None = None, limit: int = 50
    ) -> list[FailedRun]:
        if not isinstance(wanted, FailureFilter):
            return await self._read(failures.by_id, wanted)
        return await self._read(failures.find, wanted, before, limit)

    async def failure_groups(
        self,
        tenant: str,
        *,
        fingerprints: Sequence[str] | None = None,
        before: str | None = None,
        limit: int = 50,
        recent: Recent | None = None,
    ) -> list[FailureGroup]:
        return await self._read(failures.groups, tenant, fingerprints, before, limit, recent)

    async def dismiss_failures(
        self, ids: Sequence[str], settled: Settled, *, group: tuple[str, str] | None = None
    ) -> list[str]:
        return await self._write(lambda db: failures.dismiss(db, ids, settled, group))

    async def forget_failures(self, until: float, limit: int) -> int:
        """Looks before it writes, because every sweep asks."""
        if not await self._read(failures.has_older, until):
            return 0
        return await self._write(lambda db: failures.forget(db, until, limit))

    # Upkeep

    async def purgeable(self, limit: int) -> list[Job]:
        return await self._read(maintenance.purgeable, self.now(), limit, self._plans)

    async def littered(self, limit: int) -> list[Job]:
        return await self._read(maintenance.littered, limit, self._plans)

    async def erase(self, job_id: str) -> None:
        await self._write(lambda db: maintenance.erase(db, job_id))

    async def known(self, job_ids: Sequence[str]) -> set[str]:
        found = await self._rows(SQL.known, json.encode(list(job_ids)).decode())
        return {str(id) for (id,) in found}

    async def trim(self) -> None:
        await self._write(maintenance.trim)
        await self._write(lambda db: statistics.trim(db, self.now()))
        if self._counters.path.exists():
            writer = await self._counters.writer()
            await writer.run(lambda db: counters.trim(db, self.now()))

    # Counters

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        writer = await self._counters.writer()
        return await writer.run(lambda db: counters.spend(db, charges, self.now()))

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        writer = await self._counters.writer()
        await writer.run(lambda db: counters.refund(db, charges, at))

    # Statistics

    async def tally(self, counts: Mapping[Tally, int]) -> None:
        await self._write(lambda db: statistics.tally(db, counts))

    async def tallied(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        return await self._read(statistics.tallied, step, first(step, since, self.now()), queue, pipeline)

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        return await self._read(statistics.heads, kinds)

    async def counted(self, most: int) -> Counts:
        return await self._read(statistics.counted, most)

    # Records

    async def put(self, writes: Sequence[Put | Drop], *, quiet: bool = False) -> list[int]:  # noqa: ARG002
        """Watchers look at the file, so they also wake for what is quiet."""
        return await self._write(lambda db: records.put(db, writes))

    async def fetch(self, kind: str, ids: Sequence[str]) -> list[Record | None]:
        return await self._read(records.fetch, kind, ids)

    async def scan(
        self,
        kind: str,
        index: str,
        *,
        after: str = "",
        before: str | None = None,
        limit: int = 50,
        newest: bool = False,
    ) -> list[Record]:
        return await self._read(records.scan, kind, index, after, before, limit, newest)

    async def take(self, kind: str, lane: str, limit: int, seconds: float) -> list[Record]:
        """Look first: a taker that finds nothing, as most do, need not wait for the one writer."""
        if not await self._read(records.has_due, kind, lane, self.now()):
            return []
        return await self._write(lambda db: records.take(db, kind, lane, limit, self.now(), seconds))

    async def append(self, log: str, entries: Sequence[LogEntry], *, keep: int) -> None:
        await self._write(lambda db: records.append(db, log, entries, keep))

    async def tail(self, log: str, *, topic: str = "", before: int | None = None, limit: int = 50) -> list[LogEntry]:
        return await self._read(records.tail, log, topic, before, limit)

    async def check(self) -> list[Finding]:
        return await self._read(_findings)


def _findings(db: apsw.Connection) -> list[Finding]:
    version = apsw.sqlite_lib_version()
    is_current = tuple(map(int, version.split("."))) >= (3, 51, 3)
    free = 0
    with suppress(OSError):
        free = _free_bytes(Path(db.filename))
    return [
        Finding("SQLite version", is_current, version, "older than 3.51.3 can corrupt a WAL that is reset while read"),
        Finding(
            "journal_mode", db.pragma("journal_mode") == "wal", str(db.pragma("journal_mode")), "readers never wait"
        ),
        Finding(
            "synchronous", db.pragma("synchronous") == 2, str(db.pragma("synchronous")), "2: a job survives a power cut"
        ),
        Finding("free disk", free > 512 * 1024 * 1024, f"{free // 1024 // 1024} MiB", "a full disk refuses new jobs"),
    ]


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path.parent).free

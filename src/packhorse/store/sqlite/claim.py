"""Claiming: pick what is most urgent, let the lifecycle decide, commit, and hand over all an attempt needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from msgspec.structs import replace

from packhorse.core import wire
from packhorse.core.model import Job, Result, Spec, TaskId
from packhorse.errors import CorruptRecord, PackhorseError, SchemaTooNew
from packhorse.store.base import Claim, Decide
from packhorse.store.sqlite import reads, rows
from packhorse.store.sqlite.commit import DROP_READY, READY, promote, write
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.rows import Plans
from packhorse.telemetry import log

# One walk per kind, each in key order and cut at the limit: entries of a kind this worker lacks can not hide others.
# A query for each: joined by UNION ALL they cost SQLite two to three times as much.
ORDER = "rank, job_id, stage, element"
WALK = f"SELECT {READY[1:-1]} FROM ready WHERE queue = ? AND kind = ? ORDER BY {ORDER} LIMIT ?"

LEFT: Literal["left"] = "left"

Cache = dict[tuple[str, str], tuple[Result, ...]]
"""Results by job and stage: the elements of one claim share what they need."""

Entry = tuple[str, str, int, str, str, int]


def claim(
    db: Session, wants: Mapping[str, int], kinds: Collection[str], decide: Decide, now: float, plans: Plans
) -> list[Claim]:
    promote(db, now)
    jobs: dict[str, Job] = {}
    cache: Cache = {}
    started: list[Claim] = []
    for queue, limit in wants.items():
        passed: set[Entry] = set()
        while found := [e for e in _pick(db, queue, kinds, limit + len(passed)) if e not in passed][:limit]:
            for entry in found:
                outcome = _start(db, entry, jobs, cache, decide, now, plans)
                if isinstance(outcome, Claim):
                    started.append(outcome)
                    limit -= 1
                elif outcome is LEFT:
                    passed.add(entry)
            if not passed & set(found):  # a newer packhorse's jobs stay where they are, and must not hide the rest
                break
    return [replace(claimed, job=jobs[claimed.job.id]) for claimed in started]


def _pick(db: Session, queue: str, kinds: Collection[str], limit: int) -> list[Entry]:
    if limit <= 0:
        return []
    found: list[Entry] = []
    for kind in kinds:
        found += db.execute(WALK, (queue, kind, limit)).fetchall()  # type: ignore[arg-type]
    return sorted(found, key=lambda entry: entry[2:])[:limit]


def _start(
    db: Session,
    entry: Entry,
    jobs: dict[str, Job],
    cache: Cache,
    decide: Decide,
    now: float,
    plans: Plans,
) -> Claim | Literal["left", "dropped"]:
    """Start one task in the job as it is now, which an earlier task of the same claim may have moved."""
    job_id, task = entry[3], TaskId(entry[4], entry[5])
    try:
        job = jobs.get(job_id) or rows.read(db, job_id, plans)
        change = decide(job, task) if job is not None else None
        if change is not None:
            write(db, change, now, plans)  # its guard holds: the entry was read in this transaction
            jobs[job_id] = change.after
            return _claim(db, change.after, task, cache)
    except SchemaTooNew:  # an upgrade is under way: a newer worker will understand it
        return LEFT
    except PackhorseError as error:
        # A job nobody can read, or an entry the lifecycle will not start: it must not stop those behind it.
        log.entry_dropped(job_id, task.stage, error)
    db.execute(DROP_READY, entry)
    return "dropped"


def _claim(db: Session, job: Job, task: TaskId, cache: Cache) -> Claim:
    try:
        upstream = {need.stage: _results(db, job, need.stage, cache) for need in job.plan.stage(task.stage).needs}
        return Claim(job, task, _spec(db, job), upstream)
    except CorruptRecord as error:
        return Claim(job, task, Spec(b"null"), {}, trouble=error)


def _spec(db: Session, job: Job) -> Spec:
    row = db.execute("SELECT body FROM specs WHERE job_id = ?", (job.id,)).fetchone()
    if row is None:
        raise CorruptRecord(what="spec", job_id=job.id, reason="it is missing")
    return wire.spec_from(row[0], job.id)


def _results(db: Session, job: Job, stage: str, cache: Cache) -> tuple[Result, ...]:
    if (job.id, stage) not in cache:
        cache[job.id, stage] = reads.results_of(db, job.id, stage)
    return cache[job.id, stage]

"""Failures, counted in their groups in the transaction that adds or removes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from packhorse.core import failures as rules
from packhorse.core import json
from packhorse.core.changes import RecordFailure, SettleFailures
from packhorse.core.models import FailedRun, Settled
from packhorse.store import sql_files
from packhorse.store.failures import FailureFilter, Ledger, Recent, conditions, failure_from, failure_row
from packhorse.store.sqlite import records
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.session import Handle, read, write

SQL = sql_files.load(__package__, "failures")


class Failures(Handle):
    @read
    def failures(
        self, db: Session, wanted: FailureFilter | Sequence[str], *, before: str | None = None, limit: int = 50
    ) -> list[FailedRun]:
        if not isinstance(wanted, FailureFilter):
            return [failure for failure, _ in _by_id(db, wanted)]
        asked = dict(conditions(wanted, before))
        query = SQL.find.format(conditions=" ".join(SQL[f"with_{name}"] for name in asked))
        return [failure_from(row)[0] for row in db.execute(query, (wanted.tenant, *asked.values(), limit))]

    @read
    def failure_groups(
        self,
        db: Session,
        tenant: str,
        *,
        fingerprints: Sequence[str] | None = None,
        before: str | None = None,
        limit: int = 50,
        recent: Recent | None = None,
    ) -> list[rules.FailureGroup]:
        if fingerprints is not None:
            found = [each for name in fingerprints if (each := _group(db, tenant, name)) is not None]
        else:
            page = db.execute(SQL.groups, (tenant, "~" if before is None else before, limit))
            found = [json.record(body, rules.FailureGroup) for (body,) in page]
        return found if recent is None else [replace(each, times=_times(db, each, recent)) for each in found]

    @write
    def dismiss_failures(
        self, db: Session, ids: Sequence[str], settled: Settled, *, group: tuple[str, str] | None = None
    ) -> list[str]:
        ledger = _load(db, _by_id(db, dict.fromkeys(ids)))
        done = ledger.dismiss(settled)
        if group is not None:
            held = ledger.groups.get(group) or _group(db, *group)
            if held is not None:
                ledger.groups[group] = replace(held, dismissal=settled)
        _write(db, ledger)
        return [id for id in dict.fromkeys(ids) if id in done]

    async def forget_failures(self, until: float, limit: int) -> int:
        """Looks before it writes, because every sweep asks."""
        return await self._forget(until, limit) if await self._has_older(until) else 0

    @read
    def _has_older(self, db: Session, until: float) -> bool:
        return db.execute(SQL.has_older, (rules.first_id(until),)).fetchone() is not None

    @write
    def _forget(self, db: Session, until: float, limit: int) -> int:
        found = db.execute(SQL.oldest, (rules.first_id(until), limit)).fetchall()
        ledger = _load(db, map(failure_from, found))
        count = ledger.forget()
        _write(db, ledger)
        return count


def apply(db: Session, job_id: str, effect: RecordFailure | SettleFailures) -> None:
    """Make what a commit says of failures."""
    if isinstance(effect, RecordFailure):
        ledger = _load(db, [(effect.failure, False)])
        ledger.record(effect.failure)
    else:
        found = db.execute(SQL.of_job, (job_id, effect.was.value)).fetchall()
        ledger = _load(db, map(failure_from, found))
        ledger.settle(job_id, effect)
    _write(db, ledger)


def _load(db: Session, found: Iterable[tuple[FailedRun, bool]]) -> Ledger:
    """These failures, with their groups and users."""
    ledger = Ledger()
    for failure, is_counted in found:
        ledger.failures[failure.id] = (failure, is_counted)
        key = (failure.tenant, failure.fingerprint)
        if key not in ledger.groups:
            ledger.groups[key] = _group(db, *key)
        user = (*key, failure.user)
        if user not in ledger.users:
            row = db.execute(SQL.user, user).fetchone()
            ledger.users[user] = 0 if row is None else int(row[0])
    return ledger


def _write(db: Session, ledger: Ledger) -> None:
    for id in ledger.added:
        db.execute(SQL.add, failure_row(*ledger.failures[id]))
    for id in ledger.moved:
        failure, _ = ledger.failures[id]
        db.execute(SQL.settle, (failure.status.value, json.encode(failure.settled), id))
    for id in ledger.gone:
        db.execute(SQL.drop, (id,))
    if ledger.added or ledger.gone:
        for user, count in ledger.users.items():
            if count > 0:
                db.execute(SQL.put_user, (*user, count))
            else:
                db.execute(SQL.drop_user, user)
    for key, group in ledger.groups.items():
        if group is None:
            db.execute(SQL.drop_group, key)
        else:
            db.execute(SQL.put_group, (*key, group.seen, json.encode(group)))
    for alert in ledger.alerts:
        records.put_if_possible(db, alert)


def _by_id(db: Session, ids: Iterable[str]) -> list[tuple[FailedRun, bool]]:
    found = (db.execute(SQL.of_id, (id,)).fetchone() for id in ids)
    return [failure_from(row) for row in found if row is not None]


def _group(db: Session, tenant: str, fingerprint: str) -> rules.FailureGroup | None:
    row = db.execute(SQL.group, (tenant, fingerprint)).fetchone()
    return None if row is None else json.record(row[0], rules.FailureGroup)


def _times(db: Session, group: rules.FailureGroup, recent: Recent) -> tuple[float, ...]:
    wanted = (group.tenant, group.fingerprint, rules.first_id(recent.since), recent.limit)
    return tuple(rules.time_of(id) for (id,) in db.execute(SQL.times, wanted))

"""Failures, counted in their groups in the transaction that adds or removes them.

A transaction that changes a failure locks its group, so that what it reads of it stays so. Groups are locked in
the order of their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from packhorse.core import failures as rules
from packhorse.core import json
from packhorse.core.changes import PutRecord, RecordFailure, SettleFailures
from packhorse.core.models import FailedRun, Settled
from packhorse.store import sql_files
from packhorse.store.failures import FailureFilter, Ledger, Recent, conditions, failure_from, failure_row
from packhorse.store.postgres.connection import Session
from packhorse.store.postgres.session import Handle, clean, columns, is_id, keep, number_values, read

SQL = sql_files.load(__package__, "failures")

Effects = Sequence[tuple[str, RecordFailure | SettleFailures]]
"""With the job that each is about."""


class Failures(Handle):
    @read
    async def failures(
        self, session: Session, wanted: FailureFilter | Sequence[str], *, before: str | None = None, limit: int = 50
    ) -> list[FailedRun]:
        if not isinstance(wanted, FailureFilter):
            return await _by_id(session, wanted)
        if wanted.job_id is not None and not is_id(wanted.job_id):
            return []
        asked = {name: clean(value) for name, value in conditions(wanted, before)}
        query = number_values(SQL.find.format(conditions=" ".join(SQL[f"with_{name}"] for name in asked)))
        return [failure_from(row)[0] for row in await session.fetch(query, wanted.tenant, *asked.values(), limit)]

    @read
    async def failure_groups(
        self,
        session: Session,
        tenant: str,
        *,
        fingerprints: Sequence[str] | None = None,
        before: str | None = None,
        limit: int = 50,
        recent: Recent | None = None,
    ) -> list[rules.FailureGroup]:
        if fingerprints is not None:
            rows = await session.fetch(SQL.groups_of, tenant, list(fingerprints))
        else:
            rows = await session.fetch(SQL.groups, tenant, "~" if before is None else before, limit)
        found = [json.record(body, rules.FailureGroup) for (body,) in rows]
        if recent is None or not found:
            return found
        times: list[list[float]] = [[] for _ in found]
        names = [group.fingerprint for group in found]
        for at, id in await session.fetch(SQL.times, tenant, names, rules.first_id(recent.since), recent.limit):
            times[at - 1].append(rules.time_of(id))
        return [replace(group, times=tuple(those)) for group, those in zip(found, times, strict=True)]

    @keep
    async def dismiss_failures(
        self, session: Session, ids: Sequence[str], settled: Settled, *, group: tuple[str, str] | None = None
    ) -> list[str]:
        ledger = await _hold(session, await _by_id(session, ids))
        await _load(session, ledger, ids)
        done = ledger.dismiss(settled)
        await _write(session, ledger)
        if group is not None:
            await _dismiss_group(session, *group, settled)
        return [id for id in dict.fromkeys(ids) if id in done]

    @keep
    async def forget_failures(self, session: Session, until: float, limit: int) -> int:
        found = [failure_from(row)[0] for row in await session.fetch(SQL.oldest, rules.first_id(until), limit)]
        ledger = await _hold(session, found)
        await _load(session, ledger, [failure.id for failure in found])
        count = ledger.forget()
        await _write(session, ledger)
        return count


async def write(session: Session, effects: Effects) -> list[PutRecord]:
    """Write what the changes of a transaction say of failures. Returns the alerts that are to be written with it."""
    jobs = sorted({job_id for job_id, effect in effects if isinstance(effect, SettleFailures)})
    before = [failure_from(row)[0] for row in await session.fetch(SQL.of_jobs, jobs)] if jobs else []
    new = [effect.failure for _, effect in effects if isinstance(effect, RecordFailure)]
    ledger = await _hold(session, [*before, *new])
    await _load(session, ledger, [failure.id for failure in before])
    for job_id, effect in effects:
        if isinstance(effect, RecordFailure):
            ledger.record(effect.failure)
        else:
            ledger.settle(job_id, effect)
    await _write(session, ledger)
    return [PutRecord(alert) for alert in ledger.alerts]


async def _hold(session: Session, failures: Iterable[FailedRun]) -> Ledger:
    """The groups and users of these failures, which are ours until the transaction ends."""
    ledger = Ledger()
    users = sorted({(each.tenant, each.fingerprint, each.user) for each in failures})
    keys = sorted({(tenant, fingerprint) for tenant, fingerprint, _ in users})
    if keys:
        ledger.groups = dict.fromkeys(keys)
        for (body,) in await session.fetch(SQL.hold_groups, *columns(keys)):
            if body:
                group = json.record(body, rules.FailureGroup)
                ledger.groups[group.tenant, group.fingerprint] = group
        for *user, count in await session.fetch(SQL.users, *columns(users)):
            tenant, fingerprint, name = user
            ledger.users[tenant, fingerprint, name] = count
    return ledger


async def _load(session: Session, ledger: Ledger, ids: Sequence[str]) -> None:
    """Read these failures under the lock."""
    if ids:
        found = [failure_from(row) for row in await session.fetch(SQL.of_ids, sorted(set(ids)))]
        ledger.failures = {failure.id: (failure, is_counted) for failure, is_counted in found}


async def _write(session: Session, ledger: Ledger) -> None:
    added = [failure_row(*ledger.failures[id]) for id in ledger.added]
    settled = [ledger.failures[id][0] for id in sorted(ledger.moved.difference(ledger.added))]
    users = [(*user, count) for user, count in sorted(ledger.users.items())]
    groups = sorted(ledger.groups.items())
    for statement, rows in (
        (SQL.add, [[clean(value) if isinstance(value, str) else value for value in row] for row in added]),
        (SQL.settle, [(each.id, each.status.value, json.encode(each.settled)) for each in settled]),
        (SQL.put_users, [user for user in users if user[-1] > 0]),
        (SQL.drop_users, [user[:-1] for user in users if user[-1] <= 0]),
        (SQL.put_groups, [(*key, group.seen, json.encode(group)) for key, group in groups if group]),
        (SQL.drop_groups, [key for key, group in groups if group is None]),
        (SQL.drop, [(id,) for id in sorted(ledger.gone)]),
    ):
        if rows:
            await session.fetch(statement, *columns(rows))


async def _dismiss_group(session: Session, tenant: str, fingerprint: str, settled: Settled) -> None:
    row = await session.row(SQL.hold_group, tenant, fingerprint)
    if row is not None:
        group = replace(json.record(row["body"], rules.FailureGroup), dismissal=settled)
        await session.fetch(SQL.put_groups, [tenant], [fingerprint], [group.seen], [json.encode(group)])


async def _by_id(session: Session, ids: Sequence[str]) -> list[FailedRun]:
    return [failure_from(row)[0] for row in await session.fetch(SQL.of_ids, sorted(set(ids)))] if ids else []

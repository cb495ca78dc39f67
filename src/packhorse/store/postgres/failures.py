"""What went wrong: failures, counted in their groups in the transaction that brings or takes them.

Who changes a failure holds its group, so that what it reads of it stays so; groups are held in the order of their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import failures as rules
from packhorse.core import json
from packhorse.core.changes import PutRecord, RecordFailure, SettleFailures
from packhorse.core.failures import new_alert, put_action
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.store import sql_files
from packhorse.store.failures import FailureFilter, FailureGroup, Recent
from packhorse.store.postgres.connection import Row, Session
from packhorse.store.postgres.rows import clean, is_id

SQL = sql_files.load(__package__, "failures")


Key = tuple[str, str]
"""Tenant and fingerprint."""
Effects = Sequence[tuple[str, RecordFailure | SettleFailures]]
"""With the job that each is about."""


class Held:
    """Groups that are ours until the transaction ends, and what is to be written of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._groups: dict[Key, FailureGroup | None] = {}
        self._users: dict[tuple[str, str, str], int] = {}
        self._kept: dict[str, tuple[FailedRun, bool]] = {}
        """Failures as they are now, and whether their users are counted."""
        self._new: list[str] = []
        self._moved: set[str] = set()
        self._gone: set[str] = set()
        self.alerts: list[PutRecord] = []

    async def hold(self, failures: Iterable[FailedRun]) -> None:
        users = sorted({(each.tenant, each.fingerprint, each.user) for each in failures})
        keys = sorted({(tenant, fingerprint) for tenant, fingerprint, _ in users})
        if not keys:
            return
        for row in await self._session.fetch(SQL.hold_groups, *zip(*keys, strict=True)):
            if row["body"]:
                group = json.record(row["body"], FailureGroup)
                self._groups[group.tenant, group.fingerprint] = group
        self._groups = {key: self._groups.get(key) for key in keys}
        for tenant, fingerprint, user, count in await self._session.fetch(SQL.users, *zip(*users, strict=True)):
            self._users[tenant, fingerprint, user] = count

    async def load(self, query: str, values: Sequence[str]) -> list[FailedRun]:
        """Read them under the lock, and remember them."""
        found = [_read(row) for row in await self._session.fetch(query, values)] if values else []
        self._kept |= {failure.id: (failure, is_counted) for failure, is_counted in found}
        return [failure for failure, _ in found]

    def record(self, failure: FailedRun) -> None:
        key, user = _keys(failure)
        group, is_counted, alert = rules.add_to_group(self._groups[key], failure, is_known=self._users.get(user, 0) > 0)
        self._groups[key] = group
        if is_counted:
            self._users[user] = self._users.get(user, 0) + 1
        self._kept[failure.id] = (failure, is_counted)
        self._new.append(failure.id)
        if alert is not None:
            self.alerts.append(PutRecord(put_action(new_alert(failure, alert))))

    def settle(self, job_id: str, effect: SettleFailures) -> None:
        for failure, _ in list(self._kept.values()):
            if failure.job_id == job_id and failure.status is effect.was:
                self.move(failure, effect.now, effect.settled or failure.settled)

    def move(self, failure: FailedRun, to: FailureStatus, settled: Settled | None) -> None:
        key, _ = _keys(failure)
        group = self._groups[key]
        if group is not None:
            self._groups[key] = rules.move_in_group(group, failure.status, to)
        self._kept[failure.id] = (replace(failure, status=to, settled=settled), self._kept[failure.id][1])
        self._moved.add(failure.id)

    def forget(self, failure: FailedRun) -> None:
        key, user = _keys(failure)
        _, is_counted = self._kept.pop(failure.id)
        self._gone.add(failure.id)
        if is_counted:
            self._users[user] = self._users.get(user, 1) - 1
        is_last = is_counted and self._users[user] == 0
        group = self._groups[key]
        if group is not None:
            self._groups[key] = rules.remove_from_group(group, failure, is_counted=is_counted, is_last=is_last)

    async def write(self) -> None:
        settled = [self._kept[id] for id in sorted(self._moved.difference(self._new))]
        users = [(*user, count) for user, count in sorted(self._users.items())]
        groups = sorted(self._groups.items())
        await self._put(SQL.add, [_row(*self._kept[id]) for id in self._new])
        await self._put(SQL.settle, [(f.id, f.status.value, json.encode(f.settled)) for f, _ in settled])
        await self._put(SQL.put_users, [user for user in users if user[-1] > 0])
        await self._put(SQL.drop_users, [user[:-1] for user in users if user[-1] <= 0])
        await self._put(SQL.put_groups, [(*key, group.seen, json.encode(group)) for key, group in groups if group])
        await self._put(SQL.drop_groups, [key for key, group in groups if group is None])
        if self._gone:
            await self._session.fetch(SQL.drop, sorted(self._gone))

    async def _put(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            await self._session.fetch(statement, *zip(*rows, strict=True))


async def write(session: Session, effects: Effects) -> list[PutRecord]:
    """Write what the changes of a transaction say of failures. Returns the alerts that are to be written with it."""
    held = Held(session)
    jobs = sorted({job_id for job_id, effect in effects if isinstance(effect, SettleFailures)})
    before = [_read(row)[0] for row in await session.fetch(SQL.of_jobs, jobs)] if jobs else []
    new = [effect.failure for _, effect in effects if isinstance(effect, RecordFailure)]
    await held.hold([*before, *new])
    await held.load(SQL.of_ids, [failure.id for failure in before])
    for job_id, effect in effects:
        if isinstance(effect, RecordFailure):
            held.record(effect.failure)
        else:
            held.settle(job_id, effect)
    await held.write()
    return held.alerts


async def dismiss(
    session: Session, ids: Sequence[str], settled: Settled, whole: tuple[str, str] | None = None
) -> list[str]:
    held = Held(session)
    await held.hold(await by_id(session, ids))
    open = [each for each in await held.load(SQL.of_ids, sorted(set(ids))) if each.status is FailureStatus.OPEN]
    for failure in open:
        held.move(failure, FailureStatus.DISMISSED, settled)
    await held.write()
    if whole is not None:
        await _dismiss_group(session, *whole, settled)
    done = {failure.id for failure in open}
    return [id for id in dict.fromkeys(ids) if id in done]


async def _dismiss_group(session: Session, tenant: str, fingerprint: str, settled: Settled) -> None:
    row = await session.row(SQL.hold_group, tenant, fingerprint)
    if row is not None:
        group = replace(json.record(row["body"], FailureGroup), dismissal=settled)
        await session.fetch(SQL.put_groups, [tenant], [fingerprint], [group.seen], [json.encode(group)])


async def forget(session: Session, until: float, limit: int) -> int:
    found = await session.fetch(SQL.oldest, rules.first_id(until), limit)
    held = Held(session)
    await held.hold([_read(row)[0] for row in found])
    still = await held.load(SQL.of_ids, [_read(row)[0].id for row in found])
    for failure in still:
        held.forget(failure)
    await held.write()
    return len(still)


# Asked


async def find(session: Session, wanted: FailureFilter, before: str | None, limit: int) -> list[FailedRun]:
    if wanted.job_id is not None and not is_id(wanted.job_id):
        return []
    clauses, values = zip(*_where(wanted, before), strict=True)
    where = " AND ".join(f"{clause} ${n}" for n, clause in enumerate(clauses, 1))
    query = f"{SQL.read} WHERE {where} ORDER BY id DESC LIMIT ${len(values) + 1}"
    return [_read(row)[0] for row in await session.fetch(query, *values, limit)]


def _where(wanted: FailureFilter, before: str | None) -> Iterator[tuple[str, Any]]:
    yield "tenant =", wanted.tenant
    named = ("fingerprint", "job_id", "user_id", "pipeline", "code", "status", "schedule")
    for name in named:
        value = getattr(wanted, "user" if name == "user_id" else name)
        if value is not None:
            yield f"{name} =", clean(str(value))
    if before is not None:
        yield "id <", before
    if wanted.since is not None:
        yield "id >=", rules.first_id(wanted.since)
    if wanted.until is not None:
        yield "id <", rules.first_id(wanted.until)


async def by_id(session: Session, ids: Sequence[str]) -> list[FailedRun]:
    return [_read(row)[0] for row in await session.fetch(SQL.of_ids, sorted(set(ids)))] if ids else []


async def groups(
    session: Session,
    tenant: str,
    fingerprints: Sequence[str] | None,
    before: str | None,
    limit: int,
    recent: Recent | None,
) -> list[FailureGroup]:
    if fingerprints is not None:
        rows = await session.fetch(SQL.groups_of, tenant, list(fingerprints))
    else:
        rows = await session.fetch(SQL.groups, tenant, "~" if before is None else before, limit)
    found = [json.record(body, FailureGroup) for (body,) in rows]
    if recent is None or not found:
        return found
    times: list[list[float]] = [[] for _ in found]
    names = [group.fingerprint for group in found]
    for at, id in await session.fetch(SQL.times, tenant, names, rules.first_id(recent.since), recent.limit):
        times[at - 1].append(rules.time_of(id))
    return [replace(group, times=tuple(those)) for group, those in zip(found, times, strict=True)]


def _keys(failure: FailedRun) -> tuple[Key, tuple[str, str, str]]:
    key = failure.tenant, failure.fingerprint
    return key, (*key, failure.user)


def _row(failure: FailedRun, is_counted: bool) -> tuple[Any, ...]:
    return (
        failure.id, failure.tenant, failure.fingerprint, failure.job_id, failure.user, clean(failure.pipeline),
        clean(failure.code), None if failure.schedule is None else clean(failure.schedule), failure.status.value,
        is_counted, None if failure.settled is None else json.encode(failure.settled), json.encode(failure),
    )  # fmt: skip


def _read(row: Row) -> tuple[FailedRun, bool]:
    body, status, settled, is_counted = row
    became = None if settled is None else json.record(settled, Settled)
    return replace(json.record(body, FailedRun), status=FailureStatus(status), settled=became), is_counted

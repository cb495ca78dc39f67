"""Limits and fair shares: what is counted, where tasks wait that may not start, and whose turn it is.

Everything runs in the transaction of a claim or a commit, behind SQLite's write lock, so that counting and starting are
one step. `lanes` and `waiting` are two things: with a key, what is parked under it; without, what may start in turns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any

from packhorse.core import changes, json
from packhorse.core.limits import LONGEST, LimitUse, Share, name_of, window_of
from packhorse.core.models import TaskId
from packhorse.store import sql_files
from packhorse.store.limits import HOLDERS, MOST_PARKED, Holder, LimitState
from packhorse.store.rows import Entry
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.session import Handle, read, write

SQL = sql_files.load(__package__, "limits")

WAKES = 100
"""Keys that a claim looks at because their time has come; what is left is found by the next."""
MOST_PRIORITY = 1_000  # of any task, and the least, negative
WOKEN = 1_000
"""Tasks of one queue and kind that are woken together at most; the next claim continues."""
FIRST_GROUP = (-1, "", "")
NO_SHARE = Share("")
TURNS = ("", 0)
"""In place of the key and the number of a limit: what may start, and takes turns."""


class Limits(Handle):
    @write
    def set_limit(self, db: Session, name: str, most: int | None) -> None:
        db.limits = None
        statement, row = (SQL.unset, (name,)) if most is None else (SQL.set, (name, most))
        db.execute(statement, row)
        db.execute(SQL.wake_named, (name,))

    @read
    def limit_states(
        self, db: Session, keys: Sequence[str] | None = None, *, name: str = "", after: str = "", limit: int = 100
    ) -> list[LimitState]:
        states: list[LimitState] = []
        with db:  # one snapshot
            values = _values(db)
            found = list(keys) if keys is not None else _keys(db, name, after, limit)
            states += [_state(db, key, values, self.now()) for key in found]
        return states

    @write
    def _trim_limits(self, db: Session) -> None:
        db.execute(SQL.trim_starts, (self.now() - LONGEST,))
        db.execute(SQL.trim_shares)
        db.execute(SQL.trim_times)


# Counting


def first_full(db: Session, uses: Sequence[LimitUse], now: float) -> LimitUse | None:
    """The first limit under which no more may start."""
    return next((use for use in uses if _value(db, use.name, use.most) <= _used(db, use.key, use.window, now)), None)


def count(db: Session, job_id: str, grant: changes.Grant, now: float, queue: str) -> None:
    """Count a start under its limits, and let its share pay for the turn."""
    for use in grant.limits:
        if use.window:
            db.execute(SQL.add_start, (use.key, now))
            db.execute(SQL.drop_starts, (use.key, now - use.window))
            if db.execute(SQL.is_parked, (use.key,)).fetchone():
                db.execute(SQL.wake_at, (use.key, now + use.window))
        else:
            db.execute(SQL.hold, (job_id, *grant.task, use.key, now))
    if grant.share is not None:
        _charge(db, "", queue, grant.share.name, grant.share.cost)


def let_go(db: Session, job_id: str, task: TaskId, uses: Sequence[LimitUse], now: float) -> None:
    """What an ended lease has held is free: wake what waits for it."""
    db.execute(SQL.let_go, (job_id, *task))
    for use in uses:
        if not use.window:
            _wake(db, use.key, 1, now)


def _used(db: Session, key: str, window: float, now: float) -> int:
    if not window:
        return int(db.row(SQL.held, (key,))[0])
    db.execute(SQL.pull_back, (now, key, now))
    return int(db.row(SQL.started, (key, now - window))[0])


def _values(db: Session) -> dict[str, int]:
    rows: list[Any] = db.execute(SQL.values).fetchall()
    return dict(rows)


def _value(db: Session, name: str, most: int) -> int:
    """What is in force for a limit of which the plan says ``most``."""
    if db.limits is None:
        db.limits = _values(db)
    return db.limits.get(name, most)


# Waiting


def make_due(db: Session, entry: Entry, effect: changes.MakeDue, now: float) -> None:
    """The task is due now: it may start, or is parked at once."""
    full = first_full(db, effect.limits, now)
    if full is None:
        make_ready(db, entry, effect.share)
    else:
        _put(db, full.key, full.most, entry, effect.share or NO_SHARE)
        _plan_wake(db, full, now)


def make_ready(db: Session, entry: Entry, share: Share | None) -> None:
    if share is None:
        db.execute(SQL.add_ready, entry)
    else:
        _put(db, *TURNS, entry, share)


def park(db: Session, entry: Entry, grant: changes.Grant, full: LimitUse, now: float) -> None:
    """A ready task may not start. Whatever waits for its other limits gets the room that was meant for it."""
    _put(db, full.key, full.most, entry, grant.share or NO_SHARE)
    _plan_wake(db, full, now)
    for use in grant.limits:
        if use.key != full.key:
            _wake(db, use.key, 1, now)


def take_back(db: Session, job_id: str, task: TaskId) -> bool:
    """Remove a task that takes turns or is parked; whether there was one."""
    rows = db.execute(SQL.take_waiting, (job_id, *task)).fetchall()
    for key, most, queue, kind, share in rows:
        if db.execute(SQL.has_waiting, (key, most, queue, kind, share)).fetchone() is None:
            db.execute(SQL.drop_lane, (key, queue, share, most, kind))
    return bool(rows)


def is_next(db: Session, job_id: str, task: TaskId) -> bool:
    """Whether the task takes turns and may start."""
    return db.execute(SQL.is_next, (job_id, *task)).fetchone() is not None


def wake_others(db: Session, uses: Sequence[LimitUse], now: float) -> None:
    """A task that may have been woken will not start."""
    for use in uses:
        _wake(db, use.key, 1, now)


def look_at_all(db: Session) -> None:
    """An entry is gone that nobody could read, and so could not tell its limits: whatever is parked may have room."""
    db.execute(SQL.wake_all)


def wake_due(db: Session, now: float) -> None:
    """Wake what time, or an operator, has made room for. A time past every window was planned by a wrong clock."""
    due: list[Any] = db.execute(SQL.due_wakes, (now, now + 2 * LONGEST, WAKES)).fetchall()
    for (key,) in due:
        window = window_of(name_of(key))
        if _wake(db, key, WOKEN, now) == WOKEN:
            db.execute(SQL.set_wake, (key, 0.0))
            continue
        oldest = db.row(SQL.started, (key, now - window))[1] if window else None
        if oldest is not None and db.execute(SQL.is_parked, (key,)).fetchone():
            db.execute(SQL.set_wake, (key, oldest + window))
        else:
            db.execute(SQL.drop_wake, (key,))


def _plan_wake(db: Session, full: LimitUse, now: float) -> None:
    if full.window:
        oldest = db.row(SQL.started, (full.key, now - full.window))[1]
        if oldest is not None:  # an operator may have said 0
            db.execute(SQL.wake_at, (full.key, oldest + full.window))


def _wake(db: Session, key: str, most: int, now: float) -> int:
    """Make ready, for each number, queue and kind, so many of the tasks parked under the key, as far as it has room.

    Returns how many that were of the largest of these groups. Which of the groups can use the room is not known here.
    """
    group: Any = FIRST_GROUP
    used: int | None = None
    largest = 0
    while (group := db.execute(SQL.next_group, (key, *group)).fetchone()) is not None:
        used = _used(db, key, window_of(name_of(key)), now) if used is None else used
        room = min(most, _value(db, name_of(key), group[0]) - used)
        woken = 0
        while woken < room and _wake_first(db, key, *group):
            woken += 1
        largest = max(largest, woken)
    return largest


def _wake_first(db: Session, key: str, most: int, queue: str, kind: str) -> bool:
    lane: Any = db.execute(SQL.lanes, (key, most, queue, kind)).fetchone()
    if lane is None:
        return False
    share = lane[1]
    rank, job_id, stage, element, cost = db.row(SQL.first_waiting, (key, most, queue, kind, share, 1))
    if share:
        _charge(db, key, queue, share, cost)
    take_back(db, job_id, TaskId(stage, element))
    make_ready(db, (queue, kind, rank, job_id, stage, element), Share(share, cost, rank) if share else None)
    return True


# Turns


def is_used(db: Session) -> bool:
    """Whether anything is parked or takes turns. Looked up once in a transaction."""
    if db.is_limited is None:
        db.is_limited = db.execute(SQL.is_used).fetchone() is not None
    return db.is_limited


def count_turns(db: Session, queue: str, kind: str, limit: int) -> int:
    return int(db.row(SQL.count_next, (queue, kind, limit))[0])


def first_turns(db: Session, queue: str, kind: str, limit: int) -> Iterator[tuple[str, TaskId]]:
    """The first tasks of the shares that are next."""
    lanes: list[Any] = list(islice(db.execute(SQL.lanes, (*TURNS, queue, kind)), limit))
    for _, share in lanes:
        for row in db.execute(SQL.first_waiting, (*TURNS, queue, kind, share, 1)):
            _, job_id, stage, element, _ = row
            yield job_id, TaskId(stage, element)


def priority_rank(entry: Entry) -> int:
    """The rank by which a turn is compared with what takes none: that of aging is a time."""
    return entry[2] if abs(entry[2]) <= MOST_PRIORITY else 0


def turns(db: Session, queue: str, kinds: Collection[str]) -> Iterator[Entry]:
    """What is next, again and again: each answer is given when the one before has been started, parked or left."""
    left: set[tuple[Any, ...]] = set()
    while found := _next_turn(db, queue, kinds, left):
        yield found
        if is_next(db, found[3], TaskId(*found[4:])):
            left.add(found[3:])


def _next_turn(db: Session, queue: str, kinds: Collection[str], left: set[tuple[Any, ...]]) -> Entry | None:
    """The first task of the share whose turn it is; of two kinds, the one that is more urgent."""
    best: tuple[Any, ...] | None = None
    for kind in kinds:
        found = _first_of(db, queue, kind, left)
        if found is not None and (best is None or found < best):
            best = found
    return None if best is None else (queue, best[-1], *best[2:-1])


def _first_of(db: Session, queue: str, kind: str, left: set[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    for turn in db.execute(SQL.lanes, (*TURNS, queue, kind)):
        for row in db.execute(SQL.first_waiting, (*TURNS, queue, kind, turn[1], len(left) + 1)):
            if row[1:4] not in left:
                return (*turn, *row[:4], kind)
    return None


def _put(db: Session, key: str, most: int, entry: Entry, share: Share) -> None:
    queue, kind, rank, *at = entry
    rank = share.rank if share.name else rank
    db.execute(SQL.put_waiting, (key, most, queue, kind, share.name, rank, *at, share.cost))
    if db.execute(SQL.has_lane, (key, queue, share.name, most, kind)).fetchone() is None:
        db.execute(SQL.add_lane, (key, most, queue, kind, _pass_of(db, key, queue, share), share.name))
        db.is_limited = True


def _pass_of(db: Session, key: str, queue: str, share: Share) -> float:
    """Where the share is in virtual time. One that was idle begins at the time of the queue."""
    if not share.name:
        return 0.0
    known = db.execute(SQL.pass_, (key, queue, share.name)).fetchone()
    if known is not None and db.execute(SQL.is_active, (key, queue, share.name)).fetchone():
        return float(known[0])
    begin = _time(db, key, queue) + share.cost
    begin = begin if known is None else max(begin, known[0])
    db.execute(SQL.set_pass, (key, queue, share.name, begin))
    return begin


def _charge(db: Session, key: str, queue: str, share: str, cost: float) -> None:
    """The share has used its turn."""
    time = _time(db, key, queue)
    known = db.execute(SQL.pass_, (key, queue, share)).fetchone()
    used = time + cost if known is None else known[0]
    db.execute(SQL.set_pass, (key, queue, "", max(time, used)))
    db.execute(SQL.set_pass, (key, queue, share, used + cost))
    db.execute(SQL.move_lanes, (used + cost, key, queue, share))


def _time(db: Session, key: str, queue: str) -> float:
    row = db.execute(SQL.pass_, (key, queue, "")).fetchone()
    return 0.0 if row is None else float(row[0])


# What operators see


def _keys(db: Session, name: str, after: str, limit: int) -> list[str]:
    """A key is the name, or the name, an equals sign and what is counted apart. In the order of bytes: < = >."""
    found = [name] if name > after and _is_used(db, name) else []
    place = max(after, f"{name}<") if name else after
    while len(found) < limit and (key := db.row(SQL.next_key, (place,))[0]) is not None:
        if name and key >= f"{name}>":
            break
        found.append(key)
        place = key
    return found


def _is_used(db: Session, key: str) -> bool:
    return any(db.execute(each, (key,)).fetchone() for each in (SQL.is_held, SQL.is_counted, SQL.is_parked))


def _state(db: Session, key: str, values: dict[str, int], now: float) -> LimitState:
    name = name_of(key)
    window = window_of(name)
    [parked] = db.row(SQL.count_waiting, (key, MOST_PARKED))
    if window:
        used, oldest = db.row(SQL.started, (key, now - window))
        return LimitState(key, values.get(name), used, (), parked, None if oldest is None else oldest + window)
    [used] = db.row(SQL.held, (key,))
    rows = db.execute(SQL.holders, (key, HOLDERS))
    holders = tuple(Holder(job_id, TaskId(stage, element), *rest) for job_id, stage, element, *rest in rows)
    return LimitState(key, values.get(name), used, holders, parked, None)


def share_from(body: bytes | None) -> Share | None:
    return None if body is None else json.decode(body, Share)

"""How an edit of a schedule is committed: on the version that was seen, however many ticks are claimed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packhorse.auth.caller import Caller
from packhorse.core.schedules import Move, Schedule
from packhorse.errors import Conflict, EditedMeanwhile, ScheduleNotFound
from packhorse.http.routes.schedules import known
from packhorse.http.services import Tools
from packhorse.store.collections import schedules as schedule_records

SOMEBODY_HERE = "local"
"""Who edits where nobody needs a key."""
TRIES = 20
"""How often a decision is made anew because a tick was claimed meanwhile."""

Decide = Callable[[Schedule | None, float, str], Move | None]
"""What is to become of the schedule, given the time and who wants it; None if it is so already."""


async def moved(
    tools: Tools, caller: Caller, schedule_id: str, match: str | None, decide: Decide, *, is_trial: bool = False
) -> Move:
    """Read, decide, commit; decided anew while only ticks are claimed. Of an edit in between the caller is told.

    A trial is refused as the edit would be, and leaves everything as it is.
    """
    for _ in range(TRIES):
        found = await known(tools, caller, schedule_id)
        if found is not None and match is not None and not _is_seen(match, found):
            raise EditedMeanwhile(schedule_id=schedule_id, version=found.version)
        move = decide(found, tools.store.now(), caller.key_id or SOMEBODY_HERE)
        if move is None:
            assert found is not None
            return Move(found, found)
        caller.acting_for(move.after.terms.user)  # an older version, or the code, may have been for somebody else
        if is_trial:
            return move
        try:
            await schedule_records.move(tools.store, move)
        except Conflict:
            continue
        _tell(tools, caller, move)
        return move
    raise Conflict(schedule_id=schedule_id)


def required(schedule_id: str, decide: Callable[[Schedule, float, str], Move | None]) -> Decide:
    def required(found: Schedule | None, now: float, author: str) -> Move | None:
        if found is None:
            raise ScheduleNotFound(schedule_id=schedule_id[:100])
        return decide(found, now, author)

    return required


def _tell(tools: Tools, caller: Caller, move: Move) -> None:
    id, made = move.after.id, move.revision
    if made is None:
        tools.audit.tell("schedule.run", caller, schedule_id=id)
    else:
        facts: dict[str, Any] = {"version": made.version, "action": made.action, "reason": made.reason}
        tools.audit.tell("schedule.changed", caller, schedule_id=id, **facts)


def _is_seen(match: str, schedule: Schedule) -> bool:
    return any(each.strip() in (f'"{schedule.version}"', "*") for each in match.split(","))

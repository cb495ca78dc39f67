"""Bugs of published job queues, put back into packhorse in this process, to see that the simulation finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lab.model_store import Held, Key, State
from packhorse.background.steady_clock import SteadyClock
from packhorse.core import changes, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Claim, Lease, Renewal
from packhorse.worker.claims import Orphans


def _execute_after_a_failed_claim() -> None:
    """The worker runs what it wanted to claim, whether or not the claim was made."""

    def start(self: State, picked: Sequence[Change | Key], now: float, made: Any = None) -> list[Claim]:
        wanted = [each for each in picked if isinstance(each, Change)]
        self.commit(wanted, now=now, made=made)
        return [self._claim(change) for change in wanted]

    _patch(State, "start", start)


def _renew_ignores_the_owner() -> None:
    def renew(self: State, leases: Sequence[Lease], seconds: float | None, *, now: float) -> Renewal:
        for lease in leases:
            held = self.leases.get((lease.job_id, lease.task))
            if seconds is not None:
                owner = ("", "") if held is None else (held.token, held.worker)
                self.leases[lease.job_id, lease.task] = Held(*owner, now + seconds)
        return Renewal(frozenset(), frozenset())

    _patch(State, "renew", renew)


def _slot_is_released_before_the_terminal_write() -> None:
    real = lifecycle._stop

    def stop(draft: Any, why: Any) -> Change:
        if draft.before.slot is not None and draft.is_running():
            draft.do(changes.ReleaseSlot(draft.before.slot))
        return real(draft, why)

    _patch(lifecycle, "_stop", stop)


def _a_worker_decides_that_a_lease_is_over() -> None:
    """The reaper trusts what it has read: the commit does not require that the lease is still overdue."""
    real = lifecycle.lose

    def lose(job: Job, at: Any, *, token: str, now: float, witnessed: bool = False) -> Change:
        del witnessed
        return real(job, at, token=token, now=now, witnessed=True)

    _patch(lifecycle, "lose", lose)


def _the_reaper_does_not_wait_after_an_outage() -> None:
    """An outage spends everybody's attempts."""

    def steady_for(_: SteadyClock) -> float:
        return float("inf")

    _patch(SteadyClock, "steady_for", steady_for)


def _a_lost_claim_is_forgotten() -> None:
    async def hand_back(*_: object) -> None: ...

    _patch(Orphans, "hand_back", hand_back)


def _a_lost_answer_is_taken_for_a_refusal() -> None:
    """Nobody looks up whether the change was made, before it is decided again."""

    async def look_up(self: Transactor, request: object) -> None: ...

    _patch(Transactor, "_look_up", look_up)


def _cancel_is_read_only_at_the_start() -> None:
    real = lifecycle._go_on

    def go_on(draft: Any, not_before: float) -> Change:
        return real(draft.set(stopping=None), not_before)

    _patch(lifecycle, "_go_on", go_on)


def _terminal_status_without_its_event() -> None:
    real = lifecycle._Draft.say

    def say(self: Any, type: str, **facts: Any) -> None:
        if type != "failed":
            real(self, type, **facts)

    _patch(lifecycle._Draft, "say", say)


def _patch(where: object, name: str, value: object) -> None:
    setattr(where, name, value)


BUGS: dict[str, Callable[[], None]] = {
    name.strip("_").replace("_", "-"): value
    for name, value in list(globals().items())
    if name.startswith("_") and callable(value) and name not in ("_patch",) and not name.startswith("__")
}
"""By name."""

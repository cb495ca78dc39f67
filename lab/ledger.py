"""The invariants, checked from a ledger that packhorse cannot touch: what servers did, what stages and callers saw.

The numbers are those of docs/reliability.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from lab.loop import Machine
from lab.model_store import Held, Key
from packhorse.core import changes, error_codes
from packhorse.core.changes import Change
from packhorse.core.limits import uses_of
from packhorse.core.models import Event, Job, TaskId
from packhorse.core.plan import Status

ORDER = {Status.PENDING: 0, Status.RUNNING: 1}
UNCOUNTED = frozenset({"later", "handed_back"})
HEALTHY = 0.75
"""Leases for which a worker must have been well, so that it must have renewed its own."""
FOUND = 1.5
"""Seconds in which a worker that is well finds out what the store has started for it."""

Lines = Mapping[str, Mapping[str, object]]
"""By slot, the jobs that wait for it."""
Attempt = tuple[str, int, TaskId]
"""Job, run and task."""


class Violation(Exception):
    """A promise is broken."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class Ledger:
    def __init__(
        self,
        lease: float,
        now: Callable[[], float],
        worker: Callable[[str], Machine | None],
        outage: Callable[[], tuple[float, float]],
    ) -> None:
        """``now``: the time of the simulation. ``worker``: the machine of a worker by its id. ``outage``: the last."""
        self._outage = outage
        self._lease = lease
        self._now = now
        self._worker = worker
        self.acknowledged: dict[str, float] = {}
        """Jobs of which a caller was told that they are accepted."""
        self.cancelled: dict[tuple[str, int], float] = {}
        """Runs of which a caller was told that they are being stopped."""
        self.jobs: dict[str, Job] = {}
        self.events: dict[str, list[Event]] = {}
        self.ended: Counter[tuple[str, int]] = Counter()
        self.tokens: dict[tuple[str, TaskId], str] = {}
        """The token that may write, by job and task."""
        self.granted: dict[str, tuple[str, TaskId]] = {}
        """Every token there ever was."""
        self.holders: dict[str, str] = {}
        """The worker of each token."""
        self.unknown: dict[str, float] = {}
        """Tokens of which their worker was not told, and since when the store has them."""
        self.holds: dict[str, set[Key]] = {}
        """The tasks that are counted under each key of a limit."""
        self.begun: dict[str, list[float]] = {}
        """When tasks started that a rate counts, by the server's time."""
        self.attempts: Counter[Attempt] = Counter()
        self.firings: dict[tuple[str, float], str] = {}
        self.erased: set[str] = set()
        self.starts = 0
        self.violations: list[Violation] = []
        self.is_lossy = False
        """A fail-over has lost acknowledged writes: what was promised about them is void."""

    def fail(self, invariant: str, message: str) -> None:
        self.violations.append(Violation(invariant, message))

    def expect(self, is_true: bool, invariant: str, message: str) -> None:
        if not is_true:
            self.fail(invariant, message)

    def forget(
        self, jobs: dict[str, Job], events: dict[str, list[Event]], leases: dict[tuple[str, TaskId], str]
    ) -> None:
        """Begin again from what a fail-over has left."""
        self.is_lossy = True
        self.jobs = dict(jobs)
        self.events = {job_id: list(found) for job_id, found in events.items()}
        self.tokens = dict(leases)
        self.granted |= {token: key for key, token in leases.items()}
        self.holds.clear()
        for job_id, task in leases:
            for use in uses_of(jobs[job_id], task) if job_id in jobs else ():
                self.holds.setdefault(use.key, set()).add((job_id, task))
        self.begun.clear()
        self.attempts.clear()
        self.ended = Counter((job.id, job.run) for job in jobs.values() if job.status.is_terminal)
        self.acknowledged = {job_id: at for job_id, at in self.acknowledged.items() if job_id in jobs}
        self.cancelled.clear()
        self.firings = {
            (job.firing.schedule, job.firing.tick): job.id for job in jobs.values() if job.firing is not None
        }

    # What the store's server did.

    def made(
        self, change: Change, slots: Mapping[str, str], lines: Lines, now: float, leases: Mapping[Key, Held]
    ) -> None:
        """``now``: the server's time. ``leases``: as they were before."""
        job, before = change.after, self.jobs.get(change.after.id)
        self._check_status(before, job, change)
        self._check_events(job, change.events)
        for effect in change.effects:
            match effect:
                case changes.EndLease(task):
                    self._end_lease(change, task, now, leases.get((job.id, task)))
                    for held in self.holds.values():
                        held.discard((job.id, task))
                case changes.KeepResult(task, result):
                    token = "" if change.before is None else (change.before.task(task) or _NONE).token
                    for made in result.artifacts:
                        self.expect(
                            f"/{token}/" in made.file.key, "I3", f"{job.id} keeps {made.file.key}, not of token {token}"
                        )
        for effect in change.effects:
            if isinstance(effect, changes.Grant):
                self._grant(job, effect)
                self._check_limits(job, effect, now)
        self._check_slot(job, slots, lines)
        if before is None and job.firing is not None:
            tick = (job.firing.schedule, job.firing.tick)
            self.expect(tick not in self.firings, "I8", f"tick {tick} has the jobs {self.firings.get(tick)}, {job.id}")
            self.firings[tick] = job.id
        self.jobs[job.id] = job

    def _check_status(self, before: Job | None, job: Job, change: Change) -> None:
        if before is None:
            self.expect(job.status is Status.PENDING, "I2", f"{job.id} begins as {job.status}")
            return
        self.expect(job.version == before.version + 1, "I2", f"{job.id}: version {before.version} → {job.version}")
        if job.run == before.run:
            if before.status.is_terminal:
                self.expect(job.status is before.status, "I2", f"{job.id}: {before.status} → {job.status}")
            else:
                is_forward = job.status.is_terminal or ORDER[job.status] >= ORDER[before.status]
                self.expect(is_forward, "I2", f"{job.id}: {before.status} → {job.status}")
        else:
            self.expect(
                before.status.is_terminal and job.run == before.run + 1, "I2", f"{job.id}: run {before.run} → {job.run}"
            )
        told = [event for event in change.events if event.type in ("completed", "failed", "cancelled")]
        is_end = job.status.is_terminal and not (before.status.is_terminal and before.run == job.run)
        self.ended[job.id, job.run] += is_end
        self.expect(
            len(told) == is_end and self.ended[job.id, job.run] <= 1,
            "I2",
            f"{job.id}: run {job.run} ends {self.ended[job.id, job.run]} times, with {len(told)} events now",
        )

    def _check_events(self, job: Job, added: tuple[Event, ...]) -> None:
        kept = self.events.setdefault(job.id, [])
        numbers = [event.n for event in added]
        first = len(kept) + 1
        self.expect(
            numbers == list(range(first, first + len(added))) and job.events == len(kept) + len(added),
            "I6",
            f"{job.id}: events {numbers} after {len(kept)}, and the job counts {job.events}",
        )
        kept += added

    def _end_lease(self, change: Change, task: TaskId, now: float, lease: Held | None) -> None:
        job = change.after
        token = self.tokens.pop((job.id, task), None)
        held = None if change.before is None else change.before.task(task)
        self.expect(
            self.is_lossy or (held is not None and held.token == token is not None),
            "I3",
            f"{job.id}: a write with the token {None if held is None else held.token} of {task}, which has {token}",
        )
        returned = {
            (event.data["stage"], event.data.get("element", 0))
            for event in change.events
            if event.type == "retrying" and event.data.get("why") in UNCOUNTED
        }
        if tuple(task) in returned:
            self.attempts[job.id, job.run, task] -= 1
        lost = {
            (event.data["stage"], event.data.get("element", 0))
            for event in change.events
            if event.type in ("retrying", "stage_failed") and event.data.get("code") == error_codes.WORKER_LOST
        }
        if token in self.holders and tuple(task) in lost:
            self._lose(job, task, token, now, lease)

    def _grant(self, job: Job, effect: changes.Grant) -> None:
        key, at = (job.id, effect.task), (job.id, job.run, effect.task)
        self.expect(key not in self.tokens, "I3", f"{job.id}: {effect.task} is leased twice")
        self.expect(effect.token not in self.granted, "I3", f"{job.id}: the token of {effect.task} was used before")
        self.tokens[key] = effect.token
        self.granted[effect.token] = key
        self.holders[effect.token] = effect.worker
        self.attempts[at] += 1
        limit = job.plan.stage(effect.task.stage).retries + 1
        self.expect(
            self.attempts[at] <= limit, "I4", f"{job.id}: attempt {self.attempts[at]} of {effect.task}, limit {limit}"
        )
        self.expect(
            (job.id, job.run) not in self.cancelled,
            "I10",
            f"{job.id}: {effect.task} starts after the cancel of run {job.run} was acknowledged",
        )

    def _check_limits(self, job: Job, effect: changes.Grant, now: float) -> None:
        for use in effect.limits:
            if use.window:
                begun = self.begun[use.key] = [min(at, now) for at in self.begun.get(use.key, [])]
                used = sum(at >= now - use.window for at in begun)
                begun.append(now)
            else:
                held = self.holds.setdefault(use.key, set())
                used = len(held)
                held.add((job.id, effect.task))
            self.expect(used < use.most, "I15", f"{job.id}: {effect.task} starts although {use.key} has {used}")

    def _check_slot(self, job: Job, slots: Mapping[str, str], lines: Lines) -> None:
        if job.slot is None:
            return
        line = lines.get(job.slot, {})
        self.expect(job.slot in slots or not line, "I5", f"{list(line)} wait for {job.slot}, which nobody holds")
        if job.status.is_terminal:
            self.expect(slots.get(job.slot) != job.id, "I5", f"{job.id} is {job.status} and holds {job.slot}")
            self.expect(job.id not in line, "I5", f"{job.id} is {job.status} and waits for {job.slot}")
        elif job.id in line:
            is_waiting = job.status is Status.PENDING and slots[job.slot] != job.id
            self.expect(is_waiting, "I5", f"{job.id} is {job.status} and waits for {job.slot}")
        else:
            self.expect(
                slots.get(job.slot) == job.id,
                "I5",
                f"{job.id} is {job.status}, and {slots.get(job.slot)} holds its slot {job.slot}",
            )

    def started_unknown(self, tokens: Iterable[str]) -> None:
        for token in tokens:
            self.unknown[token] = self._now()

    def _lose(self, job: Job, task: TaskId, token: str, now: float, lease: Held | None) -> None:
        """The server took the lease away from a worker: that needs a reason."""
        machine = self._worker(self.holders[token])
        if machine is None or not machine.is_alive or machine.is_stopped:
            return
        here = self._now()
        self.expect(
            lease is not None and lease.until <= now,
            "I3",
            f"{job.id}: {task} was taken from {machine}, whose lease was not over",
        )
        self.expect(
            here - machine.healthy_since < HEALTHY * self._lease,
            "I4",
            f"{job.id}: {task} was taken from {machine}, which had been well for {here - machine.healthy_since:.1f} s",
        )
        well = here - max(machine.healthy_since, self.unknown.get(token, here))
        self.expect(
            well < FOUND,
            "I4",
            f"{job.id}: {task} was taken from {machine}, which did not know of it, and was well for {well:.1f} s",
        )
        since, until = self._outage()
        is_after_outage = until - since >= HEALTHY * self._lease and until <= here < until + self._lease / 2
        self.expect(
            not is_after_outage or machine.hurt_until > since - self._lease,
            "I4",
            f"{job.id}: {task} was taken from {machine} {here - until:.1f} s after an outage",
        )

    def job_erased(self, job_id: str, now: float) -> None:
        """``now``: the latest time that the server's clock has shown, but for what was wrong for a moment."""
        job = self.jobs.get(job_id)
        self.erased.add(job_id)
        if job is not None:
            due = job.purge_at
            is_deleted = job.is_purging and due == job.updated_at  # by a caller, whatever its clock said
            self.expect(
                job.status.is_terminal and due is not None and (is_deleted or due <= now),
                "I11",
                f"{job_id} ({job.status}) is erased {(due or now) - now:.0f} s before its time",
            )

    # What stages and callers saw.

    def stage_began(self, job_id: str, kind: str, element: int, token: str, machine: Machine) -> None:
        self.starts += 1
        stage = TaskId(kind.partition(".")[2], element)
        if not self.is_lossy:
            self.expect(
                self.granted.get(token) == (job_id, stage),
                "I3",
                f"{machine} runs {stage} of {job_id} under {token}, which the store has not granted",
            )

    def was_acknowledged(self, job_id: str) -> None:
        if job_id in self.jobs or not self.is_lossy:  # else a fail-over lost it while the answer was on its way
            self.acknowledged[job_id] = self._now()

    def cancel_was_acknowledged(self, job: Job) -> None:
        self.cancelled[job.id, job.run] = self._now()

    def was_read(self, job_id: str, after: int, found: list[Event]) -> None:
        """What a watcher got that asked for the events behind a number."""
        if self.is_lossy or job_id in self.erased:
            return
        exact = self.events.get(job_id, [])[after : after + len(found)]
        self.expect(found == exact, "I6", f"{job_id}: a watcher got events that differ from those after {after}")


class _NoTask:
    token = None


_NONE = _NoTask()

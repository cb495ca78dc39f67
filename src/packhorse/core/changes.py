"""A change decided by the lifecycle, to be committed by a store: guards, effects and events. Frozen structs."""

from __future__ import annotations

from msgspec import Struct

from packhorse.core.limits import LimitUse, Share
from packhorse.core.models import Event, FailedRun, FailureStatus, Job, Result, Settled, Spec, TaskId
from packhorse.core.records import IndexEntry, Put, Ref


class Holds(Struct, frozen=True, tag=True):
    """The lease of this task carries this token."""

    task: TaskId
    token: str


class Overdue(Struct, frozen=True, tag=True):
    """The lease carries this token and has expired by the store's clock."""

    task: TaskId
    token: str


class Waiting(Struct, frozen=True, tag=True):
    """The task is still in its queue."""

    task: TaskId


class Foremost(Struct, frozen=True, tag=True):
    """No task of these kinds that is more urgent than this one is ready in its queue.

    For fairness only, so a store may check without a lock.
    """

    task: TaskId
    kinds: tuple[str, ...]


class WithinLimits(Struct, frozen=True, tag=True):
    """With one more start, each of these limits still holds: by the values in force, and by the store's clock.

    Refused with `Conflict` otherwise. A claim parks the task under the first limit that is full.
    """

    task: TaskId
    limits: tuple[LimitUse, ...]


class SlotFree(Struct, frozen=True, tag=True):
    """Nobody holds the slot, or this job does."""

    slot: str


class KeyUnused(Struct, frozen=True, tag=True):
    """No job was submitted with this idempotency key. Checked before any slot."""

    key: str


class RecordIs(Struct, frozen=True, tag=True):
    """The record carries this stamp; 0: there is none. Refused with `Conflict` otherwise."""

    ref: Ref
    stamp: int


class HasRoom(Struct, frozen=True, tag=True):
    """With one more job and so many more bytes the tenant is within its quotas. Checked after all other guards."""

    tenant: str
    most_jobs: int
    """Unfinished jobs; 0 means any number."""
    most_bytes: int
    bytes: int


Guard = Holds | Overdue | Waiting | Foremost | WithinLimits | SlotFree | KeyUnused | RecordIs | HasRoom


AT_ONCE = 0.0
"""Due whatever the store's clock says: that of who decides may be ahead of it, and the stage would wait."""


class MakeDue(Struct, frozen=True, tag=True):
    task: TaskId
    queue: str
    kind: str
    priority: int
    not_before: float
    delay: float = 0.0  # seconds from now to `not_before`, on the decider's clock
    limits: tuple[LimitUse, ...] = ()
    """If one of them is full already, the task may be parked under it at once."""
    share: Share | None = None  # None: its queue orders it by priority and age


class TakeBack(Struct, frozen=True, tag=True):
    """Remove the task from its queue, or from where it is parked."""

    task: TaskId
    limits: tuple[LimitUse, ...] = ()
    """Of a task that will not start: if it had been woken, another one that is parked under them has to be."""


class Grant(Struct, frozen=True, tag=True):
    """Give the worker the lease for ``seconds`` by the store's clock, and count it under these limits."""

    task: TaskId
    token: str
    worker: str
    seconds: float
    limits: tuple[LimitUse, ...] = ()
    share: Share | None = None  # whose turn this was


class EndLease(Struct, frozen=True, tag=True):
    """End the lease. What it held of limits is free again, and as many parked tasks are woken."""

    task: TaskId
    limits: tuple[LimitUse, ...] = ()


class TakeSlot(Struct, frozen=True, tag=True):
    """Hold the slot. With ``waits``, the job joins the slot's line instead while another job holds it, and what the
    same change makes due is kept there until its turn comes."""

    slot: str
    waits: bool = False


class ReleaseSlot(Struct, frozen=True, tag=True):
    """Hand the slot over to the first job in its line, and make due what was kept there; or free it if none waits.

    If this job does not hold it but waits in the line, it leaves the line.
    """

    slot: str


class KeepSpec(Struct, frozen=True, tag=True):
    spec: Spec


class RememberKey(Struct, frozen=True, tag=True):
    """Store the idempotency key as long as the job exists."""

    key: str
    fingerprint: str


class KeepResult(Struct, frozen=True, tag=True):
    task: TaskId
    result: Result


class DropStages(Struct, frozen=True, tag=True):
    """Delete results and progress of these stages: they run again."""

    stages: tuple[str, ...]


class RecordFailure(Struct, frozen=True, tag=True):
    """Keep the failure, and count it in its group: both, or neither, with the status that it is about."""

    failure: FailedRun


class SettleFailures(Struct, frozen=True, tag=True):
    """Move the job's failures from one status to the next, and their groups' counts with them."""

    was: FailureStatus
    now: FailureStatus
    settled: Settled | None = None  # None: as it was said before


class PutRecord(Struct, frozen=True, tag=True):
    """Write the record with the job. It is left out where its stamp, job or `needs` does not hold: the rest is made."""

    put: Put


class NoteRecord(Struct, frozen=True, tag=True):
    """Replace the note and the index entries of a record, if it is there. The body stays; it is no longer due."""

    ref: Ref
    note: bytes
    index: tuple[IndexEntry, ...] = ()


class DropRecord(Struct, frozen=True, tag=True):
    """Delete a record, if it is there."""

    ref: Ref


class CountUsage(Struct, frozen=True, tag=True):
    """Add to what counts towards the quotas of the tenant: unfinished jobs, and bytes of files."""

    tenant: str
    jobs: int = 0
    bytes: int = 0


Effect = (
    MakeDue | TakeBack | Grant | EndLease | TakeSlot | ReleaseSlot | KeepSpec | RememberKey | KeepResult | DropStages
    | RecordFailure | SettleFailures | PutRecord | NoteRecord | DropRecord | CountUsage
)  # fmt: skip


def slot_to_wait_for(change: Change) -> str | None:
    """The slot that the job waits for if another one holds it."""
    if change.after.slot is None:
        return None
    return next((each.slot for each in change.effects if isinstance(each, TakeSlot) and each.waits), None)


class Change(Struct, frozen=True):
    """A decision about one job, to be committed whole or not at all."""

    before: Job | None
    after: Job
    guards: tuple[Guard, ...] = ()
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    id: str = ""
    """Kept with the events, so that a caller whose answer was lost can look whether it was made."""

"""Named points at which tests kill the process with SIGKILL. Without a hook, reaching one costs a comparison."""

from __future__ import annotations

from collections.abc import Callable

POINTS = frozenset(
    {
        "store.write.before",  # a batch of writes is collected, the store has none of them
        "store.write.open",  # the transaction is complete but not committed; or a script is sent but not answered
        "store.write.after",  # it is committed, no caller knows yet
        "blob.put.before",  # nothing of the object is on disk
        "blob.put.written",  # its bytes are on disk under a temporary name
        "blob.put.after",  # it has its name, no job refers to it
        "blob.delete.after",  # one object of a prefix is deleted
        "admit.objects.after",  # all inputs are stored, the job is not
        "admit.job.after",  # the job is stored, the caller does not know yet
        "admit.replace.before",  # the job is stored, the jobs that it replaces still run
        "attempt.claimed",  # the lease is granted, no process has the work
        "attempt.sent",  # a process has the work
        "attempt.done",  # the stage has returned, nothing is published
        "attempt.published",  # its files are in the object store, the record does not name them yet
        "attempt.settled",  # the outcome is recorded, scratch still exists
        "schedule.claimed",  # a tick is claimed, it has no job yet
        "schedule.fired",  # its job is stored, the scheduler has done nothing else
        "order.retried",  # jobs were retried, the order does not count them yet
        "revival.spent",  # the budget is spent, the job is not retried yet
        "revival.made",  # the job is retried, the action still exists
        "alert.posted",  # the messages are in the outbox, the alert still exists
        "webhook.sent",  # the receiver has answered, the outbox is not updated yet
        "purge.marked",  # the tombstone is set, the objects still exist
        "purge.objects.gone",  # the objects are deleted, the record still exists
    }
)

hook: Callable[[str, object], None] | None = None
"""Called with the point, and with what reached it: an `Attempt`, or None."""


def reach(point: str, by: object = None) -> None:
    if hook is not None:
        hook(point, by)

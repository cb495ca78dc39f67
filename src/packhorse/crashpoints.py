"""Named points at which tests kill the process with SIGKILL. Without a hook, reaching one costs a comparison."""

from __future__ import annotations

from collections.abc import Callable

POINTS = frozenset(
    {
        "store.write.before",  # a group of writes was taken, nothing of it is in the store
        "store.write.open",  # its transaction is open and full, not committed; a script was sent, and not answered
        "store.write.after",  # it is committed, nobody has been told
        "blob.put.before",  # nothing of the object is on disk
        "blob.put.written",  # its bytes are on disk under a temporary name
        "blob.put.after",  # it has its name, nobody refers to it
        "blob.delete.after",  # one object of a prefix is gone
        "admit.objects.after",  # all inputs are stored, the job is not
        "admit.job.after",  # the job is stored, the caller has not heard
        "attempt.claimed",  # the lease is granted, no process has been given the work
        "attempt.sent",  # a process has the work
        "attempt.done",  # it has returned, nothing is published
        "attempt.published",  # its files are in the object store, the record does not know
        "attempt.settled",  # the record knows, scratch is still there
        "schedule.claimed",  # a tick is claimed, there is no job for it
        "schedule.fired",  # its job is stored, whoever made it has done nothing else
        "order.retried",  # jobs were begun again, the order does not know
        "revival.spent",  # the budget is spent, the job is not begun again
        "revival.made",  # it is, the action is still there
        "alert.posted",  # the messages are in the outbox, the alert is still there
        "webhook.sent",  # a receiver has answered, the outbox does not know
        "purge.marked",  # the tombstone is set, the objects are there
        "purge.objects.gone",  # the objects are gone, the record is there
    }
)

hook: Callable[[str], None] | None = None


def reach(point: str) -> None:
    if hook is not None:
        hook(point)

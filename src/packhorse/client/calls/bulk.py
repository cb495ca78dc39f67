"""What is asked about many jobs at once, each described once for both clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from packhorse.client.call import BASE, PAUSES, Call, Json, Pages
from packhorse.client.calls.jobs import whole


def count(
    *,
    user: str | None = None,
    status: str | None = None,
    pipeline: str | None = None,
    created_from: str | None = None,
    created_until: str | None = None,
) -> Call[Json]:
    """How many jobs there are, counted up to 1000: ``{"count", "is_at_least"}``."""
    query = {"user_id": user, "status": status, "pipeline": pipeline}
    times = {"created_from": created_from, "created_until": created_until}
    return Call("GET", f"{BASE}/jobs/count", whole, query={**query, **times})


def cancel_jobs(
    ids: Sequence[str] = (),
    *,
    all: bool = False,
    user: str | None = None,
    status: str | None = None,
    pipeline: str | None = None,
    created_from: str | None = None,
    created_until: str | None = None,
    dry_run: bool = False,
) -> Pages:
    """Cancel those of these ids, or every active job that has what is named; with ``all``, every one there is.

    ``{"count", "left": {why: number}, "named": [...]}``, once all is done; with ``dry_run`` nothing is done, and the
    answer says how many it would be.
    """
    times = {"created_from": created_from, "created_until": created_until}
    return _pages("cancel", ids, dry_run, all=all, user_id=user, status=status, pipeline=pipeline, **times)


def retry_jobs(
    ids: Sequence[str] = (),
    *,
    all: bool = False,
    user: str | None = None,
    status: str | None = None,
    pipeline: str | None = None,
    created_from: str | None = None,
    created_until: str | None = None,
    dry_run: bool = False,
) -> Pages:
    """The same, to start a new run of failed and cancelled jobs from what has not finished."""
    times = {"created_from": created_from, "created_until": created_until}
    return _pages("retry", ids, dry_run, all=all, user_id=user, status=status, pipeline=pipeline, **times)


def delete_jobs(
    ids: Sequence[str] = (),
    *,
    all: bool = False,
    user: str | None = None,
    status: str | None = None,
    pipeline: str | None = None,
    created_from: str | None = None,
    created_until: str | None = None,
    dry_run: bool = False,
) -> Pages:
    """The same, to delete jobs that have ended, with their files."""
    times = {"created_from": created_from, "created_until": created_until}
    return _pages("delete", ids, dry_run, all=all, user_id=user, status=status, pipeline=pipeline, **times)


def _pages(verb: str, ids: Sequence[str], dry_run: bool, **filter: str | bool | None) -> Pages:
    """Said twice it is done once, so that a lost answer is asked for again."""
    asked: Json = {name: value for name, value in filter.items() if value not in (None, False)}
    asked |= {"ids": [*ids]} if ids else {}
    asked |= {"dry_run": True} if dry_run else {}
    return lambda cursor: Call(
        "POST",
        f"{BASE}/jobs/{verb}",
        whole,
        json=asked if cursor is None else {**asked, "cursor": cursor},
        pauses=PAUSES,
    )


def added(so_far: Json | None, answer: Json) -> Json:
    """What all answers come to until now."""
    if so_far is None:
        return answer
    left: dict[str, int] = dict(Counter(so_far["left"]) + Counter(answer["left"]))
    together = {"count": so_far["count"] + answer["count"], "left": left, "named": so_far["named"] + answer["named"]}
    return {**answer, **together}

"""Calls about many jobs at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from packhorse.client.call import BASE, PAUSES, Call, Json, Pages
from packhorse.client.calls.jobs import document


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
    return Call("GET", f"{BASE}/jobs/count", document, query={**query, **times})


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
    """Cancel the jobs with these ids, or every active job that matches the filters; with ``all``, every active job.

    ``{"count", "left": {why: number}, "named": [...]}``, when all is done; with ``dry_run`` nothing changes, and the
    answer says how many jobs match.
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
    """Start a new run of failed and cancelled jobs; arguments as for `cancel_jobs`. Finished stages are kept."""
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
    """Delete jobs that have ended, with their files; arguments as for `cancel_jobs`."""
    times = {"created_from": created_from, "created_until": created_until}
    return _pages("delete", ids, dry_run, all=all, user_id=user, status=status, pipeline=pipeline, **times)


def _pages(verb: str, ids: Sequence[str], dry_run: bool, **filter: str | bool | None) -> Pages:
    """Repeatable: a second request with the same cursor changes nothing more."""
    body: Json = {name: value for name, value in filter.items() if value not in (None, False)}
    body |= {"ids": [*ids]} if ids else {}
    body |= {"dry_run": True} if dry_run else {}
    return lambda cursor: Call(
        "POST",
        f"{BASE}/jobs/{verb}",
        document,
        json=body if cursor is None else {**body, "cursor": cursor},
        pauses=PAUSES,
    )


def add_page(so_far: Json | None, answer: Json) -> Json:
    """The sum of all answers so far."""
    if so_far is None:
        return answer
    left: dict[str, int] = dict(Counter(so_far["left"]) + Counter(answer["left"]))
    together = {"count": so_far["count"] + answer["count"], "left": left, "named": so_far["named"] + answer["named"]}
    return {**answer, **together}

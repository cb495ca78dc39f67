"""Calls about jobs, one or many. Answers are the JSON as the server sent it; a problem raises the server's error.

Each function describes one method of `Client` and, as a coroutine, of `AsyncClient`; its docstring is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

import uuid_utils

from packhorse.client.call import PAUSES, READ, Batch, Call, Follow, Json, Pages, filter_query, item_path, items
from packhorse.client.files import Files, Form, OnProgress
from packhorse.errors import InvalidInput, PackhorseError

STORING = 600.0
"""Seconds. A server may take long over the last byte of an upload: it syncs gigabytes to disk before it answers."""


class JobFilter(TypedDict, total=False):
    user: str | None
    status: str | None
    pipeline: str | None
    created_from: str | None
    created_until: str | None


class JobSearch(JobFilter, total=False):
    q: str | None
    """An id or its beginning, the beginning of a file name, a user, or ``name=value`` such as ``order=7``."""


def pipelines() -> Call[Sequence[Json]]:
    """The pipelines: name, description, JSON Schema of the parameters, stages."""
    return Call("GET", "/pipelines", items)


def submit(
    pipeline: str | None,
    parameters: Mapping[str, Any] | None = None,
    *,
    files: Files | None = None,
    user: str | None = None,
    priority: int = 0,
    delay: float | str = 0,
    at: datetime | str | None = None,
    debounce: float | str = 0,
    key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    wait: float | None = None,
    on_progress: OnProgress | None = None,
) -> Call[Json]:
    """The job. ``pipeline`` may be None if the server has one.

    The first stage starts after ``delay``, or not before ``at``: a time with a time zone. With ``debounce`` and a
    ``key``, the job waits that long for another submit with this key, which replaces it.

    Files are paths, bytes, open files or ``(filename, one of these)``, a list of them where the parameter is a list;
    they are streamed, whatever their size, and ``on_progress`` is called with the bytes sent so far and in total.
    ``wait`` is how many seconds the server may wait for the job to end before it answers. If the answer is lost, the
    client repeats the request with the same idempotency key and gets the same job; pass ``key`` to repeat it yourself.
    """
    body: Json = {"parameters": dict(parameters or {})}
    body |= {"priority": priority} if priority else {}
    body |= {"delay": delay} if delay else {}
    body |= {"debounce": debounce} if debounce else {}
    body |= {"at": at.isoformat() if isinstance(at, datetime) else at} if at is not None else {}
    body |= {"metadata": dict(metadata)} if metadata else {}
    headers = {"Idempotency-Key": str(uuid_utils.uuid7()) if key is None else key}
    if wait is not None:
        headers["Prefer"] = f"wait={ceil(wait)}"  # the header has whole seconds
    return Call(
        "POST",
        "/jobs",
        query={"pipeline": pipeline, "user_id": user},
        headers=headers,
        json=body,
        form=Form(body, files, on_progress) if files else None,
        patience=(STORING if files else READ) + (wait or 0),
        pauses=PAUSES,
    )


def submit_many(
    items: Iterable[Mapping[str, object]], *, pipeline: str | None = None, user: str | None = None
) -> Call[list[Json | PackhorseError]]:
    """For each item its job, or the error that `submit` would have raised for it, in their order.

    An item is ``{"pipeline", "user_id", "parameters", "priority", "delay", "at", "metadata", "idempotency_key"}``, all
    optional; ``pipeline`` and ``user`` are those of all items. 1,000 items travel together. Items that are refused
    because the server is busy, or whose outcome is unknown, are sent again with the same idempotency key; pass
    ``idempotency_key`` to send an item again yourself. Raises an error only if no item has an outcome.
    """
    batch = Batch(items, {"pipeline": pipeline, "user_id": user})
    return batch.call() or Call("POST", "/jobs/batch", lambda _: [], json={"items": []})


def get(job_id: str) -> Call[Json]:
    """One job."""
    return Call("GET", _job(job_id))


def explain(job_id: str) -> Call[Sequence[Json]]:
    """Why it is not running now: a list of ``{"code", "message"}``, empty if it is running."""
    return Call("GET", _job(job_id) + "/explain", lambda answer: answer["reasons"])


def estimate(job_id: str) -> Call[Json]:
    """How much longer it will run: ``{"seconds", "ends_at", "runs", "stages"}``, ``seconds`` None if unknown."""
    return Call("GET", _job(job_id) + "/estimate")


def history(job_id: str, after: int = 0, limit: int | None = None) -> Call[Json]:
    """What has happened so far, one page: ``{"items": [{"n", "type", "at", ...}], "next": number or None}``."""
    return Call("GET", _job(job_id) + "/history", query={"after": after or None, "limit": limit})


def metrics(job_id: str) -> Call[Sequence[Json]]:
    """``{"stage", "element", "peak_cpu", "peak_memory_bytes", "samples": [...]}`` for each task sampled."""
    return Call("GET", _job(job_id) + "/metrics", items)


def page(*, cursor: str | None = None, limit: int | None = None, **filter: Unpack[JobSearch]) -> Call[Json]:
    """One page, newest first: ``{"items": [...], "next": cursor or None}``. Times are ISO. ``q`` searches."""
    return Call("GET", "/jobs", query={**filter_query(filter, JobSearch), "cursor": cursor, "limit": limit})


def every(*, limit: int | None = None, **filter: Unpack[JobSearch]) -> Pages:
    """Every job, newest first, fetched in pages of ``limit`` jobs as you iterate."""
    return lambda cursor: page(cursor=cursor, limit=limit, **filter)


def count(**filter: Unpack[JobFilter]) -> Call[Json]:
    """How many jobs there are, counted up to 1000: ``{"count", "is_at_least"}``."""
    return Call("GET", "/jobs/count", query=filter_query(filter, JobFilter))


def events(job_id: str, after: int = 0) -> Follow:
    """``{"n", "type", "data"}`` each, until the job has ended; reconnects if the connection is lost.

    First a ``snapshot`` whose data is the job, then what happened after event number ``after``. ``n`` is None for
    what is not history: snapshot, progress, log, gap.
    """
    return Follow(_job(job_id) + "/events", after)


def end(job_id: str, timeout: float | None = None) -> Follow:
    return Follow(_job(job_id) + "/events", timeout=timeout, log=False)


def log(
    job_id: str, after: int = 0, stage: str | None = None, limit: int | None = None, newest: bool = False
) -> Call[Json]:
    """One page: ``{"items": [{"n", "stage", "element", "attempt", "at", "text"}], "next": number or None}``.

    With ``newest``, the last lines.
    """
    query = {"after": after or None, "stage": stage, "limit": limit, "newest": "true" if newest else None}
    return Call("GET", _job(job_id) + "/log", query=query)


def cancel(job_id: str) -> Call[Json]:
    """Cancel now, or ask the worker to."""
    return Call("POST", _job(job_id) + "/cancel")


def retry(job_id: str, stage: str | None = None, *, failed_elements: bool = False) -> Call[Json]:
    """Start a new run: from what failed, from ``stage``, or of everything (``*``).

    ``failed_elements``: of the elements that failed and were left out, and of what follows them.
    """
    body = {"failed_elements": True} if failed_elements else None
    return Call("POST", _job(job_id) + "/retry", query={"stage": stage}, json=body)


def delete(job_id: str) -> Call[None]:
    """Delete a job that has ended, with its files."""
    return Call("DELETE", _job(job_id))


def cancel_jobs(
    ids: Sequence[str] = (), *, all: bool = False, dry_run: bool = False, **filter: Unpack[JobFilter]
) -> Call[Json]:
    """Cancel the jobs with these ids, or every active job that matches the filters; with ``all``, every active job.

    ``{"count", "left": {why: number}, "named": [...]}``, when all is done; with ``dry_run`` nothing changes, and the
    answer says how many jobs match.
    """
    return _bulk("cancel", ids, all, dry_run, filter)


def retry_jobs(
    ids: Sequence[str] = (), *, all: bool = False, dry_run: bool = False, **filter: Unpack[JobFilter]
) -> Call[Json]:
    """Start a new run of failed and cancelled jobs; arguments as for `cancel_jobs`. Finished stages are kept."""
    return _bulk("retry", ids, all, dry_run, filter)


def delete_jobs(
    ids: Sequence[str] = (), *, all: bool = False, dry_run: bool = False, **filter: Unpack[JobFilter]
) -> Call[Json]:
    """Delete jobs that have ended, with their files; arguments as for `cancel_jobs`."""
    return _bulk("delete", ids, all, dry_run, filter)


def promote(job_id: str, destination: str | None = None) -> Call[Json]:
    """Copy the result files to the named destination; default: the server's first."""
    return Call("POST", _job(job_id) + "/promote", json={"destination": destination} if destination else None)


def destinations() -> Call[Sequence[Json]]:
    """Where results can be promoted to: a list of ``{"name"}``, the default first."""
    return Call("GET", "/destinations", items)


def me() -> Call[Json]:
    """Who you are and what your key allows: ``{"key_id", "tenant_id", "allowed", "user_id", "job_id"}``."""
    return Call("GET", "/me")


def tokens(job_id: str) -> Call[Sequence[Json]]:
    """The tokens of this job, without their secrets."""
    return Call("GET", _job(job_id) + "/tokens", items)


def token(job_id: str, expires_in: float | str | None = None) -> Call[Json]:
    """A token with which its holder can read and cancel this job. Its secret is shown only once."""
    body = None if expires_in is None else {"expires_in": expires_in}
    return Call("POST", _job(job_id) + "/tokens", json=body)


def revoke(job_id: str, token_id: str) -> Call[Json]:
    """End a token of this job now."""
    return Call("DELETE", item_path(_job(job_id) + "/tokens", token_id, "token id"))


def result(job_id: str, to: str | PathLike[str]) -> Call[Path | Any]:
    """The result. If it is a file (several: a zip) it is written to ``to`` and its path returned; else the value.

    If ``to`` is a folder, or ends with a slash, the file gets the name the server gives it, with a number added if
    that name is taken. It appears only when it is complete and its digest matches the server's.
    """
    return Call("GET", _job(job_id) + "/result", to=_place(to))


def artifacts(job_id: str) -> Call[Sequence[Json]]:
    """``{"name", "filename", "size_bytes", "sha256", "content_type", "object_key"}`` each."""
    return Call("GET", _job(job_id) + "/artifacts", items)


def artifact(job_id: str, name: str, to: str | PathLike[str]) -> Call[Path]:
    """Download one file that a stage produced, as `result` does."""
    if not name.strip("/ "):
        raise InvalidInput("The artifact name is empty.", field="name")
    return Call("GET", f"{_job(job_id)}/artifacts/{quote(name)}", to=_place(to))


def _place(to: str | PathLike[str]) -> Path:
    """A path that ends with a slash is a folder, which is created."""
    if isinstance(to, str) and to.endswith("/"):
        Path(to).mkdir(parents=True, exist_ok=True)
    return Path(to)


def _job(job_id: str) -> str:
    return item_path("/jobs", job_id, "job id")


def _bulk(verb: str, ids: Sequence[str], all: bool, dry_run: bool, filter: JobFilter) -> Call[Json]:
    """Repeatable: a second request with the same cursor changes nothing more."""
    body = filter_query(filter, JobFilter)
    body |= {"all": True} if all else {}
    body |= {"ids": [*ids]} if ids else {}
    body |= {"dry_run": True} if dry_run else {}
    return Call("POST", f"/jobs/{verb}", json=body, pauses=PAUSES, is_bulk=True)

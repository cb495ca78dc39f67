"""Every call of the HTTP interface, described once. Answers are the JSON as it came, problems the errors they were.

What stands here are the methods of `Client` and, as coroutines, of `AsyncClient`; the docstrings are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uuid_utils

from packhorse.client.call import BASE, PAUSES, READ, STORING, Call, Fetch, Json, Pages
from packhorse.client.follow import Follow
from packhorse.client.upload import Files, Form, Told, fields
from packhorse.errors import InvalidInput


def pipelines() -> Call[Sequence[Json]]:
    """What can be submitted: name, description, JSON Schema of the parameters, stages."""
    return Call("GET", f"{BASE}/pipelines", items)


def submit(
    pipeline: str | None,
    parameters: Mapping[str, Any] | None = None,
    *,
    files: Files | None = None,
    user: str | None = None,
    priority: int = 0,
    delay: float | str = 0,
    key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    wait: float | None = None,
    on_progress: Told | None = None,
) -> Call[Json]:
    """The job. ``pipeline`` may be None if the server has one.

    Files are paths, bytes, open files or ``(filename, one of these)``, a list of them where the parameter is a list;
    they are streamed, whatever their size, and ``on_progress`` is called with bytes sent so far, and in all. ``wait``
    is how many seconds the server may take to answer with a job that has ended. An answer that is lost is asked for
    again under the same key, which gives the same job; ``key`` is for those who want to ask again themselves.
    """
    asked: Json = {"parameters": dict(parameters or {})}
    asked |= {"priority": priority} if priority else {}
    asked |= {"delay": delay} if delay else {}
    asked |= {"metadata": dict(metadata)} if metadata else {}
    headers = {"Idempotency-Key": str(uuid_utils.uuid7()) if key is None else key}
    if wait is not None:
        headers["Prefer"] = f"wait={ceil(wait)}"  # it is told in whole seconds
    return Call(
        "POST",
        f"{BASE}/jobs",
        whole,
        query={"pipeline": pipeline, "user_id": user},
        headers=headers,
        json=asked,
        form=Form(fields(asked), files, on_progress) if files else None,
        patience=(STORING if files else READ) + (wait or 0),
        pauses=PAUSES,
    )


def get(job_id: str) -> Call[Json]:
    """One job."""
    return Call("GET", _job(job_id), whole)


def explain(job_id: str) -> Call[Sequence[Json]]:
    """Why it is not running now: ``{"code", "message"}`` each, none if it is."""
    return Call("GET", _job(job_id) + "/explain", _member("reasons"))


def estimate(job_id: str) -> Call[Json]:
    """How much longer it will run: ``{"seconds", "ends_at", "runs", "stages"}``, seconds None if nobody can tell."""
    return Call("GET", _job(job_id) + "/estimate", whole)


def history(job_id: str, after: int = 0, limit: int | None = None) -> Call[Json]:
    """What has happened so far, one page: ``{"items": [{"n", "type", "at", ...}], "next": number or None}``."""
    return Call("GET", _job(job_id) + "/history", whole, query={"after": after or None, "limit": limit})


def metrics(job_id: str) -> Call[Sequence[Json]]:
    """``{"stage", "element", "peak_cpu", "peak_memory_bytes", "samples": [...]}`` for each task sampled."""
    return Call("GET", _job(job_id) + "/metrics", items)


def page(
    *,
    user: str | None = None,
    status: str | None = None,
    pipeline: str | None = None,
    created_from: str | None = None,
    created_until: str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Call[Json]:
    """One page, newest first: ``{"items": [...], "next": cursor or None}``. Times are ISO."""
    asked = {
        "user_id": user,
        "status": status,
        "pipeline": pipeline,
        "created_from": created_from,
        "created_until": created_until,
        "cursor": cursor,
        "limit": limit,
    }
    return Call("GET", f"{BASE}/jobs", whole, query=asked)


def every(
    *,
    user: str | None = None,
    status: str | None = None,
    pipeline: str | None = None,
    created_from: str | None = None,
    created_until: str | None = None,
    limit: int | None = None,
) -> Pages:
    """Every job, newest first, page after page of ``limit`` jobs as they are asked for."""
    filters: Json = {"user": user, "status": status, "pipeline": pipeline, "limit": limit}
    times: Json = {"created_from": created_from, "created_until": created_until}
    return lambda cursor: page(**filters, **times, cursor=cursor)


def events(job_id: str, after: int = 0) -> Follow:
    """``{"n", "type", "data"}`` each, until the job has ended; a lost connection is taken up again.

    First a ``snapshot`` whose data is the job, then what happened after event number ``after``. ``n`` is None for
    what is not history: snapshot, progress, log, gap.
    """
    return Follow(_job(job_id) + "/events", after)


def end(job_id: str, timeout: float | None = None) -> Follow:
    return Follow(_job(job_id) + "/events", 0, timeout=timeout, log=False)


def log(
    job_id: str, after: int = 0, stage: str | None = None, limit: int | None = None, newest: bool = False
) -> Call[Json]:
    """One page: ``{"items": [{"n", "stage", "element", "attempt", "at", "text"}], "next": number or None}``.

    With ``newest``, the last lines that are there.
    """
    asked = {"after": after or None, "stage": stage, "limit": limit, "newest": "true" if newest else None}
    return Call("GET", _job(job_id) + "/log", whole, query=asked)


def cancel(job_id: str) -> Call[Json]:
    """Cancel now, or ask the worker to."""
    return Call("POST", _job(job_id) + "/cancel", whole)


def retry(job_id: str, stage: str | None = None) -> Call[Json]:
    """Start a new run: from what failed, from ``stage``, or of everything (``*``)."""
    return Call("POST", _job(job_id) + "/retry", whole, query={"stage": stage})


def delete(job_id: str) -> Call[None]:
    """Delete a job that has ended, with its files."""
    return Call("DELETE", _job(job_id), _nothing)


def promote(job_id: str, destination: str | None = None) -> Call[Json]:
    """Copy the result files to a permanent place: the one of that name among the server's, else the first."""
    return Call("POST", _job(job_id) + "/promote", whole, json={"destination": destination} if destination else None)


def destinations() -> Call[Sequence[Json]]:
    """Where results can be promoted to: ``{"name"}`` each, the usual place first."""
    return Call("GET", f"{BASE}/destinations", items)


def me() -> Call[Json]:
    """What your key is good for: ``{"key_id", "tenant_id", "allowed", "user_id", "job_id"}``."""
    return Call("GET", f"{BASE}/me", whole)


def tokens(job_id: str) -> Call[Sequence[Json]]:
    """The tokens that were given out for this job, without what is secret of them."""
    return Call("GET", _job(job_id) + "/tokens", items)


def token(job_id: str, expires_in: float | str | None = None) -> Call[Json]:
    """A token for the person who waits: it can read and cancel this job. Its secret is told this once."""
    asked = None if expires_in is None else {"expires_in": expires_in}
    return Call("POST", _job(job_id) + "/tokens", whole, json=asked)


def revoke(job_id: str, token_id: str) -> Call[Json]:
    """End a token of this job now."""
    if not token_id.strip():
        raise InvalidInput("A token is named by its id, and this is empty.", field="token_id")
    return Call("DELETE", f"{_job(job_id)}/tokens/{quote(token_id, safe='')}", whole)


def result(job_id: str, to: str | PathLike[str]) -> Fetch[Path | Any]:
    """The result. If it is a file (several: a zip) it is written to ``to`` and its path returned; else the value.

    If ``to`` is a folder, or ends with a slash, the file gets the name the server gives it, or, if that is taken, one
    beside it. It appears whole or not at all, and only if its
    sum is what the server says.
    """
    return Fetch(_job(job_id) + "/result", _place(to))


def artifacts(job_id: str) -> Call[Sequence[Json]]:
    """``{"name", "filename", "size_bytes", "sha256", "content_type", "object_key"}`` each."""
    return Call("GET", _job(job_id) + "/artifacts", items)


def artifact(job_id: str, name: str, to: str | PathLike[str]) -> Fetch[Path]:
    """The same as `result` for one file that a stage made."""
    if not name.strip("/ "):
        raise InvalidInput("An artifact is asked for by its name, and this is empty.", field="name")
    return Fetch(f"{_job(job_id)}/artifacts/{quote(name)}", _place(to))


def _place(to: str | PathLike[str]) -> Path:
    """What ends with a slash is meant to be a folder, and is made one."""
    if isinstance(to, str) and to.endswith("/"):
        Path(to).mkdir(parents=True, exist_ok=True)
    return Path(to)


def _job(job_id: str) -> str:
    if not job_id.strip():
        raise InvalidInput("A job is named by its id, and this is empty.", field="job_id")
    return f"{BASE}/jobs/{quote(job_id, safe='')}"


def _member(name: str) -> Callable[[Any], Any]:
    return lambda answer: answer[name]


def whole(answer: Any) -> Any:
    return answer


def _nothing(_answer: Any) -> None:
    return None


items = _member("items")

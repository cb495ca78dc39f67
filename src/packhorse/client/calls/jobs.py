"""Calls about jobs. Answers are the JSON as the server sent it; a problem raises the error that the server raised.

Each function describes one method of `Client` and, as a coroutine, of `AsyncClient`; its docstring is theirs.
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
from packhorse.client.upload import Files, Form, OnProgress, fields
from packhorse.errors import InvalidInput


def pipelines() -> Call[Sequence[Json]]:
    """The pipelines: name, description, JSON Schema of the parameters, stages."""
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
    on_progress: OnProgress | None = None,
) -> Call[Json]:
    """The job. ``pipeline`` may be None if the server has one.

    Files are paths, bytes, open files or ``(filename, one of these)``, a list of them where the parameter is a list;
    they are streamed, whatever their size, and ``on_progress`` is called with the bytes sent so far and in total.
    ``wait`` is how many seconds the server may wait for the job to end before it answers. If the answer is lost, the
    client repeats the request with the same idempotency key and gets the same job; pass ``key`` to repeat it yourself.
    """
    body: Json = {"parameters": dict(parameters or {})}
    body |= {"priority": priority} if priority else {}
    body |= {"delay": delay} if delay else {}
    body |= {"metadata": dict(metadata)} if metadata else {}
    headers = {"Idempotency-Key": str(uuid_utils.uuid7()) if key is None else key}
    if wait is not None:
        headers["Prefer"] = f"wait={ceil(wait)}"  # the header has whole seconds
    return Call(
        "POST",
        f"{BASE}/jobs",
        document,
        query={"pipeline": pipeline, "user_id": user},
        headers=headers,
        json=body,
        form=Form(fields(body), files, on_progress) if files else None,
        patience=(STORING if files else READ) + (wait or 0),
        pauses=PAUSES,
    )


def get(job_id: str) -> Call[Json]:
    """One job."""
    return Call("GET", _job(job_id), document)


def explain(job_id: str) -> Call[Sequence[Json]]:
    """Why it is not running now: a list of ``{"code", "message"}``, empty if it is running."""
    return Call("GET", _job(job_id) + "/explain", _member("reasons"))


def estimate(job_id: str) -> Call[Json]:
    """How much longer it will run: ``{"seconds", "ends_at", "runs", "stages"}``, ``seconds`` None if unknown."""
    return Call("GET", _job(job_id) + "/estimate", document)


def history(job_id: str, after: int = 0, limit: int | None = None) -> Call[Json]:
    """What has happened so far, one page: ``{"items": [{"n", "type", "at", ...}], "next": number or None}``."""
    return Call("GET", _job(job_id) + "/history", document, query={"after": after or None, "limit": limit})


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
    query = {
        "user_id": user,
        "status": status,
        "pipeline": pipeline,
        "created_from": created_from,
        "created_until": created_until,
        "cursor": cursor,
        "limit": limit,
    }
    return Call("GET", f"{BASE}/jobs", document, query=query)


def every(
    *,
    user: str | None = None,
    status: str | None = None,
    pipeline: str | None = None,
    created_from: str | None = None,
    created_until: str | None = None,
    limit: int | None = None,
) -> Pages:
    """Every job, newest first, fetched in pages of ``limit`` jobs as you iterate."""
    filters: Json = {"user": user, "status": status, "pipeline": pipeline, "limit": limit}
    times: Json = {"created_from": created_from, "created_until": created_until}
    return lambda cursor: page(**filters, **times, cursor=cursor)


def events(job_id: str, after: int = 0) -> Follow:
    """``{"n", "type", "data"}`` each, until the job has ended; reconnects if the connection is lost.

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

    With ``newest``, the last lines.
    """
    query = {"after": after or None, "stage": stage, "limit": limit, "newest": "true" if newest else None}
    return Call("GET", _job(job_id) + "/log", document, query=query)


def cancel(job_id: str) -> Call[Json]:
    """Cancel now, or ask the worker to."""
    return Call("POST", _job(job_id) + "/cancel", document)


def retry(job_id: str, stage: str | None = None) -> Call[Json]:
    """Start a new run: from what failed, from ``stage``, or of everything (``*``)."""
    return Call("POST", _job(job_id) + "/retry", document, query={"stage": stage})


def delete(job_id: str) -> Call[None]:
    """Delete a job that has ended, with its files."""
    return Call("DELETE", _job(job_id), _nothing)


def promote(job_id: str, destination: str | None = None) -> Call[Json]:
    """Copy the result files to the named destination; default: the server's first."""
    return Call("POST", _job(job_id) + "/promote", document, json={"destination": destination} if destination else None)


def destinations() -> Call[Sequence[Json]]:
    """Where results can be promoted to: a list of ``{"name"}``, the default first."""
    return Call("GET", f"{BASE}/destinations", items)


def me() -> Call[Json]:
    """Who you are and what your key allows: ``{"key_id", "tenant_id", "allowed", "user_id", "job_id"}``."""
    return Call("GET", f"{BASE}/me", document)


def tokens(job_id: str) -> Call[Sequence[Json]]:
    """The tokens of this job, without their secrets."""
    return Call("GET", _job(job_id) + "/tokens", items)


def token(job_id: str, expires_in: float | str | None = None) -> Call[Json]:
    """A token with which its holder can read and cancel this job. Its secret is shown only once."""
    body = None if expires_in is None else {"expires_in": expires_in}
    return Call("POST", _job(job_id) + "/tokens", document, json=body)


def revoke(job_id: str, token_id: str) -> Call[Json]:
    """End a token of this job now."""
    if not token_id.strip():
        raise InvalidInput("The token id is empty.", field="token_id")
    return Call("DELETE", f"{_job(job_id)}/tokens/{quote(token_id, safe='')}", document)


def result(job_id: str, to: str | PathLike[str]) -> Fetch[Path | Any]:
    """The result. If it is a file (several: a zip) it is written to ``to`` and its path returned; else the value.

    If ``to`` is a folder, or ends with a slash, the file gets the name the server gives it, with a number added if
    that name is taken. It appears only when it is complete and
    its digest matches the server's.
    """
    return Fetch(_job(job_id) + "/result", _place(to))


def artifacts(job_id: str) -> Call[Sequence[Json]]:
    """``{"name", "filename", "size_bytes", "sha256", "content_type", "object_key"}`` each."""
    return Call("GET", _job(job_id) + "/artifacts", items)


def artifact(job_id: str, name: str, to: str | PathLike[str]) -> Fetch[Path]:
    """Download one file that a stage produced, as `result` does."""
    if not name.strip("/ "):
        raise InvalidInput("The artifact name is empty.", field="name")
    return Fetch(f"{_job(job_id)}/artifacts/{quote(name)}", _place(to))


def _place(to: str | PathLike[str]) -> Path:
    """A path that ends with a slash is a folder, which is created."""
    if isinstance(to, str) and to.endswith("/"):
        Path(to).mkdir(parents=True, exist_ok=True)
    return Path(to)


def _job(job_id: str) -> str:
    if not job_id.strip():
        raise InvalidInput("The job id is empty.", field="job_id")
    return f"{BASE}/jobs/{quote(job_id, safe='')}"


def _member(name: str) -> Callable[[Any], Any]:
    return lambda answer: answer[name]


def document(answer: Any) -> Any:
    return answer


def _nothing(_answer: Any) -> None:
    return None


items = _member("items")

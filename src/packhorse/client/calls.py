"""Every call of the HTTP interface as a method. Answers are the JSON as it came, problems the errors they were."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2

from packhorse.client import download, upload
from packhorse.client.following import Follow
from packhorse.client.problems import checked, reaching
from packhorse.errors import InvalidInput
from packhorse.settings import load

Json = dict[str, Any]
Files = Mapping[str, Path | Sequence[Path]]
Told = Callable[[int, int], None]
"""Called with bytes sent so far, and in all."""

BASE = "/api/v1"
LOCAL = "http://127.0.0.1:3003"
"""Where ``packhorse dev`` listens."""

TIMEOUT = httpx2.Timeout(60.0, connect=5.0)
STORING = httpx2.Timeout(60.0, connect=5.0, read=600.0)
"""A server may take long over the last byte of an upload: it syncs gigabytes to disk before it answers."""

NO_PROXY = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""A proxy from the environment could not reach this machine's own server."""


class Client:
    """Talks to the server at ``url``; default: the setting ``url``, else the local ``packhorse dev``.

    Raises the errors of `packhorse.errors`: the same the server raised, or `Unreachable`.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = _with_scheme(url or load().settings.url or LOCAL).rstrip("/")
        with reaching(self.url):
            self._http = httpx2.Client(base_url=self.url, timeout=TIMEOUT, mounts=NO_PROXY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def pipelines(self) -> Sequence[Json]:
        """What can be submitted: name, description, JSON Schema of the parameters, stages."""
        found: list[Json] = self._call("GET", "/pipelines")["items"]
        return found

    def submit(
        self,
        pipeline: str | None,
        parameters: Mapping[str, Any] | None = None,
        *,
        files: Files | None = None,
        user: str | None = None,
        priority: int = 0,
        delay: float | str = 0,
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_progress: Told | None = None,
    ) -> Json:
        """The job. ``pipeline`` may be None if the server has one. Files are streamed, whatever their size."""
        asked: Json = {"parameters": dict(parameters or {})}
        asked |= {"priority": priority} if priority else {}
        asked |= {"delay": delay} if delay else {}
        asked |= {"metadata": dict(metadata)} if metadata else {}
        query = {name: value for name, value in (("pipeline", pipeline), ("user_id", user)) if value is not None}
        headers = {} if key is None else {"Idempotency-Key": key}
        if not files:
            return self._call("POST", "/jobs", json=asked, params=query, headers=headers)
        with ExitStack() as opened:
            sent = {"data": upload.fields(asked), "files": upload.parts(files, opened, on_progress)}
            return self._call("POST", "/jobs", **sent, params=query, headers=headers, timeout=STORING)

    def get(self, job_id: str) -> Json:
        return self._call("GET", _path(job_id))

    def explain(self, job_id: str) -> Sequence[Json]:
        """Why it is not running now: ``{"code", "message"}`` each, none if it is."""
        found: list[Json] = self._call("GET", _path(job_id) + "/explain")["reasons"]
        return found

    def metrics(self, job_id: str) -> Sequence[Json]:
        """``{"stage", "element", "peak_cpu", "peak_memory_bytes", "samples": [...]}`` for each task sampled."""
        found: list[Json] = self._call("GET", _path(job_id) + "/metrics")["items"]
        return found

    def list(
        self,
        *,
        user: str | None = None,
        status: str | None = None,
        pipeline: str | None = None,
        created_from: str | None = None,
        created_until: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Json:
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
        return self._call("GET", "/jobs", params={name: value for name, value in asked.items() if value is not None})

    def events(self, job_id: str, after: int = 0) -> Iterator[Json]:
        """``{"n", "type", "data"}`` each, until the job has ended; a lost connection is taken up again.

        First a ``snapshot`` whose data is the job, then what happened after event number ``after``. ``n`` is None for
        what is not history: snapshot, progress, log, gap.
        """
        return Follow(self._http, f"{BASE}{_path(job_id)}/events", after).events()

    def log(self, job_id: str, after: int = 0, stage: str | None = None, limit: int | None = None) -> Json:
        """One page: ``{"items": [{"n", "stage", "element", "attempt", "at", "text"}], "next": number or None}``."""
        asked = {"after": after or None, "stage": stage, "limit": limit}
        params = {name: value for name, value in asked.items() if value is not None}
        return self._call("GET", _path(job_id) + "/log", params=params)

    def wait(self, job_id: str, timeout: float | None = None) -> Json:
        """The job when it has ended, or as it is after ``timeout`` seconds: look at the status of what you get."""
        until = None if timeout is None else time.monotonic() + timeout
        follow = Follow(self._http, f"{BASE}{_path(job_id)}/events", 0, until=until, log=False)
        with closing(follow.events()) as events:
            for _ in events:
                pass
        return self.get(job_id)

    def cancel(self, job_id: str) -> Json:
        return self._call("POST", _path(job_id) + "/cancel")

    def retry(self, job_id: str, stage: str | None = None) -> Json:
        """Start a new run: from what failed, from ``stage``, or of everything (``*``)."""
        return self._call("POST", _path(job_id) + "/retry", params={} if stage is None else {"stage": stage})

    def promote(self, job_id: str, destination: str | None = None) -> Json:
        """Copy the result to a permanent place; that of this name, or the server's usual one."""
        asked = {} if destination is None else {"destination": destination}
        return self._call("POST", _path(job_id) + "/promote", json=asked, timeout=STORING)

    def result(self, job_id: str, to: Path) -> Path | Any:
        """The result. If it is a file (several: a zip) it is written to ``to`` and its path returned; else the value.

        If ``to`` is a folder, the file gets the name the server gives it. It appears whole or not at all.
        """
        return download.fetch(self._http, f"{BASE}{_path(job_id)}/result", to)

    def artifacts(self, job_id: str) -> Sequence[Json]:
        """``{"name", "filename", "size_bytes", "sha256", "content_type", "object_key"}`` each."""
        found: list[Json] = self._call("GET", _path(job_id) + "/artifacts")["items"]
        return found

    def artifact(self, job_id: str, name: str, to: Path) -> Path:
        """The same as `result` for one file that a stage made."""
        if not name.strip("/ "):
            raise InvalidInput("An artifact is asked for by its name, and this is empty.", field="name")
        path: Path = download.fetch(self._http, f"{BASE}{_path(job_id)}/artifacts/{quote(name)}", to)
        return path

    def _call(self, method: str, path: str, **asked: Any) -> Json:
        with reaching(self.url):
            response = self._http.request(method, BASE + path, **asked)
        answer: Json = checked(response)
        return answer


def _with_scheme(url: str) -> str:
    """``localhost:3003`` is what a person means by http://localhost:3003."""
    return url if "://" in url else f"http://{url}"


def _path(job_id: str) -> str:
    if not job_id.strip():
        raise InvalidInput("A job is named by its id, and this is empty.", field="job_id")
    return f"/jobs/{quote(job_id, safe='')}"

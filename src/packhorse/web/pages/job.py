"""``/jobs/{id}``: one job, all of it: how it stands and why, what it did when, what it said, and what it has made."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from litestar import Response, get
from litestar.params import FromPath, FromQuery

from packhorse.http.services import tools_and_caller
from packhorse.jobs import view
from packhorse.web.render import HEADERS, Page, rendered
from packhorse.web.widgets import event_text, snippets, timeline, usage

LINES = 500
"""Of the log that are shown: the last ones."""
EVENTS = 1000
"""That are looked at to tell when what ran; of these the newest are listed."""
LISTED = 200
TEXT = 65_536
"""Characters of a value that are shown; a result may be four times as large."""
PAGE = 5000
"""Lines of the whole log asked for at a time."""

ENDED = ("completed", "failed", "cancelled")
PREVIEWED = 20 * 1024**2
"""Bytes of an image that a browser is made to load at once."""

KINDS = {
    "image/gif": "image",
    "image/jpeg": "image",
    "image/png": "image",
    "image/webp": "image",
    "application/json": "json",
    "application/xml": "text",
    "application/javascript": "text",
    "application/x-yaml": "text",
    "application/yaml": "text",
    "image/svg+xml": "text",
}
"""How a file is shown: what could carry a script, as the text it is."""
PLAYED = ("audio/flac", "audio/mpeg", "audio/ogg", "audio/wav", "audio/x-wav", "video/mp4", "video/webm")


@get("/jobs/{job_id:str}", scope="read", include_in_schema=False)
async def job(request: Page, job_id: FromPath[str], stage: FromQuery[str | None] = None) -> Response[bytes]:
    """With ``stage``, only what that one has printed."""
    return await shown(request, job_id, stage)


@get("/jobs/{job_id:str}/log.txt", scope="read", include_in_schema=False)
async def whole_log(request: Page, job_id: FromPath[str], stage: FromQuery[str | None] = None) -> Response[bytes]:
    """All that is kept of it, as plain text. That is a bounded size."""
    tools, caller = tools_and_caller(request.scope)
    found = await tools.job(caller, job_id)
    after: int | None = 0
    texts: list[str] = []
    while after is not None:
        lines, after = await view.log_lines(tools, found, after=after, stage=stage, limit=PAGE)
        texts += [each.text.rstrip("\n") + "\n" for each in lines]
    return Response("".join(texts).encode(), media_type="text/plain; charset=utf-8", headers=HEADERS)


async def shown(
    request: Page, job_id: str, stage: str | None = None, *, refused: str = "", status: int = 200
) -> Response[bytes]:
    """The page; with what was wrong with the last thing asked of it, if anything was."""
    tools, caller = tools_and_caller(request.scope)
    found = await view.job_page(tools, caller, job_id, events=EVENTS, lines=LINES, stage=stage)
    job = found.job
    rows = timeline.rows(job, found.events, found.needs, datetime.now(UTC))
    address = str(request.base_url).rstrip("/")
    return rendered(
        request,
        "job.html",
        status=status,
        job=job,
        is_active=job["status"] not in ENDED,
        reasons=[each for each in found.reasons if each["code"] != "ENDED"],
        estimate=found.estimate,
        rows=rows,
        lines=found.lines,
        last_line=found.last_line,
        stage=stage,
        events=[event_text.told(each) for each in reversed(found.events[-LISTED:])],
        drawn=usage.plotted(found.series, rows, job["started_at"], job["completed_at"]),
        artifacts=[{**each, "kind": kind(each)} for each in found.artifacts],
        parameters=readable(job["parameters"]),
        result=readable(job["result"]) if job["result"] is not None else None,
        metadata=readable(job["metadata"]) if job["metadata"] else None,
        commands=snippets.commands(job, address, has_keys=bool(caller.key_id)),
        places=found.destinations,
        refused=refused,
    )


def kind(artifact: Any) -> str | None:
    """How a browser can show it; None: not at all."""
    named = artifact["content_type"].partition(";")[0].strip().lower()
    if named in PLAYED:
        return str(named.partition("/")[0])
    found = KINDS.get(named) or ("text" if named.startswith("text/") else None)
    return None if found == "image" and artifact["size_bytes"] > PREVIEWED else found


def readable(value: Any) -> dict[str, Any]:
    """JSON for the eyes, and whether that is all of it."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return {"text": text[:TEXT], "is_cut": len(text) > TEXT}


ROUTES = [job, whole_log]

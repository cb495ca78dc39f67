"""``/jobs/{id}``: one job, all of it: how it stands and why, what it did when, what it said, and what it has made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from litestar import Response, get
from litestar.params import FromPath, FromQuery

from packhorse.web.api_calls import Api, Json, Page, viewer
from packhorse.web.render import HEADERS, rendered
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
    api, after, texts = Api(request), 0, []
    while after is not None:
        page = await api.get(f"/jobs/{job_id}/log", after=after, stage=stage, limit=PAGE)
        texts += [each["text"].rstrip("\n") + "\n" for each in page["items"]]
        after = page["next"]
    return Response("".join(texts).encode(), media_type="text/plain; charset=utf-8", headers=HEADERS)


async def shown(
    request: Page, job_id: str, stage: str | None = None, *, refused: str = "", status: int = 200
) -> Response[bytes]:
    """The page; with what was wrong with the last thing asked of it, if anything was."""
    api, path = Api(request), f"/jobs/{job_id}"
    found = await api.get(path)
    # Read before the lines below, of all stages: a line of another stage must not arrive twice either. Stages may print
    # between the two reads, so the page counts as having seen whatever it shows.
    last_line = _last_line(await api.get(f"{path}/log", newest=True, limit=1))
    reasons, estimate, log, history, metrics, made, needs, places = await asyncio.gather(
        api.get(f"{path}/explain"),
        api.get(f"{path}/estimate"),
        api.get(f"{path}/log", newest=True, limit=LINES, stage=stage),
        api.get(f"{path}/history", after=max(0, found["last_event"] - EVENTS), limit=EVENTS),
        api.get(f"{path}/metrics"),
        api.get(f"{path}/artifacts"),
        _needs(api, found["pipeline"]),
        _places(api, request, found),
    )
    events = history["items"]
    rows = timeline.rows(found, events, needs, datetime.now(UTC))
    address = str(request.base_url).rstrip("/")
    return rendered(
        request,
        "job.html",
        status=status,
        job=found,
        is_active=found["status"] not in ENDED,
        reasons=[each for each in reasons["reasons"] if each["code"] != "ENDED"],
        estimate=estimate,
        rows=rows,
        lines=log["items"],
        last_line=max(last_line, _last_line(log)),
        stage=stage,
        events=[event_text.told(each) for each in reversed(events[-LISTED:])],
        drawn=usage.plotted(metrics["items"], rows, found["started_at"], found["completed_at"]),
        artifacts=[{**each, "kind": kind(each)} for each in made["items"]],
        parameters=readable(found["parameters"]),
        result=readable(found["result"]) if found["result"] is not None else None,
        metadata=readable(found["metadata"]) if found["metadata"] else None,
        commands=snippets.commands(found, address, has_keys=bool(viewer(request).key_id)),
        places=places,
        refused=refused,
    )


def kind(artifact: Json) -> str | None:
    """How a browser can show it; None: not at all."""
    named = artifact["content_type"].partition(";")[0].strip().lower()
    if named in PLAYED:
        return str(named.partition("/")[0])
    found = KINDS.get(named) or ("text" if named.startswith("text/") else None)
    return None if found == "image" and artifact["size_bytes"] > PREVIEWED else found


def readable(value: Json) -> dict[str, Any]:
    """JSON for the eyes, and whether that is all of it."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return {"text": text[:TEXT], "is_cut": len(text) > TEXT}


def _last_line(page: Json) -> int:
    return page["items"][-1]["n"] if page["items"] else 0


async def _needs(api: Api, pipeline: str) -> Mapping[str, list[str]]:
    """What its stages wait for, as the pipeline is defined by now: an older job may have had others."""
    for each in (await api.get("/pipelines"))["items"]:
        if each["name"] == pipeline:
            return {stage["name"]: [need["stage"] for need in stage["needs"]] for stage in each["stages"]}
    return {}


async def _places(api: Api, request: Page, found: Json) -> list[str]:
    """Where its files could be promoted to, by whoever looks."""
    if "operate" not in viewer(request).allowed or found["status"] != "completed" or not found["result_object_keys"]:
        return []
    return [each["name"] for each in (await api.get("/destinations"))["items"]]


ROUTES = [job, whole_log]

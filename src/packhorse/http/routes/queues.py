"""Queues: how much waits in each, who serves it, and a way to hold it up."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath
from msgspec import Meta, Struct

from packhorse.auth.caller import Caller
from packhorse.background.stats import QueueStats, queue_stats
from packhorse.define.validation import NOT_VALID, NUL, invalid
from packhorse.errors import QueueNotFound, TooLarge, TooSlow, UnsupportedMedia
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.json_body import asked
from packhorse.http.routes.stats import per_minute, waits
from packhorse.http.services import Tools
from packhorse.jobs.explain import read_pauses
from packhorse.jobs.stats import RECENT, Figures, by_queue
from packhorse.schemas.operations import QueueDocument, QueuesPage
from packhorse.schemas.timestamps import iso
from packhorse.store.collections import pauses as pause_records
from packhorse.store.collections.pauses import Pause
from packhorse.store.collections.readings import Level

SOMEBODY_HERE = "local"
"""Who pauses a queue where nobody needs a key."""
LONGEST_REASON = 500


class Why(Struct):
    """Why a queue is to be paused; whoever waits is told."""

    reason: Annotated[str, Meta(extra_json_schema={"maxLength": LONGEST_REASON})] = ""


class Nothing(Struct):
    """There is nothing to say besides the queue."""


CHANGING = (QueueNotFound, TooLarge, UnsupportedMedia, TooSlow)


@get("/queues", scope="operate", shared=True, responses=refusing())
async def list_queues(tools: NamedDependency[Tools]) -> QueuesPage:
    """The queues that pipelines and workers use: what is ready in each, who serves it, whether it is paused."""
    return {"items": await _shown(tools), "next": None}


@post(
    "/queues/{queue:str}/pause",
    scope="operate",
    shared=True,
    status_code=200,
    operation_class=taking(Why),
    responses=refusing(*CHANGING),
)
async def pause(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    queue: FromPath[str],
) -> QueueDocument:
    """Start nothing more from this queue; what runs, runs on. Workers heed it within about a second."""
    given = await asked(request, tools.settings, Why)
    _check(given.reason)
    await _one(tools, queue)
    by = caller.key_id or SOMEBODY_HERE
    await pause_records.pause(tools.store, Pause(queue, tools.store.now(), by, given.reason))
    tools.audit.tell("queue.paused", caller, queue=queue, reason=given.reason)
    return await _one(tools, queue)


@post(
    "/queues/{queue:str}/resume",
    scope="operate",
    shared=True,
    status_code=200,
    operation_class=taking(Nothing),
    responses=refusing(*CHANGING),
)
async def resume(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    queue: FromPath[str],
) -> QueueDocument:
    """Go on with this queue; if it was not paused, nothing happens."""
    await asked(request, tools.settings, Nothing)
    await _one(tools, queue)
    if await pause_records.resume(tools.store, queue):
        tools.audit.tell("queue.resumed", caller, queue=queue)
    return await _one(tools, queue)


async def _one(tools: Tools, queue: str) -> QueueDocument:
    """A misspelt name would be paused for ever, with nobody the wiser."""
    for each in await _shown(tools):
        if each["name"] == queue:
            return each
    raise QueueNotFound(queue=queue[:100])


async def _shown(tools: Tools) -> list[QueueDocument]:
    survey = await queue_stats(tools.store, tools.settings.lease)
    pauses = await read_pauses(tools.store)
    figures = await by_queue(tools.store)
    return [
        _queue(queue, survey, figures.get(queue, Figures()), pauses.get(queue))
        for queue in sorted({*survey.queues, *pauses})
    ]


def _queue(name: str, survey: QueueStats, figures: Figures, pause: Pause | None) -> QueueDocument:
    level = survey.queues.get(name, Level())
    return {
        "name": name,
        "ready": level.ready,
        "oldest_seconds": round(level.oldest, 3),
        "running": level.running,
        "workers": sum(name in card.queues for card in survey.live),
        "slots": level.slots,
        "per_minute": per_minute(figures, RECENT),
        "wait_seconds": waits(figures),
        "paused": _pause(pause),
    }


def _pause(pause: Pause | None) -> Any:
    return None if pause is None else {"at": iso(pause.at), "by": pause.by, "reason": pause.reason}


def _check(reason: str) -> None:
    if len(reason) > LONGEST_REASON:
        raise invalid(NOT_VALID, [{"field": "reason", "message": f"It has more than {LONGEST_REASON} characters"}])
    if "\0" in reason:
        raise invalid(NOT_VALID, [{"field": "reason", "message": NUL}])

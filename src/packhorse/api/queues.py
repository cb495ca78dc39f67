"""Queues: how much waits in each, who serves it, and a way to hold it up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath
from msgspec import Meta, Struct

from packhorse.api.body import Body
from packhorse.api.callers import Caller
from packhorse.api.described import refusing, taking
from packhorse.api.documents import QueueDocument, QueuesPage
from packhorse.api.given import NOT_VALID, asked
from packhorse.api.shapes import iso
from packhorse.api.tools import Tools
from packhorse.define.mistakes import NUL, invalid
from packhorse.engine.explain import MOST_COUNTED, living, paused
from packhorse.errors import QueueNotFound, TooLarge, TooSlow, UnsupportedMedia
from packhorse.store.base import Pause

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
    given = await asked(Body(request.receive, tools.settings), request.headers.get("content-type", ""), Why)
    _check(given.reason)
    await _one(tools, queue)
    by = caller.key_id or SOMEBODY_HERE
    await tools.store.pause(Pause(queue, tools.store.now(), by, given.reason))
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
    await asked(Body(request.receive, tools.settings), request.headers.get("content-type", ""), Nothing)
    await _one(tools, queue)
    if await tools.store.resume(queue):
        tools.audit.tell("queue.resumed", caller, queue=queue)
    return await _one(tools, queue)


async def _one(tools: Tools, queue: str) -> QueueDocument:
    """A misspelt name would be paused for ever, with nobody the wiser."""
    for each in await _shown(tools):
        if each["name"] == queue:
            return each
    raise QueueNotFound(queue=queue[:100])


async def _shown(tools: Tools) -> list[QueueDocument]:
    workers = await living(tools.store, tools.settings.lease)
    pauses = await paused(tools.store)
    kinds: dict[str, set[str]] = {}
    for plan in [each.plan for each in await tools.catalog.all()]:
        for stage in plan.stages:
            kinds.setdefault(stage.queue, set()).add(stage.kind)
    for queue in _named(pauses, *(card.queues for card in workers)):
        kinds.setdefault(queue, set())
    ready = await tools.store.ready(kinds, limit=MOST_COUNTED)
    return [
        {
            "name": queue,
            "ready": ready[queue],
            "workers": sum(queue in card.queues for card in workers),
            "slots": sum(card.queues.get(queue, 0) for card in workers),
            "paused": _pause(pauses.get(queue)),
        }
        for queue in sorted(kinds)
    ]


def _named(*sources: Iterable[str]) -> Iterable[str]:
    return (queue for source in sources for queue in source)


def _pause(pause: Pause | None) -> Any:
    return None if pause is None else {"at": iso(pause.at), "by": pause.by, "reason": pause.reason}


def _check(reason: str) -> None:
    if len(reason) > LONGEST_REASON:
        raise invalid(NOT_VALID, [{"field": "reason", "message": f"It has more than {LONGEST_REASON} characters"}])
    if "\0" in reason:
        raise invalid(NOT_VALID, [{"field": "reason", "message": NUL}])

"""``/webhooks``: where messages about ended jobs go, what was sent, answered and still waits, and a test."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath

from packhorse.background.webhooks import build_message
from packhorse.core.webhooks import job_delivery
from packhorse.errors import NotFound, PackhorseError
from packhorse.http.routes import webhooks as use_cases
from packhorse.schemas.progress import iso
from packhorse.schemas.webhooks import delivery_to_json, webhook_to_json
from packhorse.store.collections.webhooks import (
    ATTEMPTS_KEPT,
    Attempt,
    list_attempts,
    list_deliveries,
    list_endpoints,
)
from packhorse.web.forms import form
from packhorse.web.render import Page, redirect, render_page, sentence, services_and_caller
from packhorse.web.widgets.job import readable

DELIVERIES = 50


@get("/webhooks", scope="admin", include_in_schema=False)
async def webhooks(request: Page) -> Response[bytes]:
    return await _shown(request)


@post("/webhooks", scope="admin", include_in_schema=False, status_code=200)
async def add(request: Page) -> Response[bytes]:
    """The answer is the page itself: the secret is shown this once."""
    url = str((await form(request)).get("url", "")).strip()
    try:
        made = await use_cases.create_webhook(*services_and_caller(request), url)
    except PackhorseError as error:
        return await _shown(request, typed=url, mistake=error)
    return await _shown(request, made=made)


@get("/webhooks/{webhook_id:str}", scope="admin", include_in_schema=False)
async def webhook(request: Page, webhook_id: FromPath[str]) -> Response[bytes]:
    return await _one(request, webhook_id)


@post("/webhooks/{webhook_id:str}/test", scope="admin", include_in_schema=False, status_code=200)
async def test(request: Page, webhook_id: FromPath[str]) -> Response[bytes]:
    """Send one message now, and show the outcome."""
    return await _one(request, webhook_id, trial=await use_cases.send_test(*services_and_caller(request), webhook_id))


@post("/webhooks/{webhook_id:str}/remove", scope="admin", include_in_schema=False, status_code=303)
async def remove(request: Page, webhook_id: FromPath[str]) -> Response[bytes]:
    await use_cases.end_webhook(*services_and_caller(request), webhook_id)
    return redirect(request, "/webhooks", said="The webhook was removed.")


@get("/webhooks/{webhook_id:str}/messages/{job_id:str}/{run:int}", scope="admin", include_in_schema=False)
async def message(
    request: Page, webhook_id: FromPath[str], job_id: FromPath[str], run: FromPath[int]
) -> Response[bytes]:
    """One message: what is sent, and each answer to it."""
    services, caller = services_and_caller(request)
    endpoint = await use_cases.find_webhook(services, caller, webhook_id)
    job = await services.job(caller, job_id)
    found = job_delivery(job.id, run, endpoint.id, job.completed_at or job.updated_at)
    has_ended = 1 <= run < job.run or (run == job.run and job.status.is_terminal)
    body = await build_message(services.store, found) if has_ended else None
    if body is None:
        raise NotFound(path=request.url.path)
    attempts = await list_attempts(services.store, webhook_id, ATTEMPTS_KEPT)
    return render_page(
        request,
        "webhook_message.html",
        webhook=webhook_to_json(endpoint),
        job=job,
        run=run,
        id=found.id,
        body=readable(msgspec.json.decode(body)),
        size=len(body),
        attempts=[_attempt(each) for each in attempts if each.id == found.id],
    )


@post(
    "/webhooks/{webhook_id:str}/messages/{job_id:str}/{run:int}/redeliver",
    scope="admin",
    include_in_schema=False,
    status_code=303,
)
async def redeliver(
    request: Page, webhook_id: FromPath[str], job_id: FromPath[str], run: FromPath[int]
) -> Response[bytes]:
    await use_cases.redeliver(*services_and_caller(request), webhook_id, job_id, run)
    return redirect(request, f"/webhooks/{webhook_id}", said="The message is sent again within a few seconds.")


def _attempt(found: Attempt) -> dict[str, Any]:
    return {**msgspec.structs.asdict(found), "at": iso(found.at), "is_test": not found.job_id}


async def _shown(
    request: Page, *, made: Any = None, typed: str = "", mistake: PackhorseError | None = None
) -> Response[bytes]:
    services, caller = services_and_caller(request)
    found = [webhook_to_json(each) for each in await list_endpoints(services.store, caller.tenant)]
    return render_page(
        request,
        "webhooks.html",
        status=200 if mistake is None else mistake.status,
        webhooks=sorted(found, key=lambda each: each["ended_at"] is not None),
        made=made,
        typed=typed,
        mistake=None if mistake is None else sentence(mistake),
    )


async def _one(request: Page, webhook_id: str, *, trial: Any = None) -> Response[bytes]:
    services, caller = services_and_caller(request)
    endpoint = await use_cases.find_webhook(services, caller, webhook_id)
    waiting = await list_deliveries(services.store, webhook_id, DELIVERIES)
    return render_page(
        request,
        "webhook.html",
        webhook=webhook_to_json(endpoint),
        deliveries=[delivery_to_json(each) for each in waiting],
        attempts=[_attempt(each) for each in await list_attempts(services.store, webhook_id, DELIVERIES)],
        trial=trial,
    )


ROUTES = [webhooks, add, webhook, test, remove, message, redeliver]

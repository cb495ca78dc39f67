"""``/webhooks``: where messages about ended jobs go, what waits to be delivered, and a test of each address."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath

from packhorse.errors import PackhorseError
from packhorse.http.routes import webhooks as use_cases
from packhorse.schemas.webhooks import delivery_to_json, webhook_to_json
from packhorse.store.collections.webhooks import list_deliveries, list_endpoints
from packhorse.web.forms import form
from packhorse.web.render import Page, redirect, render_page, sentence, services_and_caller

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
        trial=trial,
    )


ROUTES = [webhooks, add, webhook, test, remove]

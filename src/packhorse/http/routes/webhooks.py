"""Webhooks: addresses that get a message when a job of the tenant ends."""

from __future__ import annotations

import secrets

from litestar import delete, get, post
from msgspec import Struct

from packhorse.auth.access import Caller
from packhorse.background import webhooks
from packhorse.background.webhooks import secret_of
from packhorse.errors import BlockedAddress, InvalidInput, NoSecretKey, TooMany, WebhookNotFound
from packhorse.http.openapi import error_responses, json_body
from packhorse.http.requests import HttpRequest, Id, Nothing, PageSize, read_json
from packhorse.http.services import FromCaller, FromServices, HttpServices
from packhorse.schemas import webhooks as schemas
from packhorse.store.collections import webhooks as collection
from packhorse.store.collections.webhooks import Endpoint

MOST = 20
"""Webhooks per tenant: each of them gets a message about each job."""


class Wanted(Struct):
    """A webhook to create."""

    url: str = ""
    """Where to send messages: a public https address."""


@get("/webhooks", scope="admin", responses=error_responses())
async def list_webhooks(services: FromServices, caller: FromCaller) -> schemas.WebhooksPage:
    """The webhooks, oldest first, also ended ones, with the reason."""
    found = await collection.list_endpoints(services.store, caller.tenant)
    return {"items": [schemas.webhook_to_json(each) for each in found], "next": None}


@post("/webhooks", scope="admin", **json_body(Wanted, BlockedAddress, NoSecretKey, TooMany, required=True))
async def add_webhook(request: HttpRequest, services: FromServices, caller: FromCaller) -> schemas.NewWebhookDocument:
    """Add an address. The secret that messages are signed with is shown only in this answer."""
    return await create_webhook(services, caller, (await read_json(request, Wanted)).url)


async def create_webhook(services: HttpServices, caller: Caller, url: str) -> schemas.NewWebhookDocument:
    if not url:
        raise InvalidInput("A webhook needs a url.", field="url")
    services.outbound.check(url)
    now = services.store.now()
    endpoint_id = f"{int(now * 1000):012x}{secrets.token_hex(4)}"
    secret = secret_of(services.settings.secret_key, endpoint_id)
    if len(await collection.list_endpoints(services.store, caller.tenant, only_open=True)) >= MOST:
        raise TooMany(reason=f"{MOST} webhooks; remove one first")
    endpoint = Endpoint(endpoint_id, caller.tenant, url, now, created_by=caller.key_id)
    await collection.add_endpoint(services.store, endpoint)
    services.audit.tell("webhook.added", caller, webhook_id=endpoint.id)
    return {**schemas.webhook_to_json(endpoint), "secret": secret}


@delete("/webhooks/{webhook_id:str}", scope="admin", status_code=200, responses=error_responses(WebhookNotFound))
async def remove_webhook(services: FromServices, caller: FromCaller, webhook_id: Id) -> schemas.WebhookDocument:
    """Remove a webhook. Messages that wait for it are dropped."""
    return await end_webhook(services, caller, webhook_id)


async def end_webhook(services: HttpServices, caller: Caller, webhook_id: str) -> schemas.WebhookDocument:
    await find_webhook(services, caller, webhook_id)
    ended = await collection.end_endpoint(services.store, webhook_id, services.store.now(), "It was removed.")
    if ended is None:
        raise WebhookNotFound(webhook_id=webhook_id)
    services.audit.tell("webhook.removed", caller, webhook_id=webhook_id)
    return schemas.webhook_to_json(ended)


@get("/webhooks/{webhook_id:str}/deliveries", scope="admin", responses=error_responses(WebhookNotFound))
async def list_deliveries(
    services: FromServices, caller: FromCaller, webhook_id: Id, limit: PageSize = 50
) -> schemas.DeliveriesPage:
    """The messages that wait to be sent, newest first, with the error of the last attempt."""
    await find_webhook(services, caller, webhook_id)
    found = await collection.list_deliveries(services.store, webhook_id, limit)
    return {"items": [schemas.delivery_to_json(each) for each in found], "next": None}


@post(
    "/webhooks/{webhook_id:str}/test",
    scope="admin",
    status_code=200,
    **json_body(Nothing, WebhookNotFound, NoSecretKey),
)
async def try_webhook(
    request: HttpRequest, services: FromServices, caller: FromCaller, webhook_id: Id
) -> schemas.TrialDocument:
    """Send a message of the type `webhook.test` now, once, and return the outcome."""
    await read_json(request, Nothing)
    return await send_test(services, caller, webhook_id)


async def send_test(services: HttpServices, caller: Caller, webhook_id: str) -> schemas.TrialDocument:
    endpoint = await find_webhook(services, caller, webhook_id)
    store, now = services.store, services.store.now()
    id, body = f"test.{secrets.token_hex(8)}.{endpoint.id}", webhooks.trial_message(endpoint, now)
    reply = await webhooks.post(services.outbound, endpoint, services.settings.secret_key, id=id, at=now, body=body)
    await collection.record_attempt(store, webhooks.attempt_of(id, endpoint.id, reply, now, store.now(), body))
    services.audit.tell("webhook.tested", caller, webhook_id=endpoint.id, status=reply.status)
    return {"delivered": not reply.error, "status": reply.status, "error": reply.error}


async def redeliver(services: HttpServices, caller: Caller, webhook_id: str, job_id: str, run: int) -> None:
    """Send the message about a run again. Raises JobNotFound, and InvalidInput for a run that has not ended."""
    endpoint = await find_webhook(services, caller, webhook_id)
    if endpoint.ended_at is not None:
        raise InvalidInput("This webhook has ended.", field="webhook_id")
    job = await services.job(caller, job_id)
    if not 1 <= run <= job.run or (run == job.run and not job.status.is_terminal):
        raise InvalidInput(f"Run {run} has not ended.", field="run")
    await collection.redeliver(services.store, job.id, run, endpoint.id)
    services.audit.tell("webhook.redelivered", caller, job_id=job.id, webhook_id=endpoint.id)


async def find_webhook(services: HttpServices, caller: Caller, webhook_id: str) -> Endpoint:
    """A foreign one and a missing one look the same."""
    found = await collection.list_endpoints(services.store, caller.tenant)
    if (endpoint := next((each for each in found if each.id == webhook_id), None)) is None:
        raise WebhookNotFound(webhook_id=webhook_id)
    return endpoint

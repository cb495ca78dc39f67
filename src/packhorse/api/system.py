"""About the server itself: what can be submitted, and whether it is well."""

from __future__ import annotations

import asyncio

from litestar import get
from litestar.di import NamedDependency

from packhorse.api import shapes
from packhorse.api.described import refusing
from packhorse.api.documents import HealthDocument, PipelinesPage, ReadyDocument
from packhorse.api.tools import Tools
from packhorse.errors import BlobUnavailable, StoreUnavailable
from packhorse.version import VERSION

PATIENCE = 3.0
"""Seconds the stores have to answer: whoever asks wants to know of an outage within five."""


@get("/pipelines", scope="read", responses=refusing())
async def pipelines(tools: NamedDependency[Tools]) -> PipelinesPage:
    """What can be submitted, with the JSON Schema of its parameters."""
    return {"items": [shapes.pipeline(each.definition) for each in await tools.catalog.all()], "next": None}


@get("/healthz", scope=None, security=[{}], responses=refusing())
async def healthz() -> HealthDocument:
    """The process answers."""
    return {"status": "ok", "version": VERSION}


@get("/readyz", scope=None, security=[{}], responses=refusing(BlobUnavailable))
async def readyz(tools: NamedDependency[Tools]) -> ReadyDocument:
    """The store and the object store answer, too."""
    try:
        async with asyncio.timeout(PATIENCE):
            await tools.store.bookmark("ready")
    except TimeoutError:
        raise StoreUnavailable from None
    try:
        async with asyncio.timeout(PATIENCE):
            await tools.blobs.size("jobs/ready")
    except TimeoutError:
        raise BlobUnavailable(reason="it took too long") from None
    return {"status": "ready", "store": "ok", "blobs": "ok"}

"""About the server itself: what can be submitted, and whether it is well."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency

from packhorse.errors import BlobUnavailable, StoreUnavailable
from packhorse.http.openapi import refusing
from packhorse.http.services import Tools
from packhorse.jobs import health, operations, view
from packhorse.schemas.operations import FindingsDocument, HealthDocument, ReadyDocument
from packhorse.schemas.pipelines import PipelinesPage
from packhorse.version import VERSION


@get("/pipelines", scope="read", responses=refusing())
async def pipelines(tools: NamedDependency[Tools]) -> PipelinesPage:
    """What can be submitted, with the JSON Schema of its parameters."""
    return {"items": await view.pipelines(tools), "next": None}


@get("/health", scope="operate", shared=True, responses=refusing())
async def findings(tools: NamedDependency[Tools]) -> FindingsDocument:
    """What `packhorse doctor` would say: store, files, workers, their duties, and jobs that nothing will start."""
    return await operations.findings(tools)


@get("/healthz", scope=None, security=[{}], responses=refusing())
async def healthz() -> HealthDocument:
    """The process answers."""
    return {"status": "ok", "version": VERSION}


@get("/readyz", scope=None, security=[{}], responses=refusing(BlobUnavailable))
async def readyz(tools: NamedDependency[Tools]) -> ReadyDocument:
    """The store and the object store answer, too."""
    if not (await health.store_answers(tools.store)).is_ok:
        raise StoreUnavailable
    files = await health.files_answer(tools.blobs, tools.store.now())
    if not files.is_ok:
        raise BlobUnavailable(reason=files.meaning)
    return {"status": "ready", "store": "ok", "blobs": "ok"}

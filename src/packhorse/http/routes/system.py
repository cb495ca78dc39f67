"""About the server itself: what can be submitted, and whether it is well."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency

from packhorse.background import health
from packhorse.errors import BlobUnavailable, StoreUnavailable
from packhorse.http.openapi import refusing
from packhorse.http.services import Tools
from packhorse.schemas.operations import FindingDocument, FindingsDocument, HealthDocument, ReadyDocument
from packhorse.schemas.pipelines import PipelinesPage, pipeline_to_json
from packhorse.schemas.timestamps import iso
from packhorse.store.base import Finding
from packhorse.version import VERSION


@get("/pipelines", scope="read", responses=refusing())
async def pipelines(tools: NamedDependency[Tools]) -> PipelinesPage:
    """What can be submitted, with the JSON Schema of its parameters."""
    return {"items": [pipeline_to_json(each.definition) for each in await tools.catalog.all()], "next": None}


@get("/health", scope="operate", shared=True, responses=refusing())
async def findings(tools: NamedDependency[Tools]) -> FindingsDocument:
    """What `packhorse doctor` would say: store, files, workers, their duties, and jobs that nothing will start."""
    found = await health.find_all(tools.store, tools.blobs, tools.settings)
    now = tools.store.now()
    shown = [_finding(each, now) for each in found]
    return {"status": "ok" if all(each["state"] == "ok" for each in shown) else "bad", "findings": shown}


def _finding(found: Finding, now: float) -> FindingDocument:
    return {
        "name": found.name,
        "part": found.part,
        "state": health.state(found, now),
        "value": found.value,
        "meaning": found.meaning,
        "measured_at": iso(now if found.measured_at is None else found.measured_at),
    }


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

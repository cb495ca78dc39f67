"""Pages for operators: ``/`` with what needs attention, ``/queues`` and ``/health``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from litestar import Response, get, head, post
from litestar.params import FromPath, QueryParameter

from packhorse.jobs import operations
from packhorse.jobs.operations import Overview
from packhorse.schemas.operations import PointDocument
from packhorse.web.forms import form
from packhorse.web.render import HEADERS, Page, redirect, render_page, services_and_caller
from packhorse.web.widgets import formatting, plots

OUTCOMES = ("completed", "failed", "cancelled")
WINDOWS = {"1h": "1 hour", "6h": "6 hours", "24h": "1 day", "72h": "3 days"}
GROUPS = 50  # groups of failures that are looked through for open ones
FEW = 5  # groups of failures, and findings, that are named here; the rest is one click away

Window = Annotated[str, QueryParameter(description="How far back the plots go.")]


@get("/", scope="read", include_in_schema=False)
async def overview(request: Page, window: Window = "1h") -> Response[bytes]:
    services, caller = services_and_caller(request)
    if not caller.is_operator:
        return redirect(request, "/jobs")
    found = await operations.overview(services, caller, window, groups=GROUPS)
    return render_page(
        request,
        "overview.html",
        now=found.survey,
        today=found.today,
        failed=found.failed,
        window=window,
        windows=WINDOWS,
        attention=_attention(found),
        drawn=_plots(found.series),
    )


@head("/", scope=None, include_in_schema=False, sync_to_thread=False)
def overview_head() -> Response[None]:
    """For those who only ask whether it is there."""
    return Response(None, media_type="text/html", headers=HEADERS)


def _attention(overview: Overview) -> list[dict[str, str]]:
    """Problems, worst first; empty if there are none."""
    found = [
        {"kind": "bad", "text": f"{each['name']}: {each['value']}", "why": each["meaning"], "path": "/health"}
        for each in overview.findings
    ]
    found += [
        {
            "kind": "failed",
            "text": f"{formatting.number(each['open'])} open: {each['error_code']} in {each['pipeline']}",
            "why": each["message"],
            "path": f"/failures/groups/{each['fingerprint']}",
        }
        for each in overview.groups[:FEW]
    ]
    return found


def _plots(series: Sequence[PointDocument]) -> dict[str, plots.Plot]:
    times = [formatting.hour(each["at"]) for each in series]
    counts = {name: [each["outcomes"].get(name, 0) for each in series] for name in OUTCOMES}
    ended = [sum(stack) for stack in zip(*counts.values(), strict=True)]
    rates = [100 * failed / all if all else None for failed, all in zip(counts["failed"], ended, strict=True)]
    waits = {name: [each["wait_seconds"][name] for each in series] for name in ("p50", "p95")}
    return {
        "waits": plots.lines(waits, times, formatting.duration),
        "throughput": plots.bars(counts, times, formatting.number),
        "failing": plots.lines({"failed": rates}, times, lambda share: f"{share:g} %", least=100),
    }


@get("/queues", scope="operate", shared=True, include_in_schema=False)
async def queues(request: Page) -> Response[bytes]:
    services, _ = services_and_caller(request)
    found, workers = await asyncio.gather(operations.list_queues(services), operations.list_workers(services))
    return render_page(request, "queues.html", queues=found, workers=workers)


@post("/queues/{queue:str}/pause", scope="operate", shared=True, include_in_schema=False, status_code=303)
async def pause(request: Page, queue: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    await operations.pause_queue(*services_and_caller(request), queue, str(given.get("reason", "")))
    return redirect(request, "/queues", said=f"Queue {queue} paused.")


@post("/queues/{queue:str}/resume", scope="operate", shared=True, include_in_schema=False, status_code=303)
async def resume(request: Page, queue: FromPath[str]) -> Response[bytes]:
    await operations.resume_queue(*services_and_caller(request), queue)
    return redirect(request, "/queues", said=f"Queue {queue} resumed.")


@get("/health", scope="operate", shared=True, include_in_schema=False)
async def health(request: Page) -> Response[bytes]:
    found = await operations.findings(services_and_caller(request)[0])
    parts: dict[str, list[object]] = {}
    for each in found["findings"]:
        parts.setdefault(each["part"], []).append(each)
    problems = [each["name"] for each in found["findings"] if each["state"] == "bad"]
    return render_page(request, "health.html", problems=problems, found=parts)


ROUTES = [overview, overview_head, queues, pause, resume, health]

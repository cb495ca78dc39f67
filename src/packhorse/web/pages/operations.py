"""Pages for operators: ``/`` with what needs attention, ``/queues`` and ``/health``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

from litestar import Response, get, head, post
from litestar.params import FromPath, QueryParameter

from packhorse.define.validation import NOT_VALID, invalid
from packhorse.jobs import operations
from packhorse.schemas.operations import PercentilesDocument, PointDocument, WorkerDocument
from packhorse.settings import Settings
from packhorse.store.counters import Counts
from packhorse.web.forms import form
from packhorse.web.pages.jobs import job_row
from packhorse.web.render import HEADERS, Page, redirect, render_page, services_and_caller
from packhorse.web.widgets import formatting, plots

OUTCOMES = ("completed", "failed", "cancelled")
WINDOWS = {"5m": "5 min", "15m": "15 min", "1h": "1 hour", "6h": "6 hours", "24h": "1 day", "72h": "3 days"}
SHARES = ("p50", "p95")
SHOWN = 8  # running jobs, and others
FEW = 2  # jobs up to which the overview suggests what to do next

Window = Annotated[str, QueryParameter(description="How far back the plots go.")]
Queue = Annotated[str, QueryParameter(description="Of which queue; of all if empty.")]


@get("/", scope="read", include_in_schema=False)
async def overview(request: Page, window: Window = "1h", queue: Queue = "") -> Response[bytes]:
    services, caller = services_and_caller(request)
    if not caller.is_operator:
        return redirect(request, "/jobs")
    found = await operations.overview(services, caller, window, queue, jobs=SHOWN)
    rows = [job_row(each) for each in (*found.running, *found.recent)]
    has_jobs = bool(rows)
    return render_page(
        request,
        "overview.html",
        now=found.survey,
        today=found.today,
        failed=found.failed,
        failed_since=(datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="seconds"),
        window=window,
        windows=WINDOWS,
        queue=queue,
        findings=found.findings,
        groups=[{**each, "spark": plots.trend_spark(each["trend"])} for each in found.groups],
        may_retry="operate" in caller.allowed and caller.user is None,
        running=[job_row(each) for each in found.running],
        recent=[job_row(each) for each in found.recent],
        pipelines=[] if has_jobs else await services.catalog.all(caller.app),
        points=found.series,
        charts=_charts(found.series),
        estimates=found.estimates,
        first=rows[0] if 0 < len(rows) <= FEW else None,
    )


class Chart(NamedTuple):
    """A plot, and how a script draws it from the table of values: which columns, in which unit, stacked or as lines."""

    title: str
    columns: tuple[str, ...]
    names: tuple[str, ...]
    unit: str
    plot: plots.Plot


def _charts(series: Sequence[PointDocument]) -> list[Chart]:
    times = [formatting.hour(each["at"]) for each in series]
    counts = {name: [each["outcomes"].get(name, 0) for each in series] for name in OUTCOMES}
    ended = [sum(stack) for stack in zip(*counts.values(), strict=True)]
    rates = [100 * failed / all if all else None for failed, all in zip(counts["failed"], ended, strict=True)]
    waits = _shares([each["wait_seconds"] for each in series])
    runs = _shares([each["run_seconds"] for each in series])
    failing = plots.lines({"failed": rates}, times, lambda share: f"{share:g} %", least=100)
    return [
        Chart("Jobs ended", OUTCOMES, OUTCOMES, "count", plots.bars(counts, times, formatting.number)),
        Chart("Wait", ("wait-p50", "wait-p95"), SHARES, "seconds", plots.lines(waits, times, formatting.duration)),
        Chart("Run time", ("run-p50", "run-p95"), SHARES, "seconds", plots.lines(runs, times, formatting.duration)),
        Chart("Failure rate", ("rate",), ("failed",), "percent", failing),
    ]


def _shares(found: Sequence[PercentilesDocument]) -> dict[str, list[float | None]]:
    return {"p50": [each["p50"] for each in found], "p95": [each["p95"] for each in found]}


@head("/", scope=None, include_in_schema=False, sync_to_thread=False)
def overview_head() -> Response[None]:
    """For those who only ask whether it is there."""
    return Response(None, media_type="text/html", headers=HEADERS)


@get("/queues", scope="operate", shared=True, include_in_schema=False)
async def queues(request: Page) -> Response[bytes]:
    services, _ = services_and_caller(request)
    found, workers = await asyncio.gather(operations.list_queues(services), operations.list_workers(services))
    return render_page(
        request, "queues.html", queues=found, workers=[{**each, "told": _work_of(each)} for each in workers]
    )


def _work_of(worker: WorkerDocument) -> list[tuple[str, str, str | None, int]]:
    """Job, stage, its status, and how many elements of it the worker runs, or ran when it was lost."""
    work = worker["work"] if worker["lost"] is None else worker["lost"]["work"]
    counts = Counter((each["job_id"], each["stage"], each["status"]) for each in work)
    return [(*what, count) for what, count in counts.items()]


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
    problems = [each for each in found["findings"] if each["state"] == "bad"]
    return render_page(request, "health.html", problems=problems, found=parts)


LIMITS = {
    "Requests": ("api_limit", "streams_limit", "failed_limit", "sessions_limit", "tokens_limit"),
    "Downloads": (
        *("downloads_per", "downloads_at_once", "downloads_per_10s", "downloads_per_minute"),
        *("download_bytes_per_hour", "download_bytes_per_day", "token_share"),
    ),
    "Jobs and files": ("file_limit", "parameters_limit", "result_limit", "artifacts_limit", "log_limit", "log_rate"),
    "Quotas per tenant": ("tenant_jobs", "tenant_bytes", "tenant_schedules", "schedule_interval"),
}
"""Settings that limit what callers may do, in the order of the page."""
BYTES = ("bytes", "file_limit", "parameters_limit", "result_limit", "log_")


class LimitRow(NamedTuple):
    setting: str
    value: str
    meaning: str
    used: str
    share: float | None
    """Percent of it that the viewer's tenant uses, if that is counted."""


@get("/limits", scope="operate", shared=True, include_in_schema=False)
async def limits(request: Page) -> Response[bytes]:
    """The limits and quotas in force, and how much of the quotas the tenant uses."""
    services, caller = services_and_caller(request)
    used = await services.store.count_by_status(0, tenant=caller.tenant) if services.settings.quotas else Counts()
    counted = {"tenant_jobs": used.active, "tenant_bytes": used.bytes}
    shown = {part: [_limit_row(services.settings, each, counted) for each in names] for part, names in LIMITS.items()}
    of_pipelines = await operations.list_limits(services, caller)
    return render_page(request, "limits.html", limits=shown, tenant=caller.tenant, of_pipelines=of_pipelines)


@post("/limits/{limit:str}", scope="operate", shared=True, include_in_schema=False, status_code=303)
async def set_limit(request: Page, limit: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    text, version = str(given.get("most", "")).strip(), str(given.get("version", ""))
    if text and not text.isdecimal():
        raise invalid(NOT_VALID, [{"field": "most", "message": "It is not a whole number"}])
    reason = str(given.get("reason", ""))
    most, seen = int(text) if text else None, int(version) if version.isdecimal() else None
    await operations.set_limit(*services_and_caller(request), limit, most, reason, seen)
    return redirect(request, "/limits", said=f"Limit {limit} {'reset' if most is None else f'set to {most}'}.")


def _limit_row(settings: Settings, name: str, used: Mapping[str, int]) -> LimitRow:
    [meaning] = [each.metadata["description"] for each in fields(settings) if each.name == name]
    value: Any = getattr(settings, name)
    say: Callable[[float | None], str] = formatting.number
    if name == "schedule_interval":
        say = formatting.duration
    elif any(part in name for part in BYTES):
        say = formatting.size
    text = value if isinstance(value, str) else say(value) if value else "unlimited"
    meaning = meaning.partition(" 0: ")[0].rstrip(".")
    mine = used.get(name, 0) if value else 0
    share = round(100 * mine / value, 1) if value and name in used else None
    return LimitRow(f"PACKHORSE_{name.upper()}", text, meaning, say(mine) if share is not None else "", share)


@get("/components", scope="read", include_in_schema=False, sync_to_thread=False)
def components(request: Page) -> Response[bytes]:
    """What the pages are made of, side by side: for people who change or brand them, and for a test."""
    return render_page(request, "components.html")


ROUTES = [components, limits, set_limit, overview, overview_head, queues, pause, resume, health]

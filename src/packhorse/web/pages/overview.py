"""``/``: how it goes, at a glance, and what needs a person."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Response, get, head
from litestar.params import QueryParameter

from packhorse.web.api_calls import Api, Page, Problem, viewer
from packhorse.web.render import HEADERS, moved, rendered
from packhorse.web.widgets import formatting, plots

OUTCOMES = ("completed", "failed", "cancelled")
WINDOWS = {"1h": "1 hour", "6h": "6 hours", "24h": "1 day", "72h": "3 days"}
FEW = 5
"""Groups of failures, and findings, that are named here; the rest is one click away."""

Window = Annotated[str, QueryParameter(description="How far back the plots go.")]


@get("/", scope="read", include_in_schema=False)
async def overview(request: Page, window: Window = "1h") -> Response[bytes]:
    if not viewer(request).is_operator:
        return moved(request, "/jobs")
    api = Api(request)
    stats, health, groups = await asyncio.gather(api.get("/stats", window=window), api.get("/health"), _groups(api))
    return rendered(
        request,
        "overview.html",
        stats=stats,
        window=window,
        windows=WINDOWS,
        attention=_attention(health, groups),
        drawn=_plots(stats),
    )


@head("/", scope=None, include_in_schema=False, sync_to_thread=False)
def overview_head() -> Response[None]:
    """For those who only ask whether it is there."""
    return Response(None, media_type="text/html", headers=HEADERS)


async def _groups(api: Api) -> list[Any]:
    try:
        return [each for each in (await api.get("/failures/groups", limit=50))["items"] if each["open"]]
    except Problem:  # shown without: the rest of the page is about other things
        return []


def _attention(health: Any, groups: list[Any]) -> list[dict[str, str]]:
    """What is to be seen to, worst first; nothing if all is well."""
    found = [
        {"kind": "bad", "text": f"{each['name']}: {each['value']}", "why": each["meaning"], "path": "/health"}
        for each in health["findings"]
        if each["state"] == "bad"
    ]
    found += [
        {
            "kind": "failed",
            "text": f"{formatting.number(each['open'])} open: {each['error_code']} in {each['pipeline']}",
            "why": each["message"],
            "path": f"/failures/groups/{each['fingerprint']}",
        }
        for each in groups[:FEW]
    ]
    return found


def _plots(stats: Any) -> dict[str, plots.Plot]:
    series = stats["series"]
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


ROUTES = [overview, overview_head]

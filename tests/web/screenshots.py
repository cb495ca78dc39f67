"""`make screenshots`: every page in both themes, on a desk, a tablet and a phone, to be looked at."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser

from packhorse.auth import keys
from packhorse.client import Client
from packhorse.define.registry import load
from packhorse.factory import open_store
from tests.http.conftest import run
from tests.http.processes import Place, served, until
from tests.servers.browser import browsing
from tests.servers.ports import free_port
from tests.web import gallery
from tests.web.browser import person
from tests.web.history import add_fan_out, add_history

SIZES = {
    "desk": {"width": 1280, "height": 800},
    "tablet": {"width": 768, "height": 1024},
    "phone": {"width": 360, "height": 740},
}
THEMES = ("light", "dark")
APP = Path(gallery.__file__)
MANY, FEW, LINES = 10_000, 200, 100_000
SETTINGS = {
    "queues": "default=6,frames=8",
    "log_limit": 64 * 1024**2,
    "artifacts_limit": 20_000,
    "tenant_jobs": 50_000,
    "tenant_bytes": 20 * 1024**3,
}
KEYED = ("keys", "audit", "audit-all", "sessions", "login", "webhooks", "home-keyed")
ENDED = ("completed", "failed", "cancelled")


def main() -> None:
    asked = _arguments()
    asked.folder.mkdir(parents=True, exist_ok=True)
    with _site(asked.quick) as site, browsing() as browser:
        for name, address in site.pages.items():
            for size in SIZES:
                for theme in THEMES:
                    picture = f"{name}-{size}-{theme}"
                    if not asked.only or any(each in picture for each in asked.only):
                        _shoot(browser, site, address, asked.folder / f"{picture}.png", size, theme)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--only", action="append", help="part of a picture's name, such as job-phone")
    parser.add_argument("--quick", action="store_true", help="smaller fan-outs and logs")
    return parser.parse_args()


def _shoot(browser: Browser, site: Site, address: str, to: Path, size: str, theme: str) -> None:
    options: dict[str, Any] = {"viewport": SIZES[size], "color_scheme": theme, "timezone_id": "Europe/Berlin"}
    with person(browser, address, **options) as page:
        if address.startswith(site.keyed) and not address.endswith("/login"):
            page.goto(f"{site.keyed}/login")
            page.get_by_label("Key").fill(site.key)
            page.get_by_role("button", name="Log in").click()
        page.goto(address)
        page.wait_for_timeout(400)  # until fonts and plots stand
        page.screenshot(path=str(to), full_page=True)


class Site(NamedTuple):
    pages: dict[str, str]
    """The address of each page."""
    keyed: str
    """A server of the same place that asks for keys."""
    key: str


@contextmanager
def _site(is_quick: bool) -> Iterator[Site]:
    """Servers with jobs of every kind."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        place = Place(folder, app=str(APP), **SETTINGS)
        other = place.but(keyless=False, port=free_port())
        key, jobs = asyncio.run(_prepare(place.settings.store))  # before a worker is there to run what is written
        with run(place) as server, served(other) as keyed, Client(server.url) as client:
            paths = _Filler(client, folder, is_quick).fill(jobs)
            pages = {name: (keyed if name in KEYED else server).url + path for name, path in paths.items()}
            yield Site(pages, keyed.url, key)


async def _prepare(address: str) -> tuple[str, dict[str, str]]:
    """Jobs of the last days; the key of an operator, and the ids of jobs with many elements."""
    store = await open_store(address)
    definitions = load(str(APP)).definitions()
    await add_history(store, definitions, store.now())
    add = partial(add_fan_out, store, definitions, width=MANY)
    jobs = {
        "many": await add(user="ann@example.com", file="wing-section-a320.msh", done=MANY - 1, running=0),
        "manyrunning": await add(user="דנה", file="זרימה סביב כנף.msh", done=MANY * 3 // 5, running=8),
    }
    _, key = await keys.create(store, "default", ("admin",), by="cli", name="operations")
    await keys.create(store, "default", ("submit", "read"), by="cli", name="web shop", user="shop")
    await keys.create(store, "default", ("read",), by="cli", name="dashboard of the support team")
    await store.close()
    return key, jobs


class _Filler:
    def __init__(self, client: Client, folder: Path, is_quick: bool) -> None:
        self._client = client
        self._folder = folder
        self._few, self._lines = (60, 2000) if is_quick else (FEW, LINES)

    def fill(self, jobs: dict[str, str]) -> dict[str, str]:
        self._schedules_and_webhooks()
        jobs = jobs | self._ended() | self._waiting() | self._running()
        token = {name: self._client.token(jobs[name])["key"] for name in ("running", "done", "failed", "queued")}
        [group, *_] = self._client.failure_groups()
        element = f"/jobs/{jobs['running']}/element?stage=frame"
        return {
            "overview": "/",
            "overview-3d": "/?window=72h",
            "jobs": "/jobs",
            "jobs-failed": "/jobs?status=failed",
            "jobs-none": "/jobs?q=nothing-like-this",
            "new": "/jobs/new?pipeline=convert",
            "choose": "/jobs/new",
            **{f"job-{name}": f"/jobs/{id}" for name, id in jobs.items()},
            "element": f"{element}&element=3",
            "element-failed": f"{element}&element=17",
            "files": f"/jobs/{jobs['files']}/files?stage=thumbnail",
            "share": f"/jobs/{jobs['done']}/share",
            "delete": f"/jobs/{jobs['done']}/delete",
            "queues": "/queues",
            "schedules": "/schedules",
            "schedule": "/schedules/nightly-report",
            "schedule-edit": "/schedules/nightly-report/edit",
            "failures": "/failures",
            "failures-single": "/failures?view=single",
            "group": f"/failures/groups/{group['fingerprint']}",
            "keys": "/keys",
            "webhooks": "/webhooks",
            "limits": "/limits",
            "components": "/components",
            "audit": "/audit",
            "audit-all": "/audit?routine=true",
            "home-keyed": "/",
            "login": "/login",
            "sessions": "/sessions",
            "health": "/health",
            "docs": "/docs",
            "missing": "/jobs/nothing",
            **{f"public-{name}": f"/p/{key}" for name, key in token.items()},
        }

    def _submit(self, pipeline: str, user: str, file: str = "", body: bytes = b"0" * 48_213, **given: Any) -> str:
        options = {name: given.pop(name) for name in ("at", "metadata", "priority") if name in given}
        parameter = {"convert": "model", "transcribe": "recording"}.get(pipeline, "source")
        files = {parameter: (file, body)} if file else None
        submitted: dict[str, Any] = self._client.submit(pipeline, given, files=files, user=user, **options)
        return str(submitted["job_id"])

    def _ended(self) -> dict[str, str]:
        submit = self._submit
        jobs = {
            "files": submit("album", "cleo@example.com", "Wedding Sarah & Tom – all photos (2).zip", photos=self._few),
            "log": submit("render", "bob@example.com", "atlas-check.blend", frames=4, lines=self._lines),
            "done": submit(
                "convert", "ann@example.com", "yolov8n-roads.onnx", order=7, metadata={"order": 7, "team": "roads"}
            ),
            "table": submit("transcribe", "فاطمة", "تسجيل الاجتماع الأسبوعي رقم ١٢.m4a", language="ar"),
            "json": submit("report", "cron", rows=4),
            "failed": submit(
                "convert", "eve@example.com", "retinanet-r50-fpn-with-a-long-name-v2.onnx", platform="730"
            ),
        }
        for n, user in enumerate(("gus", "hal", "ivy", "joe")):
            submit("transcribe", f"{user}@example.com", f"Call {n}.wav", fails="memory" if n % 2 else "speech")
        submit("fetch", "cron", url="https://feeds.example.com/prices.xml")
        for job_id in jobs.values():
            until(partial(self._has_ended, job_id), 300)
        return jobs

    def _has_ended(self, job_id: str) -> bool:
        return self._client.get(job_id)["status"] in ENDED

    def _waiting(self) -> dict[str, str]:
        tomorrow = datetime.now(UTC) + timedelta(hours=14)
        gone = self._submit("train", "bob@example.com", dataset="s3://datasets/signs")
        self._client.cancel(gone)
        return {
            "queued": self._submit("train", "dora@example.com", epochs=30),
            "later": self._submit("report", "cron", day="tomorrow", at=tomorrow),
            "cancelled": gone,
        }

    def _running(self) -> dict[str, str]:
        gate = str(self._folder / "gate")
        hold = self._few * 2 // 3
        jobs = {
            "running": self._submit(
                "render",
                "ann@example.com",
                "shot_043_comp.blend",
                frames=self._few,
                gate=gate,
                hold=hold,
                broken=[17, 63 % hold],
                lines=40,
            ),
        }
        until(lambda: self._count(jobs["running"], "frame") >= hold - 6, 300)
        return jobs

    def _count(self, job_id: str, stage: str) -> int:
        elements = self._client.get(job_id)["stages"][stage].get("elements")
        return int(elements["completed"]) if elements else 0

    def _schedules_and_webhooks(self) -> None:
        put = self._client.put_schedule
        put(
            "nightly-report",
            cron="0 3 * * *",
            zone="Europe/Berlin",
            pipeline="report",
            user="cron",
            parameters={"rows": 5},
        )
        put(
            "prices",
            cron="*/10 * * * *",
            pipeline="fetch",
            user="cron",
            parameters={"url": "https://feeds.example.com/prices.xml"},
        )


if __name__ == "__main__":
    main()

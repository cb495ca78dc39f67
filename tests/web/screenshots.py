"""`make screenshots`: every page in both themes, on a desk and on a phone, to be looked at."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from packhorse.client import Client
from tests.http.conftest import run
from tests.http.processes import Place
from tests.servers.browser import browsing
from tests.web.browser import person

SIZES = {"desk": {"width": 1280, "height": 800}, "phone": {"width": 360, "height": 740}}
THEMES = ("light", "dark")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with _site() as (url, paths), browsing() as browser:
        for name, path in paths.items():
            for size in SIZES:
                for theme in THEMES:
                    _shoot(browser, url + path, folder / f"{name}-{size}-{theme}.png", size, theme)
    print(f"{len(paths) * len(SIZES) * len(THEMES)} pictures in {folder}")


def _shoot(browser: Browser, url: str, to: Path, size: str, theme: str) -> None:
    options: dict[str, Any] = {"viewport": SIZES[size], "color_scheme": theme}
    with person(browser, url, **options) as page:
        page.goto(url)
        page.wait_for_timeout(300)  # until fonts and plots stand
        page.screenshot(path=str(to), full_page=size == "phone")


@contextmanager
def _site() -> Iterator[tuple[str, dict[str, str]]]:
    """A server with jobs of every kind; and the address of each page."""
    with tempfile.TemporaryDirectory() as folder, run(Place(Path(folder))) as server, Client(server.url) as client:
        yield server.url, _filled(client, Path(folder))


def _filled(client: Client, folder: Path) -> dict[str, str]:
    model = folder / "resnet.onnx"
    model.write_bytes(b"0" * 40_000)
    for user in ("ann", "bob", "cleo", "dora"):
        client.wait(client.submit("convert", {}, files={"model": model}, user=user)["job_id"])
        client.submit("hold", {"seconds": 0.2, "lines": 5}, user=user)
    failing = [client.submit("fail", {"message": "the disk is full"}, user=user) for user in ("ann", "eve")]
    for each in failing:
        client.wait(each["job_id"])
    client.put_schedule("nightly", cron="0 3 * * *", zone="Europe/Berlin", pipeline="hold", user="ann")
    running = client.submit("hold", {"seconds": 60, "lines": 40}, user="fay")
    done = next(each for each in client.iterate(pipeline="convert"))
    token = client.token(running["job_id"])
    [group, *_] = client.failure_groups()
    return {
        "overview": "/",
        "jobs": "/jobs",
        "new": "/jobs/new?pipeline=convert",
        "job": f"/jobs/{done['job_id']}",
        "running": f"/jobs/{running['job_id']}",
        "failed": f"/jobs/{failing[0]['job_id']}",
        "queues": "/queues",
        "schedules": "/schedules",
        "schedule": "/schedules/nightly",
        "failures": "/failures",
        "group": f"/failures/groups/{group['fingerprint']}",
        "keys": "/keys",
        "webhooks": "/webhooks",
        "limits": "/limits",
        "components": "/components",
        "audit": "/audit",
        "health": "/health",
        "waiting": f"/p/{token['key']}",
    }


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"))

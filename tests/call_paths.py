"""Which modules a request passes through: traced on real calls, so that the list in the docs is not a guess.

`python -m tests.call_paths` prints them. What background tasks do meanwhile is left out.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import packhorse
from packhorse.factory import open_both
from packhorse.worker.pool import describe
from packhorse.worker.worker import Worker
from tests.http.processes import SAMPLE, Place
from tests.http.unserved import unserved

LIMIT = 60.0
"""Seconds for all of it: what is waited for below must come by then."""
SOURCE = str(Path(packhorse.__file__).parent) + "/"


class Trace:
    """The modules whose functions ran while it was on, in the order of their first call."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self.is_on = False

    def install(self) -> None:
        """Before any thread is started: a thread is traced from its beginning or never."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    @contextmanager
    def on(self) -> Iterator[list[str]]:
        modules: list[str] = []
        self.modules = {}
        self.is_on = True
        yield modules
        self.is_on = False
        modules += self.modules

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.is_on or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<") and not _is_in_background(frame):
            self.modules[code.co_filename[len(SOURCE) :]] = None


def _is_in_background(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE + "background/"):
            return True
        frame = frame.f_back
    return False


async def paths() -> dict[str, list[str]]:
    """A submit, the stage it leads to, and the page of the job."""
    trace = Trace()
    trace.install()
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = Place(Path(folder)).settings
        store, blobs = await open_both(settings)
        worker = Worker(store, blobs, settings, await describe(str(SAMPLE)))
        stop = asyncio.Event()
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group, unserved(settings) as http:
            group.create_task(worker.run(stop))
            while not (await http.get("pipelines")).json()["items"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            body = {"pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}
            with trace.on() as found["submit"]:
                answer = await http.post("jobs", json=body)
            job_id = answer.json()["job_id"]
            with trace.on() as found["stage"]:
                while not (await store.get([job_id]))[0].status.is_terminal:  # type: ignore[union-attr]  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            with trace.on() as found["page"]:
                assert (await http.get(f"http://127.0.0.1/jobs/{job_id}")).status_code == 200
            stop.set()
        await store.close()
        await blobs.close()
    return found


if __name__ == "__main__":
    for name, modules in asyncio.run(paths()).items():
        print(f"{name}: {len(modules)} modules", *modules, sep="\n    ")

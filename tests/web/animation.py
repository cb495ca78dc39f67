"""`make animation`: records a job in the web UI whose worker is killed with kill -9, as an animated WebP.

It drives the real `packhorse dev` in Chromium. Every frame is a screenshot; the line of text below it names what the
script does. Frames that look the same become one frame that is shown longer.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page

from examples import report_text
from examples.dev_server import DevServer, Wrong, dev_server
from packhorse import Client
from tests.servers.browser import browsing
from tests.web.browser import aside, person

TARGET = Path("docs/screenshots/crash.webp")
WIDTH, HEIGHT, CAPTION = 1000, 600, 44
PACE = 1.6  # seconds that each section of the text takes
EVERY = 0.2  # seconds between two screenshots
DONE_BEFORE_THE_KILL = 3  # sections
READ = 3.0  # seconds that the last frame stays
LIMIT = 90.0
LARGEST = 600_000  # bytes

SUBMITTED = "A job runs: a text with eight sections, two of them at a time."
KILLED = "kill -9 of the worker. packhorse dev starts a new worker."
CONTINUED = "The job continues. Finished sections are kept; the two that were lost run again."
COMPLETED = "Completed."
STAGE = "digest"
INK = "#1b1f27"
QUALITY = 60


class Frame(NamedTuple):
    picture: bytes  # PNG
    caption: str
    at: float  # when it was on the screen


def main(target: Path) -> None:
    os.environ["CHECK"] = "1"  # a free port, and nothing left behind
    with (
        tempfile.TemporaryDirectory() as name,
        dev_server(Path(name), "packhorse.sample", env={"PACKHORSE_SLOTS": "2"}) as server,
        Client(server.url) as client,
        browsing() as browser,
        person(browser, server.url, viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light") as page,
    ):
        aside(lambda: server.wait_for(client, ["report"]))
        frames = _record(page, client, server, Path(name))
    _write(frames, target)
    print(f"{len(frames)} screenshots, {target.stat().st_size:,} bytes in {target}")
    if target.stat().st_size > LARGEST:
        raise Wrong(f"{target} is larger than {LARGEST:,} bytes.")


def _record(page: Page, client: Client, server: DevServer, folder: Path) -> list[Frame]:
    """Watch the page of a job to its end, and kill the worker when some sections are done."""
    job_id = aside(lambda: _submit(client, folder))
    page.goto(f"/jobs/{job_id}")
    page.locator(f"#stage-{STAGE} progress").wait_for()
    frames: list[Frame] = []
    caption, kept, until = SUBMITTED, 0, time.monotonic() + LIMIT
    while time.monotonic() < until:
        job = aside(lambda: client.get(job_id))
        if job["status"] == "completed":
            page.locator("h1 .status", has_text="completed").wait_for()
            return [*frames, Frame(page.screenshot(), COMPLETED, time.monotonic())]
        frames.append(Frame(page.screenshot(), caption, time.monotonic()))
        done = job["stages"][STAGE].get("elements", {}).get("completed", 0)
        if caption == SUBMITTED and done >= DONE_BEFORE_THE_KILL:
            caption, kept = KILLED, done
            server.kill_workers()
        elif caption == KILLED and done > kept:
            caption = CONTINUED
        page.wait_for_timeout(EVERY * 1000)
    raise Wrong(f"Job {job_id} has not completed within {LIMIT:.0f} s.")


def _submit(client: Client, folder: Path) -> str:
    source = folder / report_text.NAME
    source.write_text(report_text.text())
    params = {"title": report_text.TITLE, "pace": PACE}
    job_id: str = client.submit("report", params, files={"text": source}, user="ann")["job_id"]
    return job_id


def _write(frames: list[Frame], target: Path) -> None:
    """Show each frame as long as it was on the screen, and the last one for ``READ`` seconds."""
    kept = [next(same) for _, same in groupby(frames, key=lambda each: each[:2])]
    ends = [each.at for each in kept[1:]] + [kept[-1].at + READ]
    durations = [round(1000 * (end - each.at)) for each, end in zip(kept, ends, strict=True)]
    first, *rest = [_caption(each.picture, each.caption) for each in kept]
    target.parent.mkdir(parents=True, exist_ok=True)
    first.save(target, save_all=True, append_images=rest, duration=durations, loop=0, quality=QUALITY, method=6)


def _caption(picture: bytes, text: str) -> Image.Image:
    whole = Image.new("RGB", (WIDTH, HEIGHT + CAPTION), INK)
    whole.paste(Image.open(io.BytesIO(picture)).convert("RGB"))
    draw = ImageDraw.Draw(whole)
    draw.text((20, HEIGHT + CAPTION / 2), text, fill="white", font=ImageFont.load_default(17), anchor="lm")
    return whole


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)

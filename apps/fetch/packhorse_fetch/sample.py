"""A small site to fetch from, and schedules for it: ``python -m packhorse_fetch.sample FOLDER`` makes and serves it."""

from __future__ import annotations

import argparse
import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image, ImageDraw

PORT = 3010

NEWS = """<?xml version="1.0" encoding="utf-8"?>
<rss version="2.0"><channel><title>Stable news</title><link>https://stable.example/</link>
<item><title>Oats are in</title><link>https://stable.example/1</link><guid>1</guid></item>
<item><title>The mare has foaled</title><link>https://stable.example/2</link><guid>2</guid></item>
</channel></rss>
"""
HORSES = {"count": 2, "horses": [{"name": "Bayard", "legs": 4}, {"name": "Sleipnir", "legs": 8}]}

JOBS = """\
[[job]]
job_id = "picture-daily"
cron = "0 8 * * *"
fetch_url = "{url}/picture.png"

[[job]]
job_id = "horses"
cron = "*/15 * * * *"
fetch_url = "{url}/horses.json"
fields = {{ names = "horses[*].name", legs = "horses[1].legs" }}
params = {{ api_key = "not-so-secret" }}

[[job]]
job_id = "news"
cron = "0 * * * *"
active = false
fetch_url = "{url}/news.xml"
fields = {{ titles = "entries[*].title" }}
"""


def make(folder: Path, url: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    picture().save(folder / "picture.png")
    (folder / "horses.json").write_text(json.dumps(HORSES))
    (folder / "news.xml").write_text(NEWS)
    (folder / "jobs.toml").write_text(JOBS.format(url=url))


def picture() -> Image.Image:
    """A quarter of it is red, the rest is blue."""
    made = Image.new("RGB", (640, 400), "#1040a0")
    ImageDraw.Draw(made).rectangle((0, 0, 159, 399), "#e02020")
    return made


def serve(folder: Path, port: int) -> ThreadingHTTPServer:
    """On loopback. It tells when a file was last changed, and sends nothing to who knows it already."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(SimpleHTTPRequestHandler, directory=str(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=PORT)
    given = parser.parse_args()
    with serve(given.folder, given.port) as server:
        make(given.folder, f"http://127.0.0.1:{server.server_port}")
        server.serve_forever()


if __name__ == "__main__":
    main()

"""Four apps on one packhorse: a real job of each, a kill -9 of their workers, and results that are checked.

`make run` runs it. In a terminal it keeps running until Ctrl-C. With CHECK=1, or without a terminal, it exits after the
checks: with code 0, or with code 1 and a message.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from examples.dev_server import DevServer, Wrong, create, data_folder, dev_server, is_check, run, say, stays
from packhorse import Client
from packhorse_converter import container
from packhorse_converter import sample as models
from packhorse_fetch import sample as site
from packhorse_video import sample as films
from packhorse_video import timeline

APPS = ("packhorse_converter:app", "packhorse_speech:app", "packhorse_video:app", "packhorse_fetch:app")
PIPELINES = ("convert", "multi_role_tts", "analyse", "fetch")
LIMIT, SCHEDULE_LIMIT = 600.0, 120.0
POLL = 0.2
USER = "demo"

TURNS = [
    {"speaker": "Ann", "text": "Is the mule ready?"},
    {"speaker": "Bob", "text": "The load is on, and the rope is tight."},
    {"speaker": "Ann", "text": "Then let us cross the pass before the snow."},
]

Json = dict[str, Any]


class AppJob(NamedTuple):
    """One job of one app: how to submit it, and how to check its result."""

    name: str
    submit: Callable[[Client, Path], Json]
    check: Callable[[Client, Json, Path], str]


def main() -> None:
    with (
        data_folder("four") as folder,
        local_site(folder / "site") as schedules,
        dev_server(folder, *APPS, env=settings(schedules)) as server,
        Client(server.url) as client,
    ):
        server.wait_for(client, PIPELINES)
        say(f"the web UI is at {server.url}")
        run_all(client, server, folder)
        if stays():
            say(f"packhorse keeps running at {server.url}; press Ctrl-C to stop")
            server.stay()


def settings(schedules: Path) -> dict[str, str]:
    return {"PACKHORSE_SLOTS": "1", "FETCH_JOBS": str(schedules), "FETCH_ALLOW": "127.0.0.1/32"}


@contextlib.contextmanager
def local_site(folder: Path) -> Iterator[Path]:
    """Serve a small site on loopback; the path of the file with schedules that fetch from it."""
    create(folder)
    server = site.serve(folder, 0)
    site.make(folder, f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield folder / "jobs.toml"
    finally:
        server.shutdown()
        server.server_close()


def run_all(client: Client, server: DevServer, folder: Path) -> None:
    """Submit the four jobs at once, wait for them, and check their results."""
    inputs, results = create(folder / "inputs"), create(folder / "results")
    jobs = {}
    for each in JOBS:
        jobs[each.name] = each.submit(client, inputs)
        say(f"{each.name}: submitted, see {server.url}/jobs/{jobs[each.name]['job_id']}")
    follow(client, jobs, server)
    for each in JOBS:
        job = client.get(jobs[each.name]["job_id"])
        if job["status"] != "completed":
            raise Wrong(f"{each.name} is {job['status']}, not completed: {job['error']}.")
        found = each.check(client, job, create(results / each.name))
        seconds, retries = job["duration_ms"] / 1000, job["retry_count"]
        say(f"{each.name}: {found}; took {seconds:.1f} s, retries after the kill: {retries}")
    if not is_check():
        say(f"the results are in {results}")


def follow(client: Client, jobs: Mapping[str, Json], server: DevServer) -> None:
    """Print every step until all jobs have ended; kill the workers once, while at least two jobs run."""
    until = time.monotonic() + LIMIT
    printed: dict[str, str] = {}
    is_killed = False
    while True:
        found = {name: client.get(job["job_id"]) for name, job in jobs.items()}
        for name, job in found.items():
            if printed.get(name) != (text := describe(job)):
                printed[name] = text
                say(f"{name}: {text}")
        if all(job["status"] in ("completed", "failed", "cancelled") for job in found.values()):
            break
        if not is_killed and sum(job["status"] == "running" for job in found.values()) >= 2:
            count = server.kill_workers()
            say(f"killed all {count} workers with kill -9, while jobs run")
            is_killed = bool(count)
        if time.monotonic() > until:
            raise Wrong(f"The jobs took longer than {LIMIT:.0f} s: {printed}.")
        time.sleep(POLL)
    if not is_killed:
        raise Wrong("All jobs ended before a worker could be killed.")


def describe(job: Json) -> str:
    running = [name for name, stage in job["stages"].items() if stage["status"] == "running"]
    return f"{job['status']}, {job['progress'] // 10 * 10:.0f} %" + (f" ({', '.join(running)})" if running else "")


def submit_model(client: Client, folder: Path) -> Json:
    models.write(folder / "model", images=8)
    files: dict[str, Any] = {
        "model": folder / "model/shapes.onnx",
        "ref_images": sorted((folder / "model").glob("*.png")),
    }
    return client.submit("convert", {"platform": "730", "enable_sim_hw": True}, files=files, user=USER)


def check_model(client: Client, job: Json, folder: Path) -> str:
    path = client.result(job["job_id"], folder)
    packed = container.read(path)
    if (packed.about.platform, job["result"]["sim_hw"]["top1"]) != (730, 1.0):
        raise Wrong(f"The packed model is for {packed.about.platform}; top1 is {job['result']['sim_hw']['top1']}.")
    return f"{path.name} is packed for platform {packed.about.platform}, with the output of the quantised model"


def submit_dialogue(client: Client, _folder: Path) -> Json:
    return client.submit("multi_role_tts", {"turns": TURNS, "gap_ms": 400}, user=USER)


def check_dialogue(client: Client, job: Json, folder: Path) -> str:
    path, timings = client.result(job["job_id"], folder), job["result"]["turn_timings"]
    gaps = [after["start_ms"] - before["end_ms"] for before, after in pairwise(timings)]
    if len(timings) != len(TURNS) or not all(abs(gap - 400) <= 1 for gap in gaps):
        raise Wrong(f"The gaps between turns should be 400 ms and are {gaps}.")
    return f"{path.name} has {len(timings)} turns in {job['result']['duration_ms'] / 1000:.1f} s"


def submit_video(client: Client, folder: Path) -> Json:
    films.write(folder / "sample.mp4")
    return client.submit("analyse", {"sampling_rate": 0.5}, files={"video": folder / "sample.mp4"}, user=USER)


def check_video(client: Client, job: Json, folder: Path) -> str:
    found = timeline.read(client.artifact(job["job_id"], "join/timeline.json", folder))
    for name in ("join/preview.mp4", "join/sheet.jpg"):
        client.artifact(job["job_id"], name, folder)
    cuts = [each.at for each in found.entries if each.processor == "cut"]
    objects = {each.label for each in found.entries if each.processor == "yolo"}
    if len(cuts) != len(films.CUTS) or any(abs(a - b) > 0.001 for a, b in zip(cuts, films.CUTS, strict=True)):
        raise Wrong(f"The cuts are at {films.CUTS} and were found at {cuts}.")
    if objects != {"person", "cup", "cat"}:
        raise Wrong(f"The video shows a person, a cup and a cat; found were {objects}.")
    return f"timeline.json has {len(found.entries)} entries: every cut at its time, a person, a cup and a cat"


def run_schedule(client: Client, _folder: Path) -> Json:
    client.run_schedule("picture-daily")
    until = time.monotonic() + SCHEDULE_LIMIT
    while time.monotonic() < until:
        [run, *_] = client.schedule_runs("picture-daily")["items"] or [{}]
        if run.get("job_id"):
            return client.get(run["job_id"])
        time.sleep(POLL)
    raise Wrong("The schedule ran, but it started no job.")


def check_picture(client: Client, job: Json, folder: Path) -> str:
    thumbnail = client.artifact(job["job_id"], "process/thumbnail.png", folder)
    meta = json.loads(client.artifact(job["job_id"], "process/meta.json", folder).read_text())
    with Image.open(thumbnail) as image:
        if image.size != (256, 160):
            raise Wrong(f"The thumbnail should have 256 x 160 pixels and has {image.size}.")
    return f"{len(meta)} facts of the picture in meta.json, and a thumbnail of 256 x 160"


JOBS = (
    AppJob("converter", submit_model, check_model),
    AppJob("speech", submit_dialogue, check_dialogue),
    AppJob("video", submit_video, check_video),
    AppJob("fetch", run_schedule, check_picture),
)


if __name__ == "__main__":
    run(main)

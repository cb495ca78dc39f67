"""`make run`: four apps on one packhorse, a real job of each, a kill -9 in the middle, and results that are checked.

Stays up on a terminal until Ctrl-C. With CHECK=1, or where nobody looks, it ends after the checks with exit code 0, or
1 and a sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil
from PIL import Image

from packhorse import Client
from packhorse_converter import container
from packhorse_converter import sample as models
from packhorse_fetch import sample as site
from packhorse_video import sample as films
from packhorse_video import timeline

APPS = ("packhorse_converter:app", "packhorse_speech:app", "packhorse_video:app", "packhorse_fetch:app")
PORT = 3003
STARTING, FINISHING = 120.0, 600.0
KNOCK = 0.2
USER = "demo"

TURNS = [
    {"speaker": "Ann", "text": "Is the mule ready?"},
    {"speaker": "Bob", "text": "The load is on, and the rope is tight."},
    {"speaker": "Ann", "text": "Then let us cross the pass before the snow."},
]

Json = dict[str, Any]


class Wrong(Exception):
    """What was made is not what it should be."""


class Errand(NamedTuple):
    """One job of one app: how it is asked for, and how its result is checked."""

    name: str
    submit: Callable[[Client, Path], Json]
    check: Callable[[Client, Json, Path], str]


def main() -> None:
    is_check = os.environ.get("CHECK") == "1"
    stays = not is_check and sys.stdin.isatty() and sys.stdout.isatty()
    signal.signal(signal.SIGTERM, _leave)
    with (
        _folder(is_check) as folder,
        _fetched_from(folder / "site") as jobs,
        _dev(folder, jobs, is_check) as (dev, url),
        Client(url) as client,
    ):
        _wait_until_ready(client, dev)
        _say(f"the page is at {url}")
        _show(client, dev, folder, url)
        if stays:
            _say(f"packhorse goes on at {url}; Ctrl-C ends it")
            with contextlib.suppress(KeyboardInterrupt):
                dev.wait()


def _show(client: Client, dev: subprocess.Popen[bytes], folder: Path, url: str) -> None:
    """Everything at once, as it would be: four jobs of four apps, side by side."""
    inputs, outputs = _made(folder / "inputs"), _made(folder / "results")
    jobs = {}
    for errand in ERRANDS:
        jobs[errand.name] = errand.submit(client, inputs)
        _say(f"{errand.name}: submitted as {url}/jobs/{jobs[errand.name]['job_id']}")
    _watch(client, jobs, dev)
    for errand in ERRANDS:
        ended = client.get(jobs[errand.name]["job_id"])
        if ended["status"] != "completed":
            raise Wrong(f"{errand.name} is {ended['status']}, not completed: {ended['error']}.")
        found = errand.check(client, ended, _made(outputs / errand.name))
        _say(f"{errand.name}: {found}; {ended['duration_ms'] / 1000:.1f} s, {ended['retry_count']} attempts lost")
    _say(f"the results are in {outputs}")


def _watch(client: Client, jobs: Mapping[str, Json], dev: subprocess.Popen[bytes]) -> None:
    """Tell of every step until all have ended; kill the workers once, while most have something in hand."""
    until = time.monotonic() + FINISHING
    shown: dict[str, str] = {}
    is_killed = False
    while True:
        found = {name: client.get(job["job_id"]) for name, job in jobs.items()}
        for name, job in found.items():
            told = _told(job)
            if shown.get(name) != told:
                shown[name] = told
                _say(f"{name}: {told}")
        if all(job["status"] in ("completed", "failed", "cancelled") for job in found.values()):
            break
        if not is_killed and sum(job["status"] == "running" for job in found.values()) >= 2:
            is_killed = _kill_workers(dev)
        if time.monotonic() > until:
            raise Wrong(f"It was not through after {FINISHING:.0f} s: {shown}.")
        time.sleep(KNOCK)
    if not is_killed:
        raise Wrong("Everything was done before a worker could be killed.")


def _told(job: Json) -> str:
    running = [name for name, stage in job["stages"].items() if stage["status"] == "running"]
    return f"{job['status']}, {job['progress'] // 10 * 10:.0f} %" + (f" ({', '.join(running)})" if running else "")


def _kill_workers(dev: subprocess.Popen[bytes]) -> bool:
    killed = [each for each in psutil.Process(dev.pid).children() if "worker" in each.cmdline()]
    for process in killed:
        process.kill()
    _say(f"kill -9 of {len(killed)} workers, in the middle of it")
    return bool(killed)


# The four


def _convert(client: Client, folder: Path) -> Json:
    models.write(folder / "model", images=8)
    files: dict[str, Any] = {
        "model": folder / "model/shapes.onnx",
        "ref_images": sorted((folder / "model").glob("*.png")),
    }
    return client.submit("convert", {"platform": "730", "enable_sim_hw": True}, files=files, user=USER)


def _converted(client: Client, job: Json, folder: Path) -> str:
    path = client.result(job["job_id"], folder)
    packed = container.read(path)
    if (packed.about.platform, job["result"]["sim_hw"]["top1"]) != (730, 1.0):
        raise Wrong(f"The packed model is for {packed.about.platform} and agrees in {job['result']['sim_hw']['top1']}.")
    return f"{path.name} was packed for {packed.about.platform}, and computes what the quantised model does"


def _speak(client: Client, _folder: Path) -> Json:
    return client.submit("multi_role_tts", {"turns": TURNS, "gap_ms": 400}, user=USER)


def _spoken(client: Client, job: Json, folder: Path) -> str:
    path, timings = client.result(job["job_id"], folder), job["result"]["turn_timings"]
    gaps = [after["start_ms"] - before["end_ms"] for before, after in pairwise(timings)]
    if len(timings) != len(TURNS) or not all(abs(gap - 400) <= 1 for gap in gaps):
        raise Wrong(f"The turns do not follow each other by 400 ms: {gaps}.")
    return f"{path.name} has {len(timings)} turns in {job['result']['duration_ms'] / 1000:.1f} s"


def _analyse(client: Client, folder: Path) -> Json:
    films.write(folder / "sample.mp4")
    return client.submit("analyse", {"sampling_rate": 0.5}, files={"video": folder / "sample.mp4"}, user=USER)


def _analysed(client: Client, job: Json, folder: Path) -> str:
    found = timeline.read(client.artifact(job["job_id"], "join/timeline.json", folder))
    for name in ("join/preview.mp4", "join/sheet.jpg"):
        client.artifact(job["job_id"], name, folder)
    cuts = [each.at for each in found.entries if each.processor == "cut"]
    objects = {each.label for each in found.entries if each.processor == "yolo"}
    if len(cuts) != len(films.CUTS) or any(abs(a - b) > 0.001 for a, b in zip(cuts, films.CUTS, strict=True)):
        raise Wrong(f"The cuts are at {films.CUTS}, and were found at {cuts}.")
    if objects != {"person", "cup", "cat"}:
        raise Wrong(f"There are a person, a cup and a cat, and {objects} were found.")
    return f"timeline.json has {len(found.entries)} entries; all cuts are where they are, and a person, a cup and a cat"


def _fetch(client: Client, _folder: Path) -> Json:
    client.run_schedule("picture-daily")
    until = time.monotonic() + STARTING
    while time.monotonic() < until:
        [run, *_] = client.schedule_runs("picture-daily")["items"] or [{}]
        if run.get("job_id"):
            return client.get(run["job_id"])
        time.sleep(KNOCK)
    raise Wrong("The schedule was run, and no job came of it.")


def _fetched(client: Client, job: Json, folder: Path) -> str:
    thumbnail = client.artifact(job["job_id"], "process/thumbnail.png", folder)
    meta = json.loads(client.artifact(job["job_id"], "process/meta.json", folder).read_text())
    with Image.open(thumbnail) as image:
        if image.size != (256, 160):
            raise Wrong(f"The thumbnail of a picture of 640 x 400 has {image.size}.")
    return f"{len(meta)} facts of the picture in meta.json, and a thumbnail of 256 x 160"


ERRANDS = (
    Errand("converter", _convert, _converted),
    Errand("speech", _speak, _spoken),
    Errand("video", _analyse, _analysed),
    Errand("fetch", _fetch, _fetched),
)


# Around them


@contextlib.contextmanager
def _folder(is_check: bool) -> Iterator[Path]:
    """Where it keeps its data: here, to be looked at; apart and for once if it is only a check."""
    if not is_check:
        yield _made(Path.cwd() / ".packhorse/four")
        return
    with tempfile.TemporaryDirectory(prefix="packhorse-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _fetched_from(folder: Path) -> Iterator[Path]:
    """A small site on loopback, and the file that says what is fetched from it."""
    _made(folder)
    server = site.serve(folder, 0)
    site.make(folder, f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield folder / "jobs.toml"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def _dev(folder: Path, jobs: Path, is_check: bool) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = _port(is_check)
    places = {"store": f"sqlite://{folder}/packhorse.db", "blobs": f"file://{folder}/blobs"}
    places |= {"scratch": f"{folder}/scratch", "port": str(port)}
    own = {
        "PACKHORSE_CHILD_OF": str(os.getpid()),  # it ends with us, however we end
        "PACKHORSE_HOST": "127.0.0.1",
        "PACKHORSE_SECRET_KEY": secrets.token_urlsafe(32),  # nothing of a demonstration is kept, its key neither
        "PACKHORSE_SLOTS": "1",
        "FETCH_JOBS": str(jobs),
        "FETCH_ALLOW": "127.0.0.1/32",
    }
    command = [sys.executable, "-m", "packhorse.cli", "dev", *APPS, *(f"--{name}={at}" for name, at in places.items())]
    dev = subprocess.Popen(command, env=os.environ | own, process_group=0)  # Ctrl-C is for us: we end it
    try:
        yield dev, f"http://127.0.0.1:{port}"
    finally:
        dev.terminate()
        try:
            dev.wait(60)
        except subprocess.TimeoutExpired:
            dev.kill()
            dev.wait()


def _wait_until_ready(client: Client, dev: subprocess.Popen[bytes]) -> None:
    wanted = {"convert", "multi_role_tts", "analyse", "fetch"}
    until = time.monotonic() + STARTING
    while time.monotonic() < until and dev.poll() is None:
        with contextlib.suppress(Exception):  # broad: until it is there, anything may be wrong
            if wanted <= {each["name"] for each in client.pipelines()}:
                return
        time.sleep(KNOCK)
    raise Wrong("packhorse dev did not come up with all four apps.")


def _port(is_check: bool) -> int:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0 if is_check else PORT))
        except OSError:
            return _port(True)
        found: int = probe.getsockname()[1]
        return found


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _say(text: str) -> None:
    sys.stdout.write(f"four   │ {text}\n")
    sys.stdout.flush()


def _leave(*_: object) -> NoReturn:
    sys.exit(143)


if __name__ == "__main__":
    try:
        main()
    except Wrong as error:
        sys.exit(f"four   │ {error}")

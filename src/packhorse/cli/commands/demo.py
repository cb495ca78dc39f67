"""`make run`: a real server, worker and job, a kill -9 in the middle, and a result that is checked.

Stays up on a terminal until Ctrl-C. With CHECK=1, or where nobody looks, it ends after the check with exit code 0, or 1
and a sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil

from packhorse import ports
from packhorse.cli import demo_text, main
from packhorse.cli.__main__ import PARENT
from packhorse.cli.options import SAMPLE
from packhorse.cli.output import line
from packhorse.client import Client
from packhorse.errors import PackhorseError, PortTaken, Unreachable
from packhorse.settings import FOLDER

KEY = secrets.token_urlsafe(32)
"""Nothing of a demonstration is kept, its key neither."""
PORT = 3003
PACE, HURRIED = 1.0, 0.4
"""Seconds per section, to watch and to check: long enough to be killed in the middle of one."""
DONE_BEFORE_THE_KILL = 2
"""Sections whose work must not be done again."""
STARTING, FINISHING, ENDING = 30.0, 90.0, 30.0
KNOCK = 0.1


def demo() -> None:
    """Run a server, a worker and a job that survives a kill -9."""
    is_check = os.environ.get("CHECK") == "1"
    signal.signal(signal.SIGTERM, _leave)
    stays = not is_check and sys.stdin.isatty() and sys.stdout.isatty()
    with _folder(is_check) as folder, _dev(folder, _port(is_check)) as (dev, url), Client(url) as client:
        _wait_until_ready(client, dev)
        with tempfile.TemporaryDirectory() as scratch:
            job_id = _show(client, dev, Path(scratch), HURRIED if is_check else PACE)
        if not stays:
            return
        _say(f"look at it with: packhorse show {job_id} --url {url}")
        _say(f"packhorse goes on at {url}; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            dev.wait()


def _show(client: Client, dev: subprocess.Popen[bytes], scratch: Path, pace: float) -> str:
    """The id of the job that was shown and checked."""
    source = scratch / demo_text.NAME
    source.write_text(demo_text.text())
    job = client.submit("report", {"title": demo_text.TITLE, "pace": pace}, files={"text": source}, user="demo")
    job_id: str = job["job_id"]
    _say(f"submitted {source.name} with {demo_text.DAYS} sections as job {job_id}")
    _watch(client, job_id, dev)
    job = client.get(job_id)
    if job["status"] != "completed":
        raise PackhorseError(f"Job {job_id} is {job['status']}, not completed: {job['error']}.")
    if not job["retry_count"]:
        raise PackhorseError("The worker was killed, and yet nothing was tried again.")
    _say(f"completed in {job['duration_ms'] / 1000:.1f} s; sections were lost and done again: {job['retry_count']}")
    result = client.result(job_id, scratch)
    report = json.loads(result.read_text())
    _compare(report, demo_text.expected())
    files = ", ".join(each["name"] for each in client.artifacts(job_id))
    _say(f"{result.name} is what it should be: {report['words']} words, sha256 {report['source']['sha256'][:12]}…")
    _say(f"its files: {files}")
    return job_id


def _watch(client: Client, job_id: str, dev: subprocess.Popen[bytes]) -> None:
    """Follow the job to its end, and kill the worker as soon as some of its work is done and some is not."""
    until = time.monotonic() + FINISHING
    shown = -1
    killed_at: float | None = None
    is_back = False
    for event in client.events(job_id):
        if time.monotonic() > until:
            raise PackhorseError(f"Job {job_id} was not through after {FINISHING:.0f} s.")
        data = event["data"]
        if int(data.get("progress", 0) / 10) > shown:
            shown = int(data["progress"] / 10)
            _say(f"{data['progress']:3.0f} %")
        if killed_at is None and _done(data) >= DONE_BEFORE_THE_KILL:
            killed_at = _kill_worker(dev)
        elif killed_at is not None and not is_back and event["type"] == "stage_started":
            is_back = True
            _say(f"a new worker goes on with {data['stage']}, {time.monotonic() - killed_at:.1f} s after the kill")


def _done(data: dict[str, Any]) -> int:
    done: int = data.get("stages", {}).get("digest", {}).get("elements", {}).get("completed", 0)
    return done


def _kill_worker(dev: subprocess.Popen[bytes]) -> float:
    for process in psutil.Process(dev.pid).children():
        if "worker" in process.cmdline():
            _say(f"kill -9 {process.pid}: the worker, in the middle of it")
            process.kill()
    return time.monotonic()


def _compare(found: Any, expected: dict[str, Any]) -> None:
    for name in expected.keys() | found.keys():
        if found.get(name) != expected.get(name):
            raise PackhorseError(f"The result is wrong: {name} is {found.get(name)!r}, not {expected.get(name)!r}.")


@contextlib.contextmanager
def _folder(is_check: bool) -> Iterator[Path]:
    """Where it keeps its data: here, to be looked at; apart and for once if it is only a check."""
    if not is_check:
        yield Path.cwd() / FOLDER
        return
    with tempfile.TemporaryDirectory(prefix="packhorse-") as folder:
        yield Path(folder)


def _port(is_check: bool) -> int:
    if is_check:
        return ports.free()
    try:
        ports.require_free("127.0.0.1", PORT)
    except PortTaken:
        return ports.free()
    return PORT


@contextlib.contextmanager
def _dev(folder: Path, port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    places = {"store": f"sqlite://{folder}/packhorse.db", "blobs": f"file://{folder}/blobs"}
    places |= {"scratch": f"{folder}/scratch", "port": str(port)}
    dev = subprocess.Popen(
        [sys.executable, "-m", "packhorse.cli", "dev", SAMPLE, *(f"--{name}={at}" for name, at in places.items())],
        env=os.environ | {PARENT: str(os.getpid()), "PACKHORSE_HOST": "127.0.0.1", "PACKHORSE_SECRET_KEY": KEY},
        process_group=0,  # Ctrl-C is for us: we end it when we are through
    )
    try:
        yield dev, f"http://127.0.0.1:{port}"
    finally:
        dev.terminate()
        try:
            dev.wait(ENDING)
        except subprocess.TimeoutExpired:
            dev.kill()


def _wait_until_ready(client: Client, dev: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTING
    while time.monotonic() < until:
        if dev.poll() is not None:
            raise PackhorseError(f"packhorse dev ended with status {dev.returncode}.")
        with contextlib.suppress(Unreachable):
            if any(each["name"] == "report" for each in client.pipelines()):
                return
        time.sleep(KNOCK)
    raise PackhorseError(f"packhorse dev was not ready after {STARTING:.0f} s.")


def _say(text: str) -> None:
    line("demo", text)


def _leave(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main(["demo"])

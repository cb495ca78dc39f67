"""A job of the built-in sample survives a kill -9 of its worker, and its result is checked.

Run it with `python -m examples.worker_crash`. In a terminal it keeps running until Ctrl-C. With CHECK=1, or without a
terminal, it exits after the check: with code 0, or with code 1 and a message.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from examples import report_text
from examples.dev_server import DevServer, Wrong, data_folder, dev_server, is_check, run, say, stays
from packhorse import Client

PACE, FAST_PACE = 1.0, 0.4
"""Seconds per section: long enough to kill the worker while it works on one."""
DONE_BEFORE_THE_KILL = 2
"""Sections that must not run again."""
LIMIT = 90.0


def main() -> None:
    with (
        data_folder("report") as folder,
        dev_server(folder, "packhorse.sample") as server,
        Client(server.url) as client,
        tempfile.TemporaryDirectory() as scratch,
    ):
        server.wait_for(client, ["report"])
        job_id = carry_a_job(client, server, Path(scratch))
        if stays():
            say(f"see the job with: packhorse show {job_id} --url {server.url}")
            say(f"packhorse keeps running at {server.url}; press Ctrl-C to stop")
            server.stay()


def carry_a_job(client: Client, server: DevServer, scratch: Path) -> str:
    """Submit a job, kill its worker, check the result, and return the id of the job."""
    source = scratch / report_text.NAME
    source.write_text(report_text.text())
    params = {"title": report_text.TITLE, "pace": FAST_PACE if is_check() else PACE}
    job_id: str = client.submit("report", params, files={"text": source}, user="demo")["job_id"]
    say(f"submitted {source.name} with {report_text.DAYS} sections as job {job_id}")
    follow(client, job_id, server)
    job = client.get(job_id)
    if job["status"] != "completed":
        raise Wrong(f"Job {job_id} is {job['status']}, not completed: {job['error']}.")
    if not job["retry_count"]:
        raise Wrong("The worker was killed, but no section ran again.")
    say(f"completed in {job['duration_ms'] / 1000:.1f} s; sections that were lost and ran again: {job['retry_count']}")
    result = client.result(job_id, scratch)
    report = json.loads(result.read_text())
    compare(report, report_text.expected())
    say(f"{result.name} is correct: {report['words']} words, sha256 {report['source']['sha256'][:12]}…")
    say(f"its files: {', '.join(each['name'] for each in client.artifacts(job_id))}")
    return job_id


def follow(client: Client, job_id: str, server: DevServer) -> None:
    """Follow the job to its end, and kill the worker when some sections are done and some are not."""
    until = time.monotonic() + LIMIT
    tens = -1
    killed_at: float | None = None
    is_back = False
    for event in client.events(job_id):
        if time.monotonic() > until:
            raise Wrong(f"Job {job_id} took longer than {LIMIT:.0f} s.")
        data = event["data"]
        if int(data.get("progress", 0) / 10) > tens:
            tens = int(data["progress"] / 10)
            say(f"{data['progress']:3.0f} %")
        if killed_at is None and count_done(data) >= DONE_BEFORE_THE_KILL:
            say("killed the worker with kill -9, while the job runs")
            server.kill_workers()
            killed_at = time.monotonic()
        elif killed_at is not None and not is_back and event["type"] == "stage_started":
            is_back = True
            say(f"a new worker continues with {data['stage']}, {time.monotonic() - killed_at:.1f} s after the kill")


def count_done(data: dict[str, Any]) -> int:
    done: int = data.get("stages", {}).get("digest", {}).get("elements", {}).get("completed", 0)
    return done


def compare(found: Any, expected: dict[str, Any]) -> None:
    for name in expected.keys() | found.keys():
        if found.get(name) != expected.get(name):
            raise Wrong(f"The result is wrong: {name} is {found.get(name)!r}, not {expected.get(name)!r}.")


if __name__ == "__main__":
    run(main)

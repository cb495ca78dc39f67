"""A job in the words of its app's users: beside ours, and the same wherever a job is shown, on every store."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse.errors import InvalidInput
from tests.apps.places import PLACES, Stand, stand
from tests.http.processes import until
from tests.servers.web import Web, web_aside

APP = """
from pathlib import Path

from packhorse import App, Context, File, Params, each, needs

app = App("legacy", statuses={"pending": "created", "running": "processing", "completed": "success"})


class Make(Params):
    gate: str


make = app.pipeline("make", Make, outputs={"first_path": "first", "parts": "part", "value": "last"})


@make.stage
def first(ctx: Context, p: Make) -> list[File]:
    (ctx.scratch / "a.txt").write_text("a")
    return [File(ctx.scratch / "a.txt")]


@make.stage
def part(ctx: Context, p: Make, file: File = each(first)) -> File:
    Path(p.gate).read_bytes()  # a pipe: until somebody opens its other end
    return file


@make.stage
def last(ctx: Context, p: Make, files: list[File] = needs(first)) -> int:
    return len(files)


@app.job
def plain() -> int:
    return 1
"""
PLAIN = """
from packhorse import App

app = App("plain")


@app.job
def plain() -> int:
    return 1
"""
FOR_LONG = 90.0


@pytest.fixture(scope="module", params=PLACES)
def on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stand, Web]]:
    folder = tmp_path_factory.mktemp("aliases")
    (folder / "legacy.py").write_text(APP)
    settings = {"secret_key": "k" * 40, "outbound_allow": "127.0.0.0/8"}
    with web_aside() as web, stand(folder, str(folder / "legacy.py"), PLACES[request.param], **settings) as found:
        found.ready("make")
        yield found, web


def test_a_job_tells_the_words_of_its_users_wherever_it_is_shown(on: tuple[Stand, Web], tmp_path: Path) -> None:
    at, web = on
    at.client.add_webhook(f"{web.url}/hook")
    nothing = {"first_path": None, "parts": None, "value": None}
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    submitted = at.client.submit("make", {"gate": str(gate)}, user="ann")
    until(lambda: at.client.get(submitted["job_id"])["stages"]["part"]["status"] == "running", FOR_LONG)
    running = at.client.get(submitted["job_id"])
    until(lambda: is_let_through(gate), FOR_LONG)
    ended = at.client.wait(submitted["job_id"], FOR_LONG)

    assert (submitted["status"], submitted["alias"]) == ("pending", {"status": "created", "output": nothing})
    assert (running["status"], running["alias"]["status"]) == ("running", "processing")
    assert running["alias"]["output"] == {**nothing, "first_path": running["result_object_keys"]["first"]}
    keys = ended["result_object_keys"]
    alias = {"status": "success", "output": {"first_path": keys["first"], "parts": keys["part"], "value": None}}
    assert (ended["status"], ended["alias"], isinstance(keys["part"], list)) == ("completed", alias, True)
    assert [each["alias"] for each in at.client.list()["items"] if each["job_id"] == ended["job_id"]] == [alias]
    assert snapshot(at, ended["job_id"])["alias"] == alias
    assert command(at, "show", ended["job_id"], "--json")["alias"] == alias
    until(lambda: web.asked, FOR_LONG)
    told = next(asked.json for asked in web.asked)
    assert (told["type"], told["data"]["alias"]) == ("job.completed", alias)


def is_let_through(gate: Path) -> bool:
    """Whether somebody stood before it, and goes on now."""
    try:
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno == errno.ENXIO:  # nobody reads from it yet
            return False
        raise
    return True


def snapshot(at: Stand, job_id: str) -> dict[str, Any]:
    [found] = [event for event in at.client.events(job_id) if event["type"] == "snapshot"]
    data: dict[str, Any] = found["data"]
    return data


def command(at: Stand, *words: str) -> dict[str, Any]:
    asked = [sys.executable, "-m", "packhorse.cli", *words, "--url", at.server.url]
    said: dict[str, Any] = json.loads(subprocess.run(asked, capture_output=True, check=True, text=True).stdout)
    return said


def test_a_pipeline_says_what_its_users_call_things(on: tuple[Stand, Web]) -> None:
    at, _ = on

    pipelines = {each["name"]: each for each in at.client.pipelines()}

    words = {"pending": "created", "running": "processing", "completed": "success"}
    assert pipelines["make"]["statuses"] == pipelines["plain"]["statuses"] == words
    assert pipelines["make"]["outputs"] == {"first_path": "first", "parts": "part", "value": "last"}
    assert pipelines["plain"]["outputs"] == {}


def test_jobs_are_asked_for_by_our_words_and_by_the_apps(on: tuple[Stand, Web]) -> None:
    at, _ = on
    job = at.client.wait(at.client.submit("plain", {}, user="bob")["job_id"], FOR_LONG)

    by_ours = [each["job_id"] for each in at.client.list(user="bob", status="completed")["items"]]
    by_theirs = [each["job_id"] for each in at.client.list(user="bob", status="success")["items"]]
    counted = [at.client.count(user="bob", status=word)["count"] for word in ("success", "created")]
    commanded = [
        each["job_id"] for each in command(at, "jobs", "--user", "bob", "--status", "success", "--json")["items"]
    ]

    assert by_ours == by_theirs == commanded == [job["job_id"]]
    assert (job["alias"], counted) == ({"status": "success", "output": {}}, [1, 0])
    assert "<option selected>success</option>" in httpx2.get(f"{at.server.url}/jobs?status=success").text
    assert at.client.delete_jobs(user="bob", status="success")["count"] == 1


def test_a_word_that_no_app_has_is_refused_with_those_there_are(on: tuple[Stand, Web]) -> None:
    at, _ = on

    with pytest.raises(InvalidInput) as refused:
        at.client.list(status="done")

    words = "pending, running, completed, failed, cancelled, created, processing, success"
    assert refused.value.errors == [{"field": "status", "message": f"It must be one of {words}"}]


def test_an_app_that_speaks_as_we_do_has_no_alias(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    with stand(tmp_path, str(tmp_path / "plain.py"), PLACES["sqlite"]) as at:
        at.ready("plain")

        job = at.client.submit("plain", {}, user="bob")

    assert job["alias"] is None

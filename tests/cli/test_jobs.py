"""The commands about jobs, against a real server and a real worker."""

from __future__ import annotations

import io
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, cast

import pytest

from packhorse.cli import output
from packhorse.cli.commands import submit_lines
from packhorse.cli.commands.jobs import print_job
from packhorse.cli.commands.results import check_target
from packhorse.cli.follow import Lines, follow_job, message, report_end
from packhorse.client import Client, Json
from tests.cli.conftest import Tell
from tests.cli.house import LONGEST, Dev, until


@pytest.fixture
def ask(tell: Tell, shared: Dev, monkeypatch: pytest.MonkeyPatch) -> Tell:
    monkeypatch.setenv("PACKHORSE_URL", shared.url)
    return tell


def made(ask: Tell, *arguments: str) -> str:
    """The id of a job."""
    return ask("submit", *arguments).out.strip()


def test_a_submitted_job_is_named_on_the_standard_output(ask: Tell, shared: Dev) -> None:
    said = ask("submit", "greet", "name=ann", "--user", "ann", "--priority", "3")

    job_id = said.out.strip()
    job = shared.client.get(job_id)
    assert said.code == 0
    assert (job["user_id"], job["priority"], job["parameters"]["name"]) == ("ann", 3, "ann")
    assert said.last_line == f"Follow it with: packhorse show {job_id} --follow"


LINES = b"""
{"parameters": {"name": "ann"}, "priority": 5}
{"parameters": {"name": 7}}
{"parameters":
{"parameters": {"name": "ben"}, "user_id": "ben", "idempotency_key": "lines"}
[]
{"parameters": {"name": "ben"}, "user_id": "ben", "idempotency_key": "lines"}
"""


@pytest.mark.parametrize("is_piped", [False, True])
def test_a_file_of_lines_is_many_jobs(ask: Tell, shared: Dev, monkeypatch: pytest.MonkeyPatch, is_piped: bool) -> None:
    Path("jobs.jsonl").write_bytes(LINES)
    monkeypatch.setattr(submit_lines, "MOST_ITEMS", 2)  # several batches
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINES)))

    said = ask("submit", "greet", "--lines", "-" if is_piped else "jobs.jsonl", "--user", "eve", "--priority", "1")

    ann, ben, again = (shared.client.get(job_id) for job_id in said.out.split())
    assert [(job["user_id"], job["priority"]) for job in (ann, ben)] == [("eve", 5), ("ben", 1)]
    assert ben["job_id"] == again["job_id"]
    assert [line.partition(":")[0] for line in said.err.splitlines()] == [
        "line 3", "line 4", "line 6", "3 accepted, 3 rejected",
    ]  # fmt: skip
    assert said.code == 3


def test_lines_are_told_as_json_and_all_accepted_is_success(ask: Tell) -> None:
    Path("jobs.jsonl").write_bytes(b'{"parameters": {"name": "ann"}}\n' * 3)

    said = ask("submit", "greet", "--lines", "jobs.jsonl", "--json")

    found = [json.loads(line) for line in said.out.splitlines()]
    assert (said.code, [each["line"] for each in found]) == (0, [1, 2, 3])
    assert {each["job"]["pipeline"] for each in found} == {"greet"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--lines", "none.jsonl"], 3), (["name=ann", "--lines", "-"], 2), (["--lines", "-", "--wait"], 2)],
)
def test_lines_that_cannot_be_read_or_are_mixed_with_one_job_are_refused(
    ask: Tell, arguments: list[str], code: int
) -> None:
    said = ask("submit", "greet", *arguments)

    assert (said.code, said.out) == (code, "")


def test_values_are_what_the_schema_says(ask: Tell) -> None:
    said = ask("submit", "greet", "name=12", "tags=a", "tags=2", "loud=true", "--wait", "--json")

    assert said.code == 0
    assert said.json["result"] == {"hello": "12", "tags": ["a", "2"], "loud": True, "version": "one"}


def test_files_go_in_and_the_result_comes_out(ask: Tell, shared: Dev) -> None:
    Path("a.txt").write_text("first")
    Path("b.txt").write_text("second")

    said = shared.ask(
        "submit", "copy", f"files=@{Path('a.txt').absolute()}", f"files=@{Path('b.txt').absolute()}", "times=2",
        "shout=true", "--output", str(Path("out.txt").absolute()),
    )  # fmt: skip

    assert said.code == 0
    assert Path("out.txt").read_text() == "FIRST\nSECOND\nFIRST\nSECOND"
    assert said.out.strip() == str(Path("out.txt").absolute())
    stages = [line for line in said.err.splitlines() if line.startswith(("read", "change", "write"))]
    assert [line.split(" in ")[0] for line in stages] == ["read completed", "change completed", "write completed"]
    assert stages[1].endswith(": 2 of 2 elements")
    assert "packhorse result" not in said.err  # it is here already


def test_a_folder_that_is_not_there_is_made_for_the_result(ask: Tell, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first")

    waited = ask("submit", "copy", "files=@a.txt", "--output", "new/folder/")
    job_id = ask("jobs", "--pipeline", "copy", "--limit", "1", "--json").json["items"][0]["job_id"]
    fetched = ask("result", job_id, "--output", "other/")

    assert (waited.code, fetched.code) == (0, 0)
    assert (tmp_path / "new" / "folder" / "a-copy.txt").read_text() == "first"
    assert (tmp_path / "other" / "a-copy.txt").read_text() == "first"


def test_a_folder_that_cannot_be_made_is_refused_before_the_job_is(ask: Tell, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first")

    said = ask("submit", "copy", "files=@a.txt", "--output", "a.txt/", "--user", "folderless")

    assert said.code == 3
    assert "Cannot write to a.txt/" in said.err
    assert ask("jobs", "--user", "folderless", "--json").json["items"] == []


def test_a_place_that_cannot_be_written_to_is_refused_before_the_job_is(ask: Tell) -> None:
    said = ask("submit", "greet", "name=ann", "--output", "/proc/value.json", "--user", "placeless")

    assert said.code == 3
    assert "Cannot write to /proc/value.json" in said.err
    assert ask("jobs", "--user", "placeless", "--json").json["items"] == []


def test_a_result_that_cannot_be_written_is_told_without_a_trace(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    job_id = made(ask, "greet", "name=ann")
    shared.client.wait(job_id, LONGEST)

    said = ask("result", job_id, "--output", "/proc/value.json")

    assert (said.code, said.out) == (3, "")
    assert "Cannot write to /proc/value.json" in said.err
    assert "Traceback" not in said.err


def test_trying_a_place_leaves_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("as it was")

    found = [check_target(f"{tmp_path}/{name}") for name in ("new.txt", "old.txt", "folder/")]

    assert [path.name for path in found] == ["new.txt", "old.txt", "folder"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "old.txt"]
    assert (tmp_path / "old.txt").read_text() == "as it was"


def test_an_error_of_no_stage_is_said_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": "DEADLINE", "message": "The job did not end before its deadline.", "stage": None}

    code = report_end({"job_id": "J", "status": "failed", "error": error})

    assert code == 1
    assert "Job J failed: DEADLINE: The job did not end" in capsys.readouterr().err


class Retried:
    """A client whose job fails, and is retried by somebody before it can be looked at."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def events(self, _job_id: str, after: int = 0) -> Iterator[Json]:
        self.asked.append(after)
        yield {"n": None, "type": "snapshot", "data": {}}
        yield {"n": after + 4, "type": "completed" if after else "failed", "data": {}}

    def get(self, _job_id: str) -> Json:
        return {"job_id": "J", "status": "running" if len(self.asked) == 1 else "completed", "error": None}


def test_a_job_that_is_retried_while_it_is_followed_is_followed_on() -> None:
    client = Retried()

    job = follow_job(cast(Client, client), "J")

    assert job is not None
    assert job["status"] == "completed"
    assert client.asked == [0, 4]


class Wide:
    """A client with one failed job, of which a stage has 200 elements."""

    stage: ClassVar[Json] = {
        "status": "completed",
        "progress": 100.0,
        "attempt": 1,
        "message": None,
        "started_at": None,
        "completed_at": None,
    }
    elements: ClassVar[Json] = {"total": 200, "completed": 200, "failed": 0, "running": 0, "skipped": 0}

    def get(self, _job_id: str) -> Json:
        times = dict.fromkeys(("not_before", "started_at", "completed_at", "expires_at", "duration_ms"))
        skipped = {**self.stage, "status": "skipped", "progress": 0.0, "attempt": 0, "reason": "stage page failed"}
        return {
            "job_id": "J", "pipeline": "book", "user_id": "ann", "status": "failed", "stopping": None, "run": 1,
            "progress": 90.0, "partial": None, "result": None,
            "parameters": {}, "created_at": "2026-01-01T20:00:00.000000Z", **times,
            "error": {"code": "EXCEPTION", "message": "It broke.", "stage": "page", "element": 7},
            "stages": {"page": {**self.stage, "elements": self.elements}, "bind": skipped},
        }  # fmt: skip

    def artifacts(self, _job_id: str) -> list[Json]:
        return [{"name": f"page/{n}/page.png", "size_bytes": 1024} for n in range(200)]

    def metrics(self, _job_id: str) -> list[Json]:
        return [{"stage": "page", "element": n, "peak_cpu": 0.5, "peak_memory_bytes": 2**20} for n in range(200)]


def test_a_job_of_many_elements_is_shown_on_one_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "XXX-9")
    time.tzset()
    output.out.cache_clear()
    try:
        print_job(cast(Client, Wide()), "J")
    finally:
        monkeypatch.undo()
        time.tzset()
        output.out.cache_clear()

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 20
    assert [line.split() for line in lines[:2]] == [
        ["Status", "failed"],
        ["Error", "page[7]:", "EXCEPTION:", "It", "broke."],
    ]
    assert "Created   2026-01-02 05:00:00" in lines
    [page, bind] = [line.split() for line in lines if line.startswith(("page ", "bind "))]
    assert " ".join(page) == "page completed 100 % 1 200 (200 KiB) 50 % 1.0 MiB 200 of 200"
    assert " ".join(bind) == "bind not started 0 % not started: stage page failed"
    assert not any("_at" in line or "job_id" in line for line in lines)


def test_a_result_is_shown_with_the_names_of_its_files_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    file = dict.fromkeys(("name", "filename", "size_bytes", "sha256", "content_type", "object_key"), "cat.png")

    class Done(Wide):
        def get(self, job_id: str) -> Json:
            done = {"status": "completed", "error": None, "result": {"cover": file, "pages": ["x" * 90] * 200}}
            return {**super().get(job_id), **done}

    output.out.cache_clear()
    print_job(cast(Client, Done()), "J")

    second = capsys.readouterr().out.splitlines()[1]
    assert second.startswith('Result    {"cover":"cat.png","pages":["xxx')
    assert second.endswith("… (all of it: packhorse result J)")
    assert len(second) < 1100


def test_each_stage_has_one_line_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    def stage(status: str, **facts: object) -> Json:
        times = {"started_at": "2026-01-01T20:00:02.000000Z", "completed_at": "2026-01-01T20:00:05.000000Z"}
        return {"status": status, "progress": 0.0, "attempt": 1, **times, **facts}

    def event(type: str, **data: object) -> Json:
        return {"n": None, "type": type, "data": data}

    lines = Lines()
    output.err.cache_clear()
    counts = {"total": 200, "completed": 199, "failed": 1}
    lines.tell(event("snapshot", run=1, stages={"split": stage("running"), "page": stage("pending")}))
    lines.tell(event("stage_started", stage="split", at="2026-01-01T20:00:00.000000Z"))
    lines.tell(event("stage_started", stage="split", at="2026-01-01T20:00:02.000000Z"))  # the second attempt
    lines.tell(event("progress", stages={"split": stage("completed", attempt=2)}))
    lines.tell(event("stage_completed", stage="page", element=0, at="2026-01-01T20:00:04.000000Z"))
    ended = {"page": stage("failed", elements=counts), "bind": stage("skipped", reason="stage page failed")}
    lines.tell(event("snapshot", run=1, stages={"split": stage("completed"), **ended}))

    assert capsys.readouterr().err.splitlines() == [
        "split completed in 5 s: 2 attempts",
        "page failed in 3 s: 199 of 200 elements, 1 failed",
        "bind not started: stage page failed",
    ]


def test_the_facts_of_a_stage_are_separated() -> None:
    elements = {"total": 3, "completed": 1, "skipped": 2}

    said = message({"status": "cancelled", "elements": elements, "message": "page 2", "reason": "stage scan failed"})

    assert said == "1 of 3, page 2, 2 not started: stage scan failed"


def test_the_current_run_is_followed_and_not_the_ones_before(ask: Tell, shared: Dev) -> None:
    job_id = made(ask, "fail", "why=twice")
    shared.client.wait(job_id, LONGEST)
    ask("retry", job_id)
    shared.client.wait(job_id, LONGEST)

    said = ask("show", job_id, "--follow", "--json")

    events = [json.loads(line) for line in said.out.splitlines()]
    numbered = [each["type"] for each in events if each["n"]]
    assert numbered == ["retrying", "started", "stage_started", "stage_failed", "failed"]
    assert [each["data"]["text"] for each in events if each["type"] == "log"].count("about to fail") == 1


def test_an_error_is_json_for_who_asked_for_json(ask: Tell) -> None:
    refused = ask("submit", "greet", "naem=ann", "--json")
    misused = ask("jobs", "--limit", "many", "--json")

    error = json.loads(refused.err)["error"]
    assert (refused.code, refused.out, misused.code) == (3, "", 2)
    assert error.keys() == {"type", "title", "detail", "hint", "errors"}
    assert (error["type"], error["title"]) == ("invalid-input", "Invalid input")
    assert {each["field"] for each in error["errors"]} == {"naem", "name"}
    assert json.loads(misused.err)["error"]["type"] == "usage"


def test_a_field_that_is_wrong_is_named_once(ask: Tell) -> None:
    said = ask("submit", "greet", "name=ann", "--priority", "5000")

    assert said.code == 3
    assert said.err.count("priority") == 1
    assert said.err.strip().endswith("priority: it must be a whole number, from -1000 to 1000, not 5000")


def test_a_url_may_be_written_without_its_scheme(tell: Tell, shared: Dev) -> None:
    said = tell("pipelines", "--url", f"localhost:{shared.port}", "--json")

    assert said.code == 0
    assert said.json["items"] == shared.client.pipelines()


def test_a_failed_job_exits_1_with_its_reason_and_what_to_do(ask: Tell) -> None:
    said = ask("submit", "fail", "why=because", "--wait")

    assert said.code == 1
    assert "failed in fail: ASKED_FOR: because" in said.err
    assert "packhorse retry" in said.last_line


def test_a_cancelled_job_exits_4(ask: Tell, tmp_path: Path) -> None:
    job_id = made(ask, "wait", f"flag={tmp_path}/never")
    until((tmp_path / "never.awaited").exists)

    cancelled = ask("cancel", job_id)
    said = ask("show", job_id, "--follow")

    assert cancelled.code == 0
    assert f"Job {job_id} is " in cancelled.out
    assert said.code == 4
    assert f"packhorse retry {job_id}" in said.last_line


def test_the_same_key_gives_the_same_job(ask: Tell) -> None:
    first = made(ask, "greet", "name=ann", "--key", "k1")
    second = made(ask, "greet", "name=ann", "--key", "k1")
    other = ask("submit", "greet", "name=bob", "--key", "k1")

    assert first == second
    assert other.code == 3
    assert other.last_line.startswith("Use a new key")


def test_a_delayed_job_waits(ask: Tell, shared: Dev) -> None:
    job_id = made(ask, "greet", "name=ann", "--delay", "1h")

    job = shared.client.get(job_id)

    assert job["status"] == "pending"
    assert job["not_before"] is not None


def test_a_job_that_waits_says_for_what(ask: Tell) -> None:
    job_id = made(ask, "greet", "name=ann", "--delay", "1h")

    shown = ask("show", job_id)

    assert re.search("^Waiting +greet is not due before ", shown.out, re.MULTILINE)


def test_a_job_that_ran_a_while_is_shown_with_what_it_used(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    job_id = made(ask, "wait", f"flag={tmp_path}/flag")
    until(lambda: shared.client.metrics(job_id))

    shown = ask("show", job_id)
    (tmp_path / "flag").touch()

    assert shared.client.wait(job_id, LONGEST)["status"] == "completed"
    assert "peak memory" in shown.out
    assert " MiB" in shown.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["greet"], "name"),
        (["greet", "name=a", "naem=b"], "naem"),
        (["copy", "times=many"], "times"),
        (["greet", "name=a", "name=b"], "name takes one value, but was given 2 times"),
        (["copy", "files=@nowhere.txt"], "There is no file nowhere.txt"),
        (["nope"], "There is no pipeline named 'nope'. Pipelines: chatter, copy, fail, greet, halfway, unlock, wait."),
        (
            ["greet", "name=@nowhere.txt"],
            "There is no file nowhere.txt. To send the text itself, write name=@@nowhere.txt",
        ),
    ],
)
def test_what_the_server_would_not_take_is_refused_with_exit_3(ask: Tell, arguments: list[str], sentence: str) -> None:
    said = ask("submit", *arguments)

    assert (said.code, said.out) == (3, "")
    assert sentence in said.err


def test_an_unknown_job_is_refused_with_the_way_to_the_known_ones(ask: Tell) -> None:
    for command in ("show", "logs", "cancel", "retry", "result", "artifacts"):
        said = ask(command, "01a1de8a-dac9-7252-af02-b5b5a003b862")

        assert (said.code, said.out) == (3, "")
        assert said.last_line == "List the jobs with: packhorse jobs"


def test_jobs_are_listed_by_what_was_asked_for(ask: Tell) -> None:
    job_id = made(ask, "fail", "why=listed", "--user", "lister", "--wait")
    assert job_id == ""  # a failed job has no result to name

    page = ask("jobs", "--user", "lister", "--status", "failed", "--pipeline", "fail", "--json").json
    shown = ask("jobs", "--user", "lister")
    none = ask("jobs", "--user", "nobody")

    [job] = page["items"]
    assert (job["status"], job["user_id"], job["pipeline"]) == ("failed", "lister", "fail")
    assert job["job_id"] in shown.out
    assert "No jobs found" in none.err


def test_a_limit_leaves_a_way_to_the_rest(ask: Tell) -> None:
    for _ in range(2):
        made(ask, "greet", "name=ann")

    page = ask("jobs", "--limit", "1", "--json").json

    assert len(page["items"]) == 1
    assert page["next"]


def test_a_job_is_shown_with_its_stages_and_its_json_is_the_apis_own(ask: Tell, shared: Dev) -> None:
    job = ask("submit", "greet", "name=ann", "--wait", "--json").json

    shown = ask("show", job["job_id"])
    as_json = ask("show", job["job_id"], "--json").json

    assert as_json == shared.client.get(job["job_id"])
    assert "completed" in shown.out
    assert "greet" in shown.out
    assert '"hello":"ann"' in shown.out


def test_following_as_json_is_a_document_per_event(ask: Tell) -> None:
    job_id = made(ask, "greet", "name=ann")

    said = ask("show", job_id, "--follow", "--json")

    events = [json.loads(line) for line in said.out.splitlines()]
    assert said.code == 0
    assert events[0]["type"] == "snapshot"
    assert next(each["type"] for each in events if each["n"]) == "submitted"
    assert events[-1]["type"] == "completed"


def test_logs_are_what_the_stages_printed(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first")
    job_id = made(ask, "copy", "files=@a.txt")

    followed = ask("logs", job_id, "-f", "--json")
    plain = ask("logs", job_id)
    of_stage = ask("logs", job_id, "--stage", "change")
    tail = ask("logs", job_id, "--tail", "1")

    texts = [json.loads(line)["text"] for line in followed.out.splitlines()]
    assert texts == ["reading 1 files", "changing first"]
    assert plain.out.splitlines() == ["read   │ reading 1 files", "change[0] │ changing first"]
    assert "changing first" in of_stage.out
    assert "reading" not in of_stage.out
    assert tail.out.splitlines() == ["change[0] │ changing first"]


def test_lines_are_printed_as_they_looked(ask: Tell, shared: Dev) -> None:
    job_id = made(ask, "chatter", "long=100000")
    shared.client.wait(job_id, LONGEST)

    said = ask("logs", job_id)

    lines = [line.partition("│ ")[2] for line in said.out.splitlines()]
    assert lines[:2] == ["from windows", "100 %"]
    assert "".join(lines[2:-1]) == "x" * 100_000
    assert "" not in lines
    assert lines[-1] == "the end"


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_a_stage_there_is_not_is_answered_with_those_there_are(ask: Tell, tmp_path: Path, follow: list[str]) -> None:
    (tmp_path / "a.txt").write_text("first")
    job_id = made(ask, "copy", "files=@a.txt")

    said = ask("logs", job_id, "--stage", "nope", *follow)

    assert (said.code, said.out) == (2, "")
    assert "There is no stage 'nope'. Stages of this job: read, change, write." in said.err


def test_a_job_cancelled_while_it_ran_is_shown_with_what_it_had_reached(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    job_id = made(ask, "halfway", f"flag={tmp_path}/never")
    until(lambda: shared.client.get(job_id)["stages"]["halfway"]["progress"] == 50.0)
    ask("cancel", job_id)
    shared.client.wait(job_id, LONGEST)

    shown = ask("show", job_id)

    stage = shared.client.get(job_id)["stages"]["halfway"]
    assert (stage["status"], stage["attempt"], stage["progress"]) == ("cancelled", 1, 50.0)
    [row] = [line.split() for line in shown.out.splitlines() if line.startswith("halfway ")]
    assert row[:5] == ["halfway", "cancelled", "50", "%", "1"]


def test_a_job_is_shown_with_its_parameters_and_its_files_counted(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    (tmp_path / "flag").touch()
    job_id = made(ask, "halfway", f"flag={tmp_path}/flag")
    shared.client.wait(job_id, LONGEST)

    shown = ask("show", job_id)

    assert f'Parameters  {{"flag":"{tmp_path}/flag"}}' in shown.out
    [row] = [line.split() for line in shown.out.splitlines() if line.startswith("halfway ")]
    assert row[:8] == ["halfway", "completed", "100", "%", "1", "1", "(4", "B)"]
    assert shown.last_line == f"List the files with: packhorse artifacts {job_id}"


def test_artifacts_are_listed_and_fetched_by_name(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    (tmp_path / "flag").touch()
    job_id = made(ask, "halfway", f"flag={tmp_path}/flag")
    shared.client.wait(job_id, LONGEST)

    listed = ask("artifacts", job_id)
    as_json = ask("artifacts", job_id, "--json").json
    fetched = ask("artifacts", job_id, "halfway/notes/first.txt", "--output", "mine.txt")
    into = ask("artifacts", job_id, "halfway/notes/first.txt", "--output", "folder/", "--json")
    nowhere = ask("artifacts", job_id, "halfway/nope.txt")

    assert "halfway/notes/first.txt  4 bytes  text/plain" in listed.out
    assert as_json == {"items": shared.client.artifacts(job_id), "next": None}
    assert (fetched.out.strip(), (tmp_path / "mine.txt").read_text()) == ("mine.txt", "half")
    assert into.json == {"path": "folder/first.txt"}
    assert (nowhere.code, "has no artifact 'halfway/nope.txt'" in nowhere.err) == (3, True)


def test_a_job_that_has_made_nothing_says_so(ask: Tell) -> None:
    said = ask("artifacts", made(ask, "greet", "name=ann", "--delay", "1h"))

    assert (said.code, said.out) == (0, "")
    assert said.last_line == "The job has no files."


def test_a_text_may_be_in_a_file(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    (tmp_path / "name.txt").write_text("ann")

    job = ask("submit", "greet", "name=@name.txt", "tags=@@bob", "--json").json

    assert job["parameters"] == {"name": "ann", "tags": ["@bob"]}


def test_a_failed_job_is_retried(ask: Tell, shared: Dev) -> None:
    job_id = ask("submit", "fail", "why=once more", "--json").json["job_id"]
    shared.client.wait(job_id, LONGEST)

    said = ask("retry", job_id, "--json")

    assert said.code == 0
    assert said.json["run"] == 2


def test_an_active_job_is_not_retried_and_that_is_said(ask: Tell) -> None:
    job_id = made(ask, "greet", "name=ann", "--delay", "1h")

    said = ask("retry", job_id)

    assert said.code == 0
    assert f"Job {job_id} is pending." in said.out
    assert said.last_line == "The job is already active: nothing was changed."


def test_a_completed_job_cannot_be_cancelled(ask: Tell, shared: Dev) -> None:
    job_id = made(ask, "greet", "name=ann")
    shared.client.wait(job_id, LONGEST)

    said = ask("cancel", job_id)

    assert said.code == 3
    assert "completed" in said.err


def test_an_ended_job_can_be_deleted_and_an_active_one_cannot(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    ended, active = made(ask, "greet", "name=ann"), made(ask, "wait", f"flag={tmp_path}/never")
    shared.client.wait(ended, LONGEST)

    said = [ask("delete", each) for each in (ended, ended, active)]
    ask("cancel", active)

    assert [each.code for each in said] == [0, 3, 3]
    assert said[0].out.strip() == f"Job {ended} is deleted."
    assert "There is no job" in said[1].err
    assert "Cancel it first" in said[2].err
    assert ask("show", ended).code == 3


def test_a_queue_is_paused_and_resumed(ask: Tell) -> None:
    job_id = made(ask, "greet", "name=ann", "--delay", "1h")

    paused = ask("pause", "default", "--reason", "a test")
    listed, shown = ask("queues"), ask("show", job_id)
    resumed = ask("resume", "default")
    ask("cancel", job_id)

    assert [each.out.strip() for each in (paused, resumed)] == ["Queue default is paused.", "Queue default is active."]
    assert "by local at" in listed.out
    assert "a test" in listed.out
    assert "was paused by local" in shown.out
    assert ask("pause", "nope").code == 3


def test_a_result_without_files_is_printed_or_written(ask: Tell, shared: Dev, tmp_path: Path) -> None:
    job_id = made(ask, "greet", "name=ann")
    shared.client.wait(job_id, LONGEST)

    printed = ask("result", job_id)
    written = ask("result", job_id, "--output", "value.json")

    assert printed.json["hello"] == "ann"
    assert json.loads((tmp_path / "value.json").read_text()) == printed.json
    assert (written.code, written.out) == (0, "")


def test_a_result_that_is_not_there_yet_is_refused(ask: Tell) -> None:
    job_id = made(ask, "greet", "name=ann", "--delay", "1h")

    said = ask("result", job_id)

    assert said.code == 3
    assert said.last_line == f"Check its progress with: packhorse show {job_id}"


def test_pipelines_are_listed_with_their_parameters(ask: Tell, shared: Dev) -> None:
    shown = ask("pipelines")
    as_json = ask("pipelines", "--json").json

    assert re.search(r"running +files \[times\] \[shout\]", shown.out)
    assert "Says hello." in shown.out
    assert as_json["items"] == shared.client.pipelines()


def test_ctrl_c_leaves_the_job_alone_and_says_how_to_come_back(shared: Dev, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    process = shared.start("submit", "wait", f"flag={flag}", "--wait", "--user", "ctrl-c", "--url", shared.url)
    [job] = until(lambda: shared.client.list(user="ctrl-c")["items"])
    until(lambda: shared.said(f"Submitted job {job['job_id']}."))

    process.send_signal(signal.SIGINT)
    code = process.wait(LONGEST)

    assert code == 130
    assert shared.said(f"The job continues. Follow it again with: packhorse show {job['job_id']} --follow")
    flag.touch()
    assert shared.client.wait(job["job_id"], LONGEST)["status"] == "completed"


def test_the_earliest_start_is_shown_until_the_job_has_started(ask: Tell, shared: Dev) -> None:
    later = shared.client.submit("greet", {"name": "ann"}, delay=3600)["job_id"]
    done = shared.client.submit("greet", {"name": "ann"}, wait=30)["job_id"]
    shared.client.retry(done, "*")
    shared.client.wait(done, LONGEST)

    waiting, retried = ask("show", later), ask("show", done)
    shared.client.cancel(later)

    assert "Not before" in waiting.out
    assert "Run         2" in retried.out
    assert "Not before" not in retried.out


def test_it_is_explained_why_a_job_does_not_run(ask: Tell, shared: Dev) -> None:
    later = shared.client.submit("greet", {"name": "ann"}, delay=3600)["job_id"]
    done = shared.client.submit("greet", {"name": "ann"}, wait=30)["job_id"]

    waiting, document = ask("explain", later), ask("explain", later, "--json").json
    ended = ask("explain", done)
    shared.client.cancel(later)

    assert waiting.out.startswith("NOT_BEFORE: greet is not due before ")
    assert [each["code"] for each in document["reasons"]] == ["NOT_BEFORE"]
    assert ended.out.startswith("ENDED: the job has completed.")

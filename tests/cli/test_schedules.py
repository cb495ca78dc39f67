"""`packhorse schedules` against a real server and a real worker."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Tell
from tests.cli.house import Dev, until


@pytest.fixture
def ask(tell: Tell, shared: Dev, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """The schedules of one test are named apart from those of the others."""
    monkeypatch.setenv("PACKHORSE_URL", shared.url)
    return tell


def test_a_schedule_is_made_edited_and_shown(ask: Tell) -> None:
    made = ask("schedules", "put", "made", "greet", "name=Ann", "--cron", "30 2 * * *", "--zone", "Europe/Berlin")
    edited = ask(
        "schedules", "put", "made", "--cron", "0 4 * * *", "--label", "team=edge", "--reason", "later", "--json"
    )
    shown = ask("schedules", "show", "made")
    listed = ask("schedules", "list")

    assert made.code == 0, made.err
    assert (edited.json["version"], edited.json["cron"], edited.json["zone"]) == (2, "0 4 * * *", "Europe/Berlin")
    assert (edited.json["parameters"], edited.json["labels"]) == ({"name": "Ann"}, {"team": "edge"})
    assert "0 4 * * * (Europe/Berlin)" in shown.out
    assert "made" in listed.out
    assert edited.json in ask("schedules", "--json").json["items"]


@pytest.mark.parametrize(
    "words",
    [["greet", "name=Ann"], ["--pipeline", "greet", "name=Ann"], ["name=Ann", "--pipeline", "greet"]],
    ids=["behind the id", "option first", "option last"],
)
def test_its_pipeline_is_named_as_for_a_submit_or_by_an_option(ask: Tell, words: list[str]) -> None:
    made = ask("schedules", "put", "named", *words, "--cron", "30 2 * * *", "--json")

    assert made.code == 0, made.err
    assert (made.json["pipeline"], made.json["parameters"]) == ("greet", {"name": "Ann"})


def test_a_word_that_is_no_parameter_is_told_with_the_help_of_this_command(ask: Tell) -> None:
    said = ask("schedules", "put", "twice", "greet", "--pipeline", "greet", "--cron", "30 2 * * *")

    assert said.code == 2
    assert "'greet' is not NAME=VALUE" in said.err
    assert said.last_line == "Usage: packhorse schedules put --help"


def test_its_versions_are_listed_compared_and_rolled_back_to(ask: Tell) -> None:
    ask("schedules", "put", "told", "greet", "name=Ann", "--cron", "30 2 * * *", "--reason", "first")
    edited = ask("schedules", "put", "told", "name=Ben", "--reason", "second")

    history = ask("schedules", "history", "told")
    diff = ask("schedules", "diff", "told", "1", "2")
    back = ask("schedules", "rollback", "told", "1", "--reason", "as it was")

    assert edited.code == 0, edited.err
    assert "first" in history.out
    assert "parameters.name: Ann -> Ben" in history.out
    assert ["parameters.name", "Ann", "Ben"] in [line.split() for line in diff.out.splitlines()]
    assert "at version 3" in back.out
    assert ask("schedules", "show", "told", "--json").json["parameters"] == {"name": "Ann"}


def test_an_edit_of_a_version_that_is_over_is_refused(ask: Tell) -> None:
    ask("schedules", "put", "stale", "greet", "name=Ann", "--cron", "30 2 * * *")
    ask("schedules", "put", "stale", "--cron", "30 3 * * *")

    said = ask("schedules", "put", "stale", "--cron", "30 5 * * *", "--version", "1")

    assert said.code == 3
    assert "it is now at version 2" in said.err
    assert ask("schedules", "show", "stale", "--json").json["cron"] == "30 3 * * *"


def test_it_is_paused_resumed_run_and_deleted(ask: Tell, shared: Dev) -> None:
    ask("schedules", "put", "paused", "greet", "name=Ann", "--cron", "30 2 1 1 *")
    paused = ask("schedules", "pause", "paused", "--reason", "holiday")
    ran = ask("schedules", "run", "paused", "--json")
    until(lambda: shared.client.schedule_runs("paused")["items"][0]["status"] == "completed")
    runs = ask("schedules", "runs", "paused")
    resumed = ask("schedules", "resume", "paused")
    gone = ask("schedules", "delete", "paused")

    assert "is paused, at version 2" in paused.out
    assert ran.json["manual"]
    assert "completed" in runs.out
    assert "is active, at version 3" in resumed.out
    assert "is deleted" in gone.out
    listed = ask("schedules", "--json").json["items"]
    assert "paused" not in [each["schedule_id"] for each in listed]


def test_what_code_declares_is_told_apart_and_reset(ask: Tell) -> None:
    ask("schedules", "put", "declared", "--cron", "0 5 * * *")

    adrift = ask("schedules", "show", "declared")
    reset = ask("schedules", "reset", "declared")

    assert "drift cron" in adrift.out
    assert (
        "differs from the code" in ask("schedules", "history", "declared").out or "0 3 * * * -> 0 5 * * *" in adrift.out
    )
    assert "is paused" in reset.out
    assert ask("schedules", "show", "declared", "--json").json["cron"] == "0 3 * * *"


def test_a_token_runs_a_schedule_for_another_system(ask: Tell) -> None:
    ask("schedules", "put", "by-token", "greet", "name=Ann", "--cron", "0 0 1 1 *")

    wrong = ask("schedules", "token", "by-token", "--expires", "soon")
    made = ask("schedules", "token", "by-token", "--expires", "1h")

    assert (wrong.code, wrong.last_line) == (2, "Usage: packhorse schedules token --help")
    assert "is not a duration" in wrong.err
    assert made.code == 0
    assert made.out.startswith("POST /api/v1/schedules/by-token/trigger?token=")


def test_a_preview_shows_the_local_times(ask: Tell) -> None:
    said = ask("schedules", "preview", "30 2 * * *", "--zone", "Europe/Berlin")

    assert said.code == 0
    assert len([line for line in said.out.splitlines() if "T02:30:00" in line or "T03:00:00" in line]) >= 10


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["show", "unknown"], 3, "There is no schedule unknown"),
        (["put", "new", "greet", "name=x"], 3, "needs a pipeline and --cron"),
        (["put", "new", "greet", "name=x", "--cron", "0 0 31 2 *"], 3, "cron"),
        (["put", "new", "greet", "nome=x", "--cron", "0 0 1 1 *"], 3, "nome"),
        (["put", "new", "greet", "name=x", "--cron", "0 0 1 1 *", "--label", "x"], 3, "NAME=VALUE"),
        (["put", " ", "greet"], 2, "empty"),
        (["preview", "x"], 3, "Invalid cron expression"),
        (["diff", "unknown", "1", "2"], 3, "There is no schedule"),
    ],
)
def test_what_cannot_be_is_said(ask: Tell, arguments: list[str], code: int, sentence: str) -> None:
    said = ask("schedules", *arguments)

    assert said.code == code, said.err
    assert sentence in said.err


def test_the_line_is_told_in_words(ask: Tell) -> None:
    ask("schedules", "put", "worded", "greet", "name=Ann", "--cron", "0 9 * * 1-5", "--zone", "Asia/Tokyo")

    listed, shown = ask("schedules", "list"), ask("schedules", "show", "worded")
    preview = ask("schedules", "preview", "0 3 * * *")

    assert "Monday to Friday at 09:00, Asia/Tokyo" in listed.out
    assert "Monday to Friday at 09:00, Asia/Tokyo" in shown.out
    assert "every day at 03:00, UTC" in preview.err


def test_an_edit_can_be_looked_at_before_it_is_made(ask: Tell) -> None:
    ask("schedules", "put", "tried", "greet", "name=Ann", "--cron", "30 2 * * *")

    tried = ask("schedules", "put", "tried", "--cron", "0 4 * * *", "--dry-run")

    assert "would be at version 2: every day at 04:00, UTC" in tried.out
    assert "30 2 * * *" in tried.out
    assert ask("schedules", "show", "tried", "--json").json["version"] == 1


def test_deleted_ones_are_listed_if_asked_for(ask: Tell) -> None:
    ask("schedules", "put", "ended", "greet", "name=Ann", "--cron", "30 2 * * *")
    ask("schedules", "delete", "ended")

    assert "ended" not in ask("schedules", "list").out
    assert "deleted" in ask("schedules", "list", "--deleted").out

"""Completion: asked the way bash itself asks, by the function that it was told about."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from packhorse.cli.registry import COMMANDS
from tests.cli.conftest import Tell
from tests.cli.house import PACKHORSE, Dev, House
from tests.http.processes import until
from tests.tiers import sampled

NOBODY = "http://127.0.0.1:1"
"""A port at which nothing listens."""

SOON = 30.0
"""Seconds: much more than it takes, and less than a client waits for an answer."""

ASK = """
eval "$(cat {script})"
set -u
packhorse() {{ {packhorse} "$@"; }}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
$(complete -p packhorse | sed -E 's/.*-F ([^ ]+) .*/\\1/') packhorse "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    house = House(tmp_path_factory.mktemp("completion"))
    path = house.folder / "packhorse.bash"
    path.write_text(house.run("completion", "bash").out)
    return path


def completed(script: Path, *words: str, url: str = NOBODY) -> set[str]:
    typed = shlex.join(["packhorse", *words])
    asked = ASK.format(script=script, words=typed, packhorse=shlex.join(PACKHORSE))
    env = {**os.environ, "PACKHORSE_URL": url}
    told = subprocess.run(
        ["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True, env=env, timeout=SOON
    )
    assert told.stderr == ""
    return set(filter(None, told.stdout.splitlines()))


def test_bash_completes_every_command(script: Path) -> None:
    assert completed(script, "") == {name for _, name, _, _ in COMMANDS}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sub"], ["submit"]),
        (["schedules", "p"], ["pause", "preview", "put"]),
        (["tokens", ""], ["create", "list", "revoke"]),
        (["jobs", "--st"], ["--status"]),
        (["jobs", "--status", "c"], ["cancelled", "completed"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["nothing", "--st"], []),
    ],
    ids=" ".join,
)
def test_bash_completes_commands_options_and_values(script: Path, words: list[str], offered: list[str]) -> None:
    assert sorted(completed(script, *words)) == offered


def test_where_nothing_is_known_bash_offers_files(script: Path) -> None:
    told = subprocess.run(
        ["bash", "--norc", "-c", f"source {script}; complete -p packhorse"], capture_output=True, text=True, check=True
    )

    assert "-o default" in told.stdout
    assert completed(script, "dev", "") == set()


NAMES = [
    (["submit", "gr"], ["greet"]),
    (["submit", "greet", "x"], []),
    (["jobs", "--pipeline", "c"], ["chatter", "copy"]),
    (["jobs", "--pipeline", "=", "c"], ["chatter", "copy"]),
    (["schedules", "show", ""], ["declared"]),
    (["schedules", "put", "declared", "un"], ["unlock"]),
    (["schedules", "put", "declared", "unlock", "un"], []),
    (["failures", "--schedule", "d"], ["declared"]),
    (["pause", ""], ["default"]),
    (["stats", "--queue", "d"], ["default"]),
    (["worker", "--queue", "d"], []),
]


@pytest.mark.parametrize(("words", "offered"), sampled(NAMES, 3), ids=[" ".join(words) for words, _ in NAMES])
def test_bash_asks_the_server_for_names(script: Path, shared: Dev, words: list[str], offered: list[str]) -> None:
    def names() -> list[str]:
        return sorted(completed(script, *words, url=shared.url))

    assert until(lambda: names() == offered)  # on a busy machine the first tries give up: a prompt must not hang


def test_where_no_server_answers_nothing_is_offered_and_nothing_said(script: Path) -> None:
    assert completed(script, "submit", "") == set()


def test_a_server_that_is_silent_keeps_nobody_waiting(script: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        assert completed(script, "pause", "", url=url) == set()


@pytest.mark.parametrize(
    ("shell", "asked"),
    [
        ("zsh", ['"submit") kind=pipelines', '"schedules rollback") kind=schedules', '"resume") kind=queues']),
        ("fish", ["'__fish_packhorse_behind submit' -f -a '(packhorse names pipelines 2>/dev/null)'",
                  "using_command jobs' -l pipeline -x -a '(packhorse names pipelines 2>/dev/null)'",
                  "using_command stats' -l queue -x -a '(packhorse names queues 2>/dev/null)'"]),
    ],
    ids=["zsh", "fish"],
)  # fmt: skip
def test_other_shells_are_told_where_to_ask(tell: Tell, shell: str, asked: list[str]) -> None:
    said = tell("completion", shell)

    assert [each for each in asked if each not in said.out] == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_every_command(tell: Tell, shell: str) -> None:
    said = tell("completion", shell)

    assert said.code == 0
    for _, name, _, meaning in COMMANDS:
        assert name in said.out
        assert re.split("[:']", meaning)[0] in said.out  # what comes next is quoted as that shell does


def test_a_shell_we_do_not_know_is_a_mistake_in_usage(tell: Tell) -> None:
    said = tell("completion", "tcsh")

    assert said.code == 2
    assert said.last_line == "Usage: packhorse completion --help"

"""What the command line says and how it exits when nothing runs."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from packhorse.cli.registry import COMMANDS
from packhorse.version import VERSION
from tests.cli.conftest import Tell
from tests.cli.house import PACKHORSE, House
from tests.servers.ports import free_port


def test_it_knows_its_version(house: House) -> None:
    said = house.run("--version")

    assert (said.code, said.out.strip()) == (0, VERSION)


def test_without_a_command_it_lists_them_all(house: House) -> None:
    said = house.run()

    assert said.code == 0
    for _, name, _, meaning in COMMANDS:
        assert f"│ {name} " in said.out
        assert meaning in said.out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["nope"], "packhorse --help"),
        (["jobs", "--nope"], "packhorse jobs --help"),
        (["jobs", "--limit", "many"], "packhorse jobs --help"),
        (["jobs", "--limit", "1.5"], "packhorse jobs --help"),
        (["show"], "packhorse show --help"),
        (["submit", "p", "a=1", "--priority", "1.5"], "packhorse submit --help"),
        (["submit", "p", "a"], "packhorse submit --help"),
        (["artifacts", "JOB", ""], "packhorse artifacts --help"),
        (["submit", "p", "--delay", "soon"], "packhorse submit --help"),
    ],
)
def test_a_mistake_in_usage_exits_2_and_says_where_to_look(tell: Tell, arguments: list[str], hint: str) -> None:
    said = tell(*arguments)

    assert (said.code, said.out) == (2, "")
    assert said.last_line == f"Usage: {hint}"


@pytest.mark.parametrize("job", ["", " "])
@pytest.mark.parametrize("command", ["show", "logs", "cancel", "retry", "result", "artifacts"])
def test_an_empty_job_is_a_mistake_in_usage(tell: Tell, command: str, job: str) -> None:
    said = tell(command, job)

    assert (said.code, said.out) == (2, "")
    assert "the job id is empty" in said.err
    assert said.last_line == f"Usage: packhorse {command} --help"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a=1", "--wat"], "Unknown option: --wat."),
        (["--wat", "a=1"], "Unknown option: --wat."),
        (["a=1", "--colour=red"], "Unknown option: --colour=red."),
        (["a=1", "--priority", "1.5"], "'1.5' is not a whole number"),
    ],
)
def test_a_wrong_option_of_a_submit_is_named(tell: Tell, arguments: list[str], sentence: str) -> None:
    said = tell("submit", "add", *arguments)

    assert said.code == 2
    assert sentence in said.err


def test_the_help_of_a_submit_says_how_files_are_written(tell: Tell) -> None:
    said = tell("submit", "--help")

    told = " ".join(said.out.replace("│", " ").split())
    assert "For a file parameter, write NAME=@PATH or NAME=PATH" in told
    assert "NAME=@@TEXT sends a text that begins with @" in told


@pytest.mark.parametrize("command", ["jobs", "pipelines", "show JOB", "logs JOB", "cancel JOB", "submit report"])
def test_no_server_exits_5_and_says_how_to_start_one(tell: Tell, command: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    said = tell(*command.split(), "--url", url)

    assert (said.code, said.out) == (5, "")
    assert f"No packhorse server answers at {url}" in said.err
    assert said.last_line == "Start one with: packhorse dev. If one runs at another address, set PACKHORSE_URL."


def test_no_server_where_none_was_named_says_which_was_tried_and_how_to_name_another(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}"  # the real one may be taken by somebody who tries packhorse out
    monkeypatch.setattr("packhorse.client.server.LOCAL", url)

    said = tell("jobs")
    other = tell("jobs", env={"PACKHORSE_PORT": "8123"})
    named = tell("jobs", env={"PACKHORSE_URL": url})

    assert (said.code, other.code, named.code) == (5, 5, 5)
    assert (
        f"No packhorse server answers at {url}, the address of `packhorse dev`. No other address is configured."
        in said.err
    )
    assert "--url http://127.0.0.1:3002 or set PACKHORSE_URL=http://127.0.0.1:3002" in said.last_line
    assert "PACKHORSE_URL=http://127.0.0.1:8123" in other.last_line
    assert "No other address" not in named.err


@pytest.mark.parametrize("command", ["config", "doctor", "worker", "dev", "jobs"])
def test_an_unknown_setting_is_refused_by_every_command(tell: Tell, command: str) -> None:
    said = tell(command, env={"PACKHORSE_LEESE": "1"})

    assert said.code == 2
    assert "Unknown setting 'leese' (environment)" in said.err
    assert said.last_line == "List every setting and where its value comes from with: packhorse config"


@pytest.mark.parametrize("command", ["dev", "serve"])
def test_a_taken_port_is_refused_before_anything_starts(tell: Tell, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = tell(command, "--port", str(port))

    assert said.code == 2
    assert f"Port {port} on 127.0.0.1 is already in use" in said.err
    assert said.last_line == "Choose another port with --port, or stop the process that uses this one."
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("command", ["dev", "worker"])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "There is no file app.py."),
        ("x = 1", "app.py has no app."),
        ("raise SystemExit('no')", "app.py cannot be loaded: SystemExit: no"),
    ],
)
def test_a_broken_file_exits_2_with_one_sentence(tell: Tell, command: str, content: str | None, sentence: str) -> None:
    if content is not None:
        Path("app.py").write_text(content)

    port = ["--port", str(free_port())] if command == "dev" else []  # its own may be taken by somebody's dev
    said = tell(command, "app.py", *port)

    assert said.code == 2
    assert said.err.startswith(sentence)


def test_a_reader_that_has_enough_gets_no_traceback(house: House) -> None:
    piped = subprocess.run(
        ["bash", "-c", f"{' '.join(PACKHORSE)} config --json | true; exit ${{PIPESTATUS[0]}}"],
        cwd=house.folder,
        env=house.env,
        capture_output=True,
        text=True,
    )

    assert piped.stderr == ""
    assert piped.returncode in (0, 141)

"""`packhorse completion` prints a completion script; the script calls `packhorse names` for names on the server."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from itertools import islice
from typing import Literal

from packhorse.cli import output
from packhorse.cli.options import Remote
from packhorse.cli.registry import app
from packhorse.client import Client
from packhorse.errors import PackhorseError

PATIENCE = 1.0  # seconds that `names` takes at most: somebody has pressed Tab
MOST = 200  # schedules that are offered

VERBS = ("show", "put", "pause", "resume", "reset", "delete", "run", "runs", "history", "diff", "rollback")
BEHIND: Mapping[str, str] = {
    "submit": "pipelines",
    "pause": "queues",
    "resume": "queues",
    **{f"schedules {verb}": "schedules" for verb in VERBS},
}
"""Of what the server knows, which is named by the word right behind these."""
OPTIONS: Mapping[str, str] = {"--pipeline": "pipelines", "--schedule": "schedules"}
"""And by the word behind these options."""


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a completion script for bash, zsh or fish. It asks the server for names of pipelines and queues.

    Args:
        shell: bash: add this line to ~/.bashrc: eval "$(packhorse completion bash)". zsh: write it to
            _cyclopts_packhorse in a folder of $fpath. fish: write it to ~/.config/fish/completions/packhorse.fish.
    """
    text, names = app.generate_completion(shell=shell), _names_script(shell)
    match shell:
        case "bash":
            text = text.replace("complete -F _packhorse packhorse", "") + names
        case "zsh":
            text = text.replace("  local line state\n", "  local line state\n" + names, 1)
        case "fish":
            text = _fish_options(text) + names + _fish_behind()
    sys.stdout.write(text)


def _names_script(shell: str) -> str:
    """What is added to the script of cyclopts, to offer names that the server knows."""
    text = files("packhorse.cli").joinpath("shell", f"names.{shell}").read_text(encoding="utf-8")
    for place, table in (("@BEHIND@", BEHIND), ("@OPTIONS@", OPTIONS)):
        text = text.replace(place, "\n".join(f'    "{words}") kind={kind} ;;' for words, kind in table.items()))
    return text


def _fish_options(text: str) -> str:
    for option, kind in OPTIONS.items():
        text = re.sub(f"-l {option[2:]} -r ", f"-l {option[2:]} -x -a {_names_command(kind)} ", text)
    return re.sub("(using_command stats' -l queue) -r ", rf"\1 -x -a {_names_command('queues')} ", text)


def _fish_behind() -> str:
    behind = [f"'__fish_packhorse_behind {words}' -f -a {_names_command(kind)}" for words, kind in BEHIND.items()]
    behind.append(f"__fish_packhorse_behind_put -f -a {_names_command('pipelines')}")
    return "".join(f"complete -c packhorse -n {each}\n" for each in behind)


def _names_command(kind: str) -> str:
    return f"'(packhorse names {kind} 2>/dev/null)'"


def names(kind: Literal["pipelines", "queues", "schedules"], /, *, remote: Remote = Remote()) -> None:
    """Print the names that the server knows, one a line; nothing if it does not answer at once.

    Args:
        kind: Of what.
    """
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with suppress(PackhorseError), Client(remote.url, wait=0) as client:
            for name in _names(client, kind):
                output.plain(name)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _names(client: Client, kind: str) -> list[str]:
    match kind:
        case "pipelines":
            return [each["name"] for each in client.pipelines()]
        case "queues":
            return [each["name"] for each in client.queues()]
        case _:
            return [each["schedule_id"] for each in islice(client.schedules(), MOST)]

"""`packhorse completion` prints a completion script; the script calls `packhorse names` for names on the server."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Literal

from packhorse.cli import output
from packhorse.cli.options import Remote
from packhorse.cli.registry import app
from packhorse.client import Client
from packhorse.errors import PackhorseError

PATIENCE = 1.0
"""Seconds that `names` takes at most: somebody has pressed Tab."""
MOST = 200
"""Schedules that are offered."""

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

CASES = "\n".join(
    [
        *(f'    "{words}") kind={kind} ;;' for words, kind in BEHIND.items()),
        '    "schedules put "*" "*) ;;',
        '    "schedules put "*) kind=pipelines ;;',
    ]
)
OPTION_CASES = "\n".join(f'    "{name}") kind={kind} ;;' for name, kind in OPTIONS.items())

BASH = f"""
_packhorse_named() {{
  _packhorse "$@"
  local before="${{COMP_WORDS[*]:1:COMP_CWORD-1}}" kind="" name quoted
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
  if [[ "$cur" == "=" ]]; then cur=""; elif [[ "$prev" == "=" ]]; then prev="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  case "$before" in
{CASES}
  esac
  case "$prev" in
{OPTION_CASES}
    "--queue") [[ "${{COMP_WORDS[1]}}" == "stats" ]] && kind=queues ;;
  esac
  [[ -z "$kind" || "$cur" == -* ]] && return
  while IFS= read -r name; do
    [[ "$name" == "$cur"* ]] && {{ printf -v quoted '%q' "$name"; COMPREPLY+=("$quoted"); }}
  done < <("${{COMP_WORDS[0]}}" names "$kind" 2>/dev/null)
}}

complete -o default -F _packhorse_named packhorse
"""
"""Where we have nothing to offer, such as the file of `dev`, bash completes names of files as it does elsewhere."""

ZSH = f"""
  local kind=''
  local -a known
  case "${{(j: :)words[2,CURRENT-1]}}" in
{CASES}
  esac
  case "$words[CURRENT-1]" in
{OPTION_CASES}
    "--queue") [[ "$words[2]" == "stats" ]] && kind=queues ;;
  esac
  if [[ -n "$kind" && "$words[CURRENT]" != -* ]]; then
    known=("${{(@f)$("$words[1]" names "$kind" 2>/dev/null)}}")
    [[ -n "$known[1]" ]] && compadd -a known && return
  fi
"""

FISH = """
# What the server knows, right behind these words.
function __fish_packhorse_behind
    set -l cmd (commandline -opc)
    set -e cmd[1]
    test "$cmd" = "$argv"
end
function __fish_packhorse_behind_put
    set -l cmd (commandline -opc)
    test (count $cmd) -eq 4; and test "$cmd[2..3]" = "schedules put"
end
"""


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print what makes bash, zsh or fish complete this; the server is asked for pipelines, queues and schedules.

    Parameters
    ----------
    shell
        For bash, put into ~/.bashrc: eval "$(packhorse completion bash)". For zsh, write it to _cyclopts_packhorse in a
        folder of $fpath. For fish, write it to ~/.config/fish/completions/packhorse.fish.
    """
    text = app.generate_completion(shell=shell)
    sys.stdout.write({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](text))


def _bash(text: str) -> str:
    return text.replace("complete -F _packhorse packhorse", "") + BASH


def _zsh(text: str) -> str:
    """Within the function: zsh calls what it loads from a file only if that holds nothing but one."""
    return text.replace("  local line state\n", "  local line state\n" + ZSH, 1)


def _fish(text: str) -> str:
    for option, kind in OPTIONS.items():
        text = re.sub(f"-l {option[2:]} -r ", f"-l {option[2:]} -x -a {_names_command(kind)} ", text)
    text = re.sub("(using_command stats' -l queue) -r ", rf"\1 -x -a {_names_command('queues')} ", text)
    behind = [f"'__fish_packhorse_behind {words}' -f -a {_names_command(kind)}" for words, kind in BEHIND.items()]
    behind.append(f"__fish_packhorse_behind_put -f -a {_names_command('pipelines')}")
    return text + FISH + "".join(f"complete -c packhorse -n {each}\n" for each in behind)


def _names_command(kind: str) -> str:
    return f"'(packhorse names {kind} 2>/dev/null)'"


def names(kind: Literal["pipelines", "queues", "schedules"], /, *, remote: Remote = Remote()) -> None:
    """Print the names that the server knows, one a line; nothing if it does not answer at once.

    Parameters
    ----------
    kind
        Of what.
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

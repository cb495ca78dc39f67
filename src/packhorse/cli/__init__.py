"""Saying: the command line. Errors become sentences and exit codes here, and nowhere else in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import CycloptsError

from packhorse.errors import InvalidInput, PackhorseError

USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """The exit code: 0, 1 job failed, 2 usage, 3 refused, 4 cancelled, 5 unreachable."""
    from packhorse.cli.commands import app

    try:
        code: int | None = app(arguments)
        sys.stdout.flush()
    except CycloptsError as error:
        command = " ".join(["packhorse", *(error.command_chain or ())])
        return _said(str(error), f"See how it is used: {command} --help", USAGE)
    except PackhorseError as error:
        return _said("\n".join([error.message, *_fields(error)]), error.hint, error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code or 0


def _fields(error: PackhorseError) -> list[str]:
    """What is wrong with each field, unless the message says it."""
    errors = error.errors if isinstance(error, InvalidInput) else []
    return [f"  {each['field']}: {each['message']}" for each in errors if each["message"] not in error.message]


def _said(message: str, hint: str, code: int) -> int:
    print(message, *([hint] if hint else []), sep="\n", file=sys.stderr)
    return code

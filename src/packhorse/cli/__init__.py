"""The command line. Turns errors into messages and exit codes, in this one place."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec
from cyclopts import CycloptsError

from packhorse.errors import InvalidInput, PackhorseError
from packhorse.log import escape

USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """The exit code: 0, 1 job failed, 2 usage, 3 refused, 4 cancelled, 5 unreachable."""
    from packhorse.cli.registry import app

    try:
        code: int | None = app(arguments)
        sys.stdout.flush()
    except CycloptsError as error:
        command = " ".join(["packhorse", *(error.command_chain or ())])
        return _report(arguments, USAGE, "usage", "Usage", str(error), f"Usage: {command} --help")
    except PackhorseError as error:
        errors = error.errors if isinstance(error, InvalidInput) else ()
        return _report(arguments, error.exit_code, error.type(), error.title(), error.message, error.hint, errors)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code or 0


def _report(
    arguments: Sequence[str],
    code: int,
    type: str,
    title: str,
    detail: str,
    hint: str,
    errors: Sequence[dict[str, str]] = (),
) -> int:
    """Print the error as sentences, or as JSON with ``--json``; return the exit code."""
    if "--json" in arguments:
        report = {"type": type, "title": title, "detail": detail, "hint": hint, "errors": errors}
        print(msgspec.json.encode({"error": report}).decode(), file=sys.stderr)
    else:
        fields = [f"  {each['field']}: {each['message']}" for each in errors if each["message"] not in detail]
        lines = (escape(each, keep="\n\t") for each in (detail, *fields, *filter(None, [hint])))
        print(*lines, sep="\n", file=sys.stderr)
    return code

"""The command line. Turns errors into messages and exit codes, in this one place."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec
from cyclopts import CycloptsError
from msgspec import Struct

from packhorse.errors import InvalidInput, PackhorseError

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
        report = ErrorReport("usage", "Usage", str(error), f"See how it is used: {command} --help")
        return report.print(arguments, USAGE)
    except PackhorseError as error:
        return _report(error).print(arguments, error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code or 0


class ErrorReport(Struct):
    """An error as it is printed: as sentences, or as JSON with ``--json``."""

    type: str
    title: str
    detail: str
    hint: str
    errors: Sequence[dict[str, str]] = ()

    def print(self, arguments: Sequence[str], code: int) -> int:
        if "--json" in arguments:
            print(msgspec.json.encode({"error": self}).decode(), file=sys.stderr)
        else:
            print(self.detail, *self._fields(), *filter(None, [self.hint]), sep="\n", file=sys.stderr)
        return code

    def _fields(self) -> list[str]:
        """The errors of each field that the message does not contain."""
        return [f"  {each['field']}: {each['message']}" for each in self.errors if each["message"] not in self.detail]


def _report(error: PackhorseError) -> ErrorReport:
    errors = error.errors if isinstance(error, InvalidInput) else ()
    return ErrorReport(error.type(), error.title(), error.message, error.hint, errors)

"""`packhorse submit --lines`: a JSON Lines file, streamed to the server in batches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import msgspec

from packhorse.cli import output as printing
from packhorse.cli.options import Remote
from packhorse.client import Client, Json
from packhorse.client.call import MOST_BYTES, MOST_ITEMS
from packhorse.core import json
from packhorse.errors import InvalidInput, PackhorseError

STDIN = "-"


def submit_lines(path: str, pipeline: str, shared: Mapping[str, Any], remote: Remote) -> int:
    """Submit the jobs of the file; ``shared`` is what lines have that do not say it. Returns the exit code."""
    code = accepted = rejected = 0
    with _opened(path) as file, remote.client() as client:
        for batch in _batches(file):
            for n, outcome in _submit(client, batch, pipeline, shared):
                if isinstance(outcome, PackhorseError):
                    code, rejected = max(code, outcome.exit_code, InvalidInput.exit_code), rejected + 1
                    _report(n, outcome, remote)
                else:
                    accepted += 1
                    remote.print_one({"line": n, "job": outcome}, outcome["job_id"])
    printing.message(f"{accepted} accepted, {rejected} rejected")
    return code


def _report(n: int, error: PackhorseError, remote: Remote) -> None:
    if remote.json:
        printing.document({"line": n, "error": {"type": error.type(), "message": error.message}})
    else:
        printing.message(f"line {n}: {error.message}")


def _submit(
    client: Client, batch: list[tuple[int, bytes]], pipeline: str, shared: Mapping[str, Any]
) -> Iterator[tuple[int, Json | PackhorseError]]:
    """The outcome of each line, in their order. A line that is no JSON object is not sent."""
    read = [(n, _read(line, pipeline, shared)) for n, line in batch]
    items: list[Json] = [item for _, item in read if isinstance(item, dict)]
    outcomes = iter(client.submit_many(items))
    for n, item in read:
        yield n, item if isinstance(item, InvalidInput) else next(outcomes)


def _read(line: bytes, pipeline: str, shared: Mapping[str, Any]) -> Json | InvalidInput:
    try:
        item: Any = json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return InvalidInput(f"It is not JSON: {error}")
    if not isinstance(item, dict):
        return InvalidInput("It must be a JSON object")
    if item.get("pipeline", pipeline) != pipeline:
        return InvalidInput(f"It names another pipeline than the command: {item['pipeline']}")
    return {**shared, **item, "pipeline": pipeline}


def _batches(file: IO[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Lines with their numbers, as many as one request takes. Empty ones are left out."""
    batch: list[tuple[int, bytes]] = []
    size = 0
    for n, line in enumerate(file, 1):
        if not line.strip():
            continue
        if batch and (len(batch) == MOST_ITEMS or size + len(line) > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((n, line))
        size += len(line)
    if batch:
        yield batch


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.", field="lines") from error
    with file:
        yield file

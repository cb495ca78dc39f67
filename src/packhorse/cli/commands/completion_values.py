"""`packhorse names`: what a shell offers where a pipeline, queue or schedule is to be named. Nobody waits for it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from itertools import islice
from typing import Literal

from packhorse.cli import output
from packhorse.cli.options import Remote
from packhorse.client import Client
from packhorse.errors import PackhorseError

PATIENCE = 1.0
"""Seconds in all for whoever has pressed Tab."""
MOST = 200


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
            for name in _known(client, kind):
                output.plain(name)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _known(client: Client, kind: str) -> list[str]:
    match kind:
        case "pipelines":
            return [each["name"] for each in client.pipelines()]
        case "queues":
            return [each["name"] for each in client.queues()]
        case _:
            return [each["schedule_id"] for each in islice(client.schedules(), MOST)]

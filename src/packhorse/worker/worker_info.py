"""Who a worker is: its name, its process, and what it serves."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from packhorse import host
from packhorse.errors import SettingError
from packhorse.store.base import WorkerCard
from packhorse.version import VERSION


def card_of(queues: dict[str, int], kinds: Collection[str], scratch: Path) -> WorkerCard:
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    born = host.born(os.getpid())
    assert born is not None
    return WorkerCard(
        id=name,
        host=socket.gethostname(),
        boot=host.boot(),
        pid_space=host.pid_space(),
        pid=os.getpid(),
        born=born,
        version=VERSION,
        queues=queues,
        scratch=str(scratch.absolute() / name),
        kinds=tuple(sorted(kinds)),
    )


def check_queues(wanted: Mapping[str, int], known: Sequence[str]) -> None:
    """A misspelt queue would be served for ever without a job."""
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SettingError(
            f"No stage of this app uses the queue {unknown[0]!r}; they use {', '.join(known)}.",
            name="queues",
            value=wanted,
        )

"""Who a worker is, and whether it is ready: its claim loop moves, which it does only while the store answers."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest

from packhorse.host import free_port
from packhorse.settings import Settings
from packhorse.worker.status import STANDING, is_ready, new_card, serve_status


class Worker:
    def __init__(self, age: float, *, is_draining: bool = False) -> None:
        self._age = age
        self.is_draining = is_draining

    def claim_age(self) -> float:
        return self._age

    def slots(self) -> list[tuple[str, int, int]]:
        return []

    def lost_slots(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("worker", "ready"),
    [
        (Worker(0.2), True),
        (Worker(STANDING + 0.1), False),
        (Worker(0.2, is_draining=True), False),
    ],
    ids=["moving", "standing", "draining"],
)
def test_a_worker_is_ready_while_its_claim_loop_moves(worker: Worker, ready: bool) -> None:
    assert is_ready(worker) is ready


def test_two_workers_of_one_host_are_two(tmp_path: Path) -> None:
    """Even with the same pid, as in two containers that share a host name."""
    one, other = (new_card({"default": 1}, ["only"], tmp_path) for _ in range(2))

    assert (one.host, one.pid) == (other.host, other.pid)
    assert one.id != other.id
    assert one.scratch != other.scratch


def test_a_worker_shows_its_metrics_to_its_own_host_only_wherever_the_server_listens() -> None:
    settings = Settings(host="0.0.0.0", metrics_port=free_port())

    with serve_status(Worker(0.2), settings), socket.socket() as elsewhere:
        with urllib.request.urlopen(f"http://127.0.0.1:{settings.metrics_port}/metrics") as answer:
            text = answer.read().decode()
        elsewhere.bind(("127.0.0.2", settings.metrics_port))  # would be taken, if it listened on every address

    assert "packhorse_slots_lost 0.0" in text

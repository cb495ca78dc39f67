"""Whether a worker is ready: its claim loop moves, which it does only while the store answers."""

from __future__ import annotations

import pytest

from packhorse.worker.status import STANDING, is_ready


class Worker:
    def __init__(self, age: float, *, is_draining: bool = False) -> None:
        self._age = age
        self.is_draining = is_draining

    def claim_age(self) -> float:
        return self._age

    def slots(self) -> list[tuple[str, int, int]]:
        return []


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

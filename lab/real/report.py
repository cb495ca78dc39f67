"""The table of what was struck, where, how often, and with which outcome."""

from __future__ import annotations

import statistics
import threading
from collections import defaultdict

from lab.real.faults import FAULTS
from lab.real.rounds import Outcome

HEAD = (
    "| fault | store | runs | jobs | lost | duplicated | stuck | seconds to recover (median, worst) |\n"
    "|---|---|---|---|---|---|---|---|"
)


class Table:
    """Filled by several threads."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        self._lock = threading.Lock()

    @property
    def red(self) -> int:
        """How many rounds failed."""
        with self._lock:
            return sum(bool(outcome.violations) for row in self._rows.values() for outcome in row)

    def add(self, store: str, outcome: Outcome) -> None:
        place = outcome.round.place
        with self._lock:
            self._rows[outcome.round.fault, store if place == store else f"{store} ({place})"].append(outcome)

    def __str__(self) -> str:
        order = list(FAULTS)
        rows = sorted(self._rows.items(), key=lambda row: (order.index(row[0][0]), row[0][1]))
        return "\n".join([HEAD, *(_line(fault, store, outcomes) for (fault, store), outcomes in rows)])


def _line(fault: str, store: str, outcomes: list[Outcome]) -> str:
    recovered = [outcome.recovered for outcome in outcomes]
    sums = [sum(getattr(outcome, name) for outcome in outcomes) for name in ("jobs", "lost", "duplicated", "stuck")]
    runs = sum(outcome.runs for outcome in outcomes)
    cells = [f"`{fault}`", store, runs, *sums, f"{statistics.median(recovered):.1f}, {max(recovered):.1f}"]
    return f"| {' | '.join(str(cell) for cell in cells)} |"

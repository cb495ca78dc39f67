"""Hands tests out to the processes of a run, in batches that are as small as what tests share allows.

Tests of most files share a server or a browser, so a file is one batch. In the folders below they share nothing: each
test function is a batch, and each journey. A process that is free takes the next batch.

The batches that take longest are begun first: begun last, one process would still be at them when the others have
ended. `longest.txt` names them. A full run with `--keep-longest` writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

BY_FUNCTION = ("background", "blobs", "contract", "core", "define", "jobs", "lab", "outbound", "worker")
BY_TEST = ("journey",)

LONGEST = Path(__file__).with_name("longest.txt")
SHORT = 6.0
"""Seconds. Whatever takes less can be begun last."""


class Batches(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return batch(nodeid)


def batch(nodeid: str) -> str:
    """The name of the batch that a test belongs to."""
    file, _, _ = nodeid.partition("::")
    folder = file.removeprefix("tests/").partition("/")[0]
    if folder in BY_TEST:
        return nodeid
    return nodeid.partition("[")[0] if folder in BY_FUNCTION else file


@cache
def longest() -> Mapping[str, float]:
    """Seconds of each batch that is not short, as the run took that wrote the list."""
    lines = (line.split(maxsplit=1) for line in LONGEST.read_text().splitlines())
    return {name: float(seconds) for seconds, name in lines}


def keep_longest(seconds: Mapping[str, float], path: Path = LONGEST) -> None:
    """Write the list, from the seconds of each test."""
    found: dict[str, float] = {}
    for nodeid, taken in seconds.items():
        found[batch(nodeid)] = found.get(batch(nodeid), 0.0) + taken
    rows = sorted(((taken, name) for name, taken in found.items() if taken >= SHORT), reverse=True)
    path.write_text("".join(f"{taken:.0f} {name}\n" for taken, name in rows))

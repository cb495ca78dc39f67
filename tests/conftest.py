"""What holds for all tests of a process."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
from httpx2._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import HealthCheck, settings

from packhorse import log
from tests import batches, tiers
from tests.servers.tls import read_authorities_once

TESTS = Path(__file__).parent
WAITING = ("journey", "cli", "apps", "examples", "web", "docs", "deploy", "bench", "sources")
"""Whose tests mostly wait, for processes, leases and ticks."""
# A shell starts background commands with SIGINT ignored, and every process we start would inherit that. Tests that send
# SIGINT need the default, wherever the run itself was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Folders of tests are in memory where there is room. On a disk, most of a short test is waiting for syncs.
MEMORY, ROOM = "/dev/shm", 4 * 2**30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


# httpx gives up after 5 s unless told otherwise. On a busy machine a server may need longer for its first answer.
DEFAULT_TIMEOUT_CONFIG.read = DEFAULT_TIMEOUT_CONFIG.connect = 60.0

# Hypothesis takes an example that needs 200 ms for a fault, and slow generation, too. A busy machine is none.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

read_authorities_once()


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.add_option(parser)
    parser.addoption("--keep-longest", action="store_true", help="write tests/longest.txt from this run")


def pytest_configure(config: pytest.Config) -> None:
    tiers.configure(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.select(config, items)
    _arrange(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> batches.Batches | None:
    return batches.Batches(config, log) if config.getoption("dist") == "loadfile" else None


def _arrange(items: list[pytest.Item]) -> None:
    """The order of batches: the longest first, then files of waiters and workers in turn, of those the large ones."""
    seconds = batches.longest()
    long: list[pytest.Item] = []
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        (long if batches.batch(item.nodeid) in seconds else files.setdefault(item.path, [])).append(item)
    long.sort(key=lambda item: -seconds[batches.batch(item.nodeid)])
    large_first = sorted(files, key=lambda path: (-len(files[path]), path))
    waiting = [path for path in large_first if _mostly_waits(path)]
    working = [path for path in large_first if not _mostly_waits(path)]
    in_turn = chain.from_iterable(zip_longest(waiting, working))
    items[:] = [*long, *(item for path in in_turn if path is not None for item in files[path])]


def _mostly_waits(path: Path) -> bool:
    return path.relative_to(TESTS).parts[0].removeprefix("test_").startswith(WAITING)


_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("keep_longest") and not hasattr(session.config, "workerinput"):
        batches.keep_longest(_seconds)


def pytest_collection_finish() -> None:
    """Ten thousand tests stay to the end: whoever looks for garbage need not look through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was() -> Iterator[None]:
    """A level left behind would silence what a later test of this process looks for in the log."""
    before = _logging_state()
    yield
    after = _logging_state()
    logging.disable(before["disabled"])
    logging.getLogger().setLevel(before["root"])
    log.logger.setLevel(before["packhorse"])
    log.logger.disabled, log.logger.propagate = False, True
    assert after == before, "this test leaves another logging set-up behind"


def _logging_state() -> dict[str, Any]:
    root, ours = logging.getLogger(), log.logger
    return {
        "disabled": root.manager.disable,
        "root": root.level,
        "packhorse": ours.level,
        "enabled": not ours.disabled and ours.propagate,
    }

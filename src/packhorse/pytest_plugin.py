"""The pytest fixtures `packhorse` and `crash_lab`. Every pytest run loads this where packhorse is installed, so it
imports little.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from packhorse.errors import PackhorseError

if TYPE_CHECKING:
    from packhorse.testing import Bench, CrashLab


FAILED = pytest.StashKey[bool]()


@pytest.fixture
def packhorse(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench for this test: pipelines run inline, without a server, processes or waiting."""
    from packhorse.testing import Bench

    bench = Bench()
    yield bench
    bench.close(check=FAILED not in request.node.stash)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash-lab",
        action="store_true",
        help="also run tests with the fixture crash_lab: they start real packhorse workers and kill them",
    )


@pytest.fixture
def crash_lab(request: pytest.FixtureRequest) -> Iterator[CrashLab]:
    """Runs a pipeline on real workers, and kills them at every point of every stage. Needs ``--crash-lab``."""
    from packhorse.testing import CrashLab

    if not request.config.getoption("--crash-lab"):
        pytest.skip("it starts real workers and kills them, which takes a while: run pytest --crash-lab")
    with CrashLab() as lab:
        yield lab


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test why its jobs failed: the test itself sees only a status."""
    report = yield
    if not report.passed:
        item.stash[FAILED] = True
    testing = sys.modules.get("packhorse.testing")
    if testing is not None and call.when == "call" and report.failed:
        for bench in getattr(item, "funcargs", {}).values():
            with suppress(PackhorseError):  # the test may have closed it
                if isinstance(bench, testing.Bench) and (failures := bench.failures()):
                    report.sections.append(("Failed jobs", failures))
    return report

"""The pytest fixture `packhorse`. Every pytest where packhorse is installed loads this, so it loads nothing else."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from packhorse.errors import PackhorseError

if TYPE_CHECKING:
    from packhorse.testing import Bench


@pytest.fixture
def packhorse() -> Iterator[Bench]:
    """A bench of this test alone, on which pipelines run inline: no server, no process, no waiting."""
    from packhorse.testing import Bench

    with Bench() as bench:
        yield bench


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test why its jobs have failed: the test itself has seen no more than a status."""
    report = yield
    testing = sys.modules.get("packhorse.testing")
    if testing is not None and call.when == "call" and report.failed:
        for bench in getattr(item, "funcargs", {}).values():
            with suppress(PackhorseError):  # the test may have closed it
                if isinstance(bench, testing.Bench) and (failures := bench.failures()):
                    report.sections.append(("Failed jobs", failures))
    return report

"""A reader can follow each of the five paths of the architecture page: at most 25 modules, traced on real calls."""

from __future__ import annotations

import asyncio

import pytest

from tests.call_paths import paths

AT_MOST = 25


@pytest.mark.release
def test_every_path_of_a_job_crosses_few_modules() -> None:
    found = asyncio.run(paths())

    assert found.keys() == {"submit", "stage", "page", "progress", "tick"}
    assert {name: len(modules) for name, modules in found.items() if not 5 <= len(modules) <= AT_MOST} == {}

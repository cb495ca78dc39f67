"""The children of a worker: one that is still loading belongs to it, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from packhorse.engine.describe import describe
from packhorse.engine.pool import Pool
from packhorse.errors import DefinitionError
from tests.journey.site import until

SLOW = """
import time
from packhorse import App

time.sleep(0.5)
app = App("slow")

@app.job
def work() -> int:
    return 1
"""


async def test_the_end_of_one_child_leaves_another_that_is_loading_alone(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    told: list[str] = []
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, said=told.append)
    await pool.open()
    try:
        first = await pool.single()
        loading = asyncio.create_task(pool.single())

        async def is_born() -> bool | None:
            return True if len(pool._all) == 2 else None

        await until(is_born, 10, lambda: "the second child was not started")
        await pool.end(first)
        second = await loading

        assert not second.has_ended.is_set()
        assert pool._all == {second}
    finally:
        await pool.close()


async def test_a_child_that_has_grown_too_large_is_not_used_again(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    pool = Pool(str(tmp_path / "slow.py"), recycle=10, memory=1000, grace=1.0, scratch=tmp_path, said=print)
    await pool.open()
    try:
        child = await pool.single()
        child.memory = 1001

        pool.give_back(child)

        await asyncio.wait_for(child.has_ended.wait(), 10)
        assert await pool.single() is not child
    finally:
        await pool.close()


async def test_an_app_without_a_pipeline_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text('from packhorse import App\napp = App("empty")\n')

    with pytest.raises(DefinitionError, match=r"empty.py defines no pipeline"):
        await describe(str(tmp_path / "empty.py"))

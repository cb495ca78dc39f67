"""What an app defines, told by a child, however the app behaves while it is loaded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from packhorse.errors import DefinitionError
from packhorse.worker.pool import describe
from tests.worker import child_app

GOOD = """
from packhorse import App, Context
app = App("good")

@app.job(queue="side")
def work(ctx: Context) -> int:
    return 1
"""


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "mine.py").write_text(text)
    return str(tmp_path / "mine.py")


async def test_an_app_is_described_by_its_pipelines_kinds_and_queues() -> None:
    described = await describe(child_app.__file__)

    assert [each.pipeline for each in described.definitions] == ["plain", "aside"]
    assert {each.app for each in described.definitions} == {"children"}
    assert described.kinds == set(child_app.app.code.by_kind)
    assert described.queues == {"default": described.kinds}


@pytest.mark.parametrize(
    "noise",
    ["print('hello')", "import os; os.write(1, b'hello')", "import os; os.system('echo hello')"],
    ids=["printed", "written", "by a process"],
)
async def test_what_an_app_prints_while_it_is_loaded_does_no_harm(tmp_path: Path, noise: str) -> None:
    described = await describe(written(tmp_path, f"{noise}\n{GOOD}"))

    assert described.queues == {"side": described.kinds}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{GOOD}\nraise ValueError('half-written')", 9),
        (f"{GOOD}\nthis is no Python", 9),
        ("import json\njson.loads('{')", 2),
        (GOOD.replace("-> int", "-> object()"), 5),
    ],
    ids=["raises", "no Python", "raises in a library", "a stage that cannot work"],
)
async def test_a_broken_file_is_told_with_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(DefinitionError) as broken:
        await describe(written(tmp_path, text))

    assert f"mine.py:{line}" in broken.value.message


async def test_an_app_that_ends_its_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError) as broken:
        await describe(written(tmp_path, "import os; os._exit(0)"))

    assert "mine.py" in broken.value.message


async def test_an_app_that_never_ends_to_load_is_told_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.worker.pool.START", 2.0)
    started = []
    start = asyncio.create_subprocess_exec

    async def noted(*command: str, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*command, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)

    with pytest.raises(DefinitionError, match=r"mine.py took longer than 2 s to load"):
        await describe(written(tmp_path, "import time\nwhile True: time.sleep(60)"))

    assert [psutil.pid_exists(process.pid) for process in started] == [False]


async def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError) as broken:
        await describe(str(tmp_path / "nothing.py"))

    assert "nothing.py" in broken.value.message

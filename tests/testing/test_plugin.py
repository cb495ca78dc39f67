"""The fixture is there in any pytest of anybody who has packhorse installed, and costs those nothing who do not ask."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT = 300.0
"""Seconds for a fresh pytest: it has to start an interpreter, on a busy machine too."""

HEAVY = {"apsw", "asyncio", "granian", "httpx2", "litestar", "psutil", "pydantic", "rich", "uuid_utils"}

USERS_PIPELINE = """
from packhorse import App, Context, Params, needs

app = App("mine")

class Greet(Params):
    name: str

greet = app.pipeline("greet", Greet)

@greet.stage
def word(ctx: Context, p: Greet) -> str:
    return "hello"

@greet.stage
def whole(ctx: Context, p: Greet, word: str = needs(word)) -> str:
    return f"{word} {p.name}"
"""

USERS_SETTINGS = """
[pytest]
filterwarnings = error
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""

USERS_TEST = """
import pytest
from mine import Greet, greet, word

def test_a_greeting_is_put_together(packhorse):
    packhorse.fail(word)

    job = packhorse.run(greet, Greet(name="ann"))

    assert job.result == "hello ann"
    assert job.attempts_of(word) == 2

def test_each_test_has_a_bench_of_its_own(packhorse):
    assert packhorse.elapsed == 0

async def test_an_async_test_has_one_too(packhorse):
    assert (await packhorse.a_run(greet, Greet(name="bob"))).result == "hello bob"

def test_what_went_wrong_is_shown(packhorse):
    packhorse.fail(word, ValueError("odd"), times=None)

    job = packhorse.run(greet, Greet(name="ann"))

    assert job.status == "completed"

def test_a_bench_that_is_closed_is_not_asked(packhorse):
    packhorse.run(greet, Greet(name="ann"))
    packhorse.close()

    assert not packhorse

def test_a_moment_that_never_comes_fails_once(packhorse):
    packhorse.during(word, lambda job: job.cancel())

    assert packhorse.run(greet, Greet(name="ann")).status == "cancelled"

def test_a_test_that_fails_before_the_moment_fails_once(packhorse):
    packhorse.during(word, lambda job: job.cancel())

    raise ValueError

def test_a_test_that_is_skipped_before_the_moment_is_only_skipped(packhorse):
    packhorse.during(word, lambda job: job.cancel())

    pytest.skip("not here")
"""


def test_the_fixture_works_in_a_fresh_pytest(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USERS_PIPELINE)
    (tmp_path / "test_mine.py").write_text(USERS_TEST)
    (tmp_path / "pytest.ini").write_text(USERS_SETTINGS)

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)

    assert "4 failed, 3 passed, 1 skipped in" in done.stdout, done.stdout + done.stderr
    assert "- Failed jobs -" in done.stdout
    assert "<job greet failed: EXCEPTION in word: ValueError: odd>" in done.stdout
    assert 'File "' in done.stdout  # the traceback inside the stage


def test_loading_the_plugin_loads_nothing_heavy() -> None:
    brought = loaded_by("packhorse.pytest_plugin") - loaded_by("pytest")

    assert not {name.partition(".")[0] for name in brought} & HEAVY
    assert "packhorse.testing" not in brought
    assert "packhorse.runtime" not in brought


def loaded_by(module: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True).stdout.split())

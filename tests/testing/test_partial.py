"""Pipelines that leave out elements which failed for good."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import App, Context, Failed, Params, Permanent, each, gather
from packhorse.define import Pipeline
from packhorse.errors import DefinitionError, NotAllowed
from packhorse.testing import Bench

app = App("pages")


class Scan(Params):
    pages: list[str]


scan = app.pipeline("scan", Scan)
broken = {"b"}


@scan.stage
def split(ctx: Context, p: Scan) -> list[str]:
    return p.pages


@scan.stage(tolerate=1, retries=1)
def read(ctx: Context, p: Scan, page: str = each(split)) -> str:
    if page in broken:
        raise Permanent(f"{page} cannot be read", code="BLANK")
    return page.upper()


@scan.stage
async def check(ctx: Context, p: Scan, text: str = each(gather(read))) -> int:
    return len(text)


@scan.stage
def bind(ctx: Context, p: Scan, texts: list[str | Failed] = gather(read), sizes: list[int] = gather(check)) -> str:
    return f"{[text if isinstance(text, str) else (text.element, text.code) for text in texts]} {sizes}"


@pytest.fixture
def packhorse(packhorse: Bench) -> Bench:
    broken.clear()
    broken.add("b")
    return packhorse


def test_stage_that_gathers_gets_failed_in_place_of_a_result(packhorse: Bench) -> None:
    job = packhorse.run(scan, Scan(pages=["a", "b", "c"]))

    assert job.status == "completed"
    assert job.result == "['A', (1, 'BLANK'), 'C'] [1, 1]"
    assert job.result_of(gather(read)) == ["A", Failed(1, "BLANK", "b cannot be read"), "C"]
    assert job.result_of(gather(check)) == [1, 1]
    assert job.progress == 100
    assert job.attempts_of(check, 1) == 0


def test_retry_of_failed_elements_completes_the_result(packhorse: Bench) -> None:
    job = packhorse.run(scan, Scan(pages=["a", "b", "c"]))
    broken.clear()

    job.retry(failed_elements=True)

    assert job.result == "['A', 'B', 'C'] [1, 1, 1]"
    assert job.record.partial is None
    assert [job.attempts_of(read, n) for n in range(3)] == [0, 1, 0]
    with pytest.raises(NotAllowed):
        job.retry(failed_elements=True)


def test_one_failure_more_fails_the_job(packhorse: Bench) -> None:
    broken.add("c")

    job = packhorse.run(scan, Scan(pages=["a", "b", "c"]))

    assert job.error is not None
    assert (job.error.code, job.error.element) == ("BLANK", 2)


@pytest.mark.parametrize("wrong", [0, 2.0, 1.5, 0.0, -1, True, "5%"])
def test_tolerance_that_means_nothing_is_refused_with_its_place(wrong: Any) -> None:
    pipeline = Pipeline("scan", Scan)
    source = pipeline.stage(split.function)

    with pytest.raises(DefinitionError, match=rf"tolerate takes a number of elements .* See .*{__name__[-7:]}.py:\d+"):

        @pipeline.stage(tolerate=wrong)
        def read(ctx: Context, p: Scan, page: str = each(source)) -> str:
            return page


def test_tolerance_of_a_stage_without_elements_is_refused_with_its_place() -> None:
    with pytest.raises(DefinitionError, match=r"tolerate=, but no each.* See .*partial.py:\d+"):

        @Pipeline("scan", Scan).stage(tolerate=0.5)
        def read(ctx: Context, p: Scan) -> str:
            return ""


def test_stage_that_expects_failures_is_of_another_kind() -> None:
    def kind(**options: Any) -> str:
        pipeline = Pipeline("scan", Scan)
        source = pipeline.stage(split.function)

        @pipeline.stage(**options)  # type: ignore[untyped-decorator] # mypy does not know which options these are
        def read(ctx: Context, p: Scan, page: str = each(source)) -> str:
            return page

        @pipeline.stage
        def bind(ctx: Context, p: Scan, texts: list[Any] = gather(read)) -> str:
            return ""

        return bind.plan.kind

    assert kind() != kind(tolerate=1)

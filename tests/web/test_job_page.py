"""The page of a job as the server makes it: the graph, the grid, files, the log, one element, and what changes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from packhorse.core.models import Artifact, Result, Stored
from packhorse.store.base import Store
from packhorse.web.widgets import formatting, stages
from packhorse.web.widgets.job import timeline
from tests.contract import builders
from tests.contract.builders import FAN, line, page, plan, stage
from tests.http.conftest import http, place, store  # noqa: F401  fixtures
from tests.http.unserved import Http
from tests.web.test_timeline import BEGIN, NEEDS, at, event

ROOT = "http://127.0.0.1"


async def read(http: Http, path: str) -> str:  # noqa: F811
    answer = await http.get(f"{ROOT}{path}")
    assert answer.status_code == 200, answer.text[:300]
    return answer.text


async def failed_element(store: Store) -> str:  # noqa: F811
    """A job of three elements, of which the second one has failed; the first has made a file."""
    job = await builders.split(store, 3)
    first, second = await builders.claim(store, 2)
    made = Artifact("page/0/a.txt", Stored("key", "a.txt", 3, "0" * 64, "text/plain"))
    await builders.finish(store, first, Result(b'{"$file":0}', (made,)))
    await store.log([line(job, "ERROR torn", task=second.task), line(job, "fine", task=first.task)], keep=10_000)
    await builders.fail(store, second)
    return job.id


# The graph


def test_a_stage_stands_after_all_that_it_needs_and_its_edges_end_at_it() -> None:
    drawn = stages.graph(FAN)

    assert drawn is not None
    assert [(node.name, node.is_many) for node in drawn.nodes] == [("split", False), ("page", True), ("book", False)]
    x = {node.name: node.x for node in drawn.nodes}
    assert x["split"] < x["page"] < x["book"]
    assert [(source, target) for source, target, _ in drawn.edges] == [("split", "page"), ("page", "book")]
    assert stages.graph(builders.ONE) is None


def test_an_edge_goes_around_the_stages_between_its_ends() -> None:
    long = plan(stage("a"), stage("b", builders.needs("a")), stage("c", builders.needs("a"), builders.needs("b")))

    drawn = stages.graph(long)

    assert drawn is not None
    tops = {node.name: node.y for node in drawn.nodes}
    [straight] = [path for source, target, path in drawn.edges if (source, target) == ("a", "c")]
    [height] = re.findall(r" (\d+)H", straight)
    assert abs(int(height) - tops["b"] - stages.NODE_HEIGHT // 2) >= stages.NODE_HEIGHT


# The grid


@pytest.mark.parametrize("count", [1, 7, 200, 10_000])
def test_each_element_is_one_cell_of_the_path_of_its_state(count: int) -> None:
    text = "".join("cfrp"[n * n % 4] for n in range(count))

    drawn = stages.grid("page", text)

    found = ["?"] * count
    for letter, path in drawn.paths:
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            start = int(y) // stages.PITCH * drawn.columns + int(x) // stages.PITCH
            for n in range((int(width) + 2) // stages.PITCH):
                assert found[start + n] == "?"
                found[start + n] = letter
    assert "".join(found) == text


def test_ten_thousand_elements_in_one_state_take_few_bytes() -> None:
    drawn = stages.grid("page", "c" * 9_000 + "r" * 20 + "p" * 980)

    assert sum(len(path) for _, path in drawn.paths) < 2_000
    assert stages.pack(drawn.letters) == "9000c20r980p"


# The page


async def test_a_fan_out_is_a_grid_with_links_to_what_failed(http: Http, store: Store) -> None:  # noqa: F811
    job_id = await failed_element(store)

    text = await read(http, f"/jobs/{job_id}")

    assert 'data-cells="1c1f1' in text
    assert f'href="/jobs/{job_id}/element?stage=page&amp;element=1"' in text
    assert 'data-node="page"' in text
    assert "1 of 3, 1 failed" in text


async def test_the_size_of_the_page_does_not_grow_with_the_elements(http: Http, store: Store) -> None:  # noqa: F811
    few, many = [await builders.split(store, width) for width in (20, 1000)]

    sizes = [len(await read(http, f"/jobs/{job.id}")) for job in (few, many)]

    assert sizes[1] < sizes[0] + 3_000


async def test_one_element_shows_its_attempts_its_log_and_why_it_failed(http: Http, store: Store) -> None:  # noqa: F811
    job_id = await failed_element(store)

    text = await read(http, f"/jobs/{job_id}/element?stage=page&element=1")

    assert "page[1]" in text
    assert "INVALID" in text
    assert "It can never work." in text
    assert "ERROR torn" in text
    assert "fine" not in text
    assert "page[1] failed permanently" in text
    made = await read(http, f"/jobs/{job_id}/element?stage=page&element=0")
    assert "/artifacts/page/0/a.txt" in made
    assert (await http.get(f"{ROOT}/jobs/{job_id}/element?stage=page&element=3")).status_code == 422
    assert (await http.get(f"{ROOT}/jobs/{job_id}/element?stage=nope&element=0")).status_code == 422


async def test_many_files_of_a_stage_are_listed_on_a_page_of_their_own(http: Http, store: Store) -> None:  # noqa: F811
    claim = await builders.started(store)
    files = tuple(
        Artifact(f"only/{n}.bin", Stored(f"key{n}", f"{n}.bin", 1024, f"{n:064}", "image/png")) for n in range(130)
    )
    job = await builders.finish(store, claim, Result(b"1", (), files))

    text = await read(http, f"/jobs/{job.id}")

    assert "<strong>only</strong> · 130 files · 130 KiB" in text
    assert "/artifacts/only/5.bin" not in text
    shown = await read(http, f"/jobs/{job.id}/files?stage=only")
    rest = await read(http, f"/jobs/{job.id}/files?stage=only&skip=100")
    assert [text.count("data-kind=") for text in (shown, rest)] == [100, 30]
    assert "101 to 130 of 130" in rest


# The log


async def test_the_whole_log_is_searched_on_the_server(http: Http, store: Store) -> None:  # noqa: F811
    job = await builders.split(store, 2)
    for begin in range(0, 12_000, 1000):
        texts = [f"needle {n}" if n % 4000 == 7 else f"hay {n}" for n in range(begin, begin + 1000)]
        written = [line(job, text, task=page(n % 2)) for n, text in enumerate(texts)]
        await store.log(written, keep=100 * 1024**2)

    found = (await http.get(f"{ROOT}/jobs/{job.id}/log?q=NEEDLE")).json()
    of_one = (await http.get(f"{ROOT}/jobs/{job.id}/log?q=needle&stage=page&element=0")).json()
    newest = (await http.get(f"{ROOT}/jobs/{job.id}/log")).json()
    earlier = (await http.get(f"{ROOT}/jobs/{job.id}/log?before={newest['before']}")).json()

    assert ([each[5][0][1] for each in found["lines"]], found["before"]) == (
        ["needle 7", "needle 4007", "needle 8007"],
        None,
    )
    assert of_one["lines"] == []
    assert [each[0] for each in earlier["lines"] + newest["lines"]] == [*range(11_401, 12_001)]
    around = await read(http, f"/jobs/{job.id}?line=500")
    assert 'id="L500"' in around
    assert 'id="L12000"' not in around


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("2026-01-01 12:00:00 WARNING low", "warning"),
        ("ERROR: no", "error"),
        ("[debug] DEBUG x", "debug"),
        ("Traceback (most recent call last):", "error"),
        ("demo.BadError: no", "error"),
        ("information", ""),
        ("x" * 80 + " ERROR", ""),
    ],
)
def test_a_line_has_the_level_that_it_begins_with(text: str, level: str) -> None:
    assert formatting.level(text) == level


def test_colours_of_a_terminal_become_styles_and_other_sequences_vanish() -> None:
    told = "\x1b[1;31mred\x1b[0m \x1b[38;5;2mgreen\x1b[39m \x1b[2K\x1b]0;title\x07end\x1b[38;2;1;2;3m!"

    assert formatting.styled(told) == [
        ("ansi-bold ansi-red", "red"),
        ("", " "),
        ("ansi-green", "green"),
        ("", " "),
        ("", "end"),
        ("", "!"),
    ]
    assert formatting.styled("10%\r20%\r\n") == [("", "20%")]


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [
        (20, 41, "20 to 40 s"),
        (50, 120, "50 s to 2 min"),
        (10_800, 11_500, "3 h"),
        (8, None, "8 s"),
        (9, 4, "9 s"),
    ],
)
def test_the_time_that_is_left_is_a_range_where_it_is_one(least: float, most: float | None, text: str) -> None:
    assert formatting.between(least, most) == text


# The timeline


def ended(seconds: float, name: str) -> dict[str, Any]:
    stages = {name: {"status": "completed"}}
    return {"created_at": at(0), "completed_at": at(seconds), "status": "completed", "stages": stages}


def test_an_attempt_whose_worker_was_lost_says_so() -> None:
    events = [
        event("submitted", 0),
        event("stage_started", 1, "split", attempt=1),
        event("retrying", 4, "split", attempt=1, code="WORKER_LOST", message="w1 went silent"),
        event("stage_started", 5, "split", attempt=2),
        event("stage_completed", 6, "split"),
        event("completed", 6),
    ]
    job = {
        "created_at": at(0),
        "completed_at": at(6),
        "status": "completed",
        "stages": {"split": {"status": "completed"}},
    }

    [row] = timeline(job, events, NEEDS, formatting.moment(at(6))).rows.values()  # type: ignore[arg-type]

    assert [(span.kind, span.x, span.width) for span in row.spans] == [("wait", 0, 1), ("lost", 1, 3), ("run", 5, 1)]
    assert "w1 went silent" in row.spans[1].title


def test_elements_are_one_bar_as_high_as_how_many_ran_at_once() -> None:
    job = {
        "created_at": at(0),
        "completed_at": at(10),
        "status": "completed",
        "stages": {"work": {"status": "completed"}},
    }
    ran = {"work": [(BEGIN + 1, BEGIN + 5), (BEGIN + 4, BEGIN + 9), (BEGIN + 4, BEGIN + 5)]}

    [row] = timeline(job, [], NEEDS, formatting.moment(at(10)), ran).rows.values()  # type: ignore[arg-type]

    assert (row.peak, row.took, row.start, row.end) == (3, 8.0, 0.1, 0.9)
    assert row.area.startswith("M0 10H")
    assert row.area.count("V1H") == 1  # the top: three at once

"""The parts of the real-process lab that need no faults: its model of a power cut, its rounds and what it reports."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.real import power
from lab.real.__main__ import STORES, next_rounds
from lab.real.deployment import Acknowledged
from lab.real.faults import FAULTS
from lab.real.places import PLACES
from lab.real.plot import draw
from lab.real.report import Table
from lab.real.rounds import Outcome, Round
from lab.real.soak import growth, lost_jobs, run_until_terminated

from tests.journey.site import Entry

ROOT = Path(__file__).parents[2]
DISK = "/disk"
FILE, FOLDER, OTHER = 11, 12, 13


def record(kind: str, path: str, inode: int = 0, number: int = 0, data: bytes = b"") -> power.Record:
    return power.Record(kind, inode, number, f"{DISK}{path}", data)


CREATED = [record("m", "/a", FOLDER, stat.S_IFDIR | 0o755), record("c", "/a/f", FILE, stat.S_IFREG | 0o644)]
WRITTEN = [*CREATED, record("w", "/a/f", FILE, 0, b"first")]
SYNC_FILE, SYNC_FOLDER, SYNC_ROOT = (
    [record(kind, path, inode, 1) for kind in "bs"] for path, inode in (("/a/f", FILE), ("/a", FOLDER), ("", 0))
)
DURABLE = [*WRITTEN, *SYNC_FILE, *SYNC_FOLDER, *SYNC_ROOT]


def after_cut(records: list[power.Record], to: Path, keep: float = 0.0, seed: int = 1) -> dict[str, bytes]:
    """The files that are left."""
    disk = power.Disk(DISK)
    for each in records:
        disk.apply(each)
    disk.cut(to, keep, random.Random(seed))
    return {str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*") if path.is_file()}


def test_a_power_cut_keeps_what_was_synced_with_its_name_and_every_folder_above(tmp_path: Path) -> None:
    assert after_cut(DURABLE, tmp_path / "cut") == {"a/f": b"first"}


@pytest.mark.parametrize("forgotten", [SYNC_FILE, SYNC_FOLDER, SYNC_ROOT])
def test_each_sync_that_is_forgotten_loses_the_file_or_its_content(
    tmp_path: Path, forgotten: list[power.Record]
) -> None:
    left = after_cut([each for each in DURABLE if each not in forgotten], tmp_path / "cut")

    assert left.get("a/f", b"") == b""


def test_what_another_thread_writes_during_a_sync_may_not_be_in_it(tmp_path: Path) -> None:
    begin, end = SYNC_FILE
    during = [*DURABLE, begin, record("w", "/a/f", FILE, 0, b"second"), end]

    assert after_cut(during, tmp_path / "during") == {"a/f": b"first"}
    assert after_cut([*during, *SYNC_FILE], tmp_path / "after") == {"a/f": b"second"}


def test_a_lucky_power_cut_keeps_everything(tmp_path: Path) -> None:
    assert after_cut(WRITTEN, tmp_path / "cut", keep=1.0) == {"a/f": b"first"}


def test_what_is_written_after_the_last_sync_may_be_lost_or_torn_but_not_what_was_before(tmp_path: Path) -> None:
    large = b"x" * (3 * power.SECTOR)
    records = [*DURABLE, record("w", "/a/f", FILE, 0, large), record("t", "/a/f", FILE, 2)]

    assert after_cut(records, tmp_path / "none") == {"a/f": b"first"}
    assert after_cut(records[:-1], tmp_path / "all", keep=1.0) == {"a/f": large}
    assert after_cut(records, tmp_path / "short", keep=1.0) == {"a/f": b"xx"}
    some = {after_cut(records[:-1], tmp_path / f"some{n}", keep=0.5, seed=n)["a/f"] for n in range(9)}
    assert some - {b"first", large}


def test_names_that_were_removed_or_linked_follow_the_sync_of_their_folder(tmp_path: Path) -> None:
    moved = [*DURABLE, record("l", "/a/g", FILE), record("u", "/a/f")]

    assert after_cut(moved, tmp_path / "before") == {"a/f": b"first"}
    assert after_cut([*moved, *SYNC_FOLDER], tmp_path / "after") == {"a/g": b"first"}


def test_an_inode_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    again = [*DURABLE, record("u", "/a/f"), record("c", "/a/g", FILE, stat.S_IFREG | 0o644), *SYNC_FOLDER]

    assert after_cut(again, tmp_path / "cut") == {"a/g": b""}


def test_the_log_is_read_as_it_was_written_up_to_a_record_that_was_cut_off(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    power.mark(log, "A", "one")
    power.mark(log, "E", "two", b"data")
    with log.open("ab") as file:
        file.write(power.HEAD.pack(b"w", 1, 2, 3, 400) + b"abc")

    assert power.read(log) == [power.Record("A", 0, 0, "one", b""), power.Record("E", 0, 0, "two", b"data")]


def test_cuts_come_after_the_first_answer_and_cover_the_log(tmp_path: Path) -> None:
    log = [*WRITTEN, power.Record("A", 0, 0, "job", b""), *SYNC_FILE, *SYNC_FOLDER, *SYNC_ROOT]
    points = []
    for point, _ in power.cuts(log, DISK, 20, tmp_path / "cut", random.Random(2)):
        points.append(point)
        power.remove(tmp_path / "cut")

    assert points == sorted(points)
    assert min(points) >= 3
    assert max(points) == len(log)


@pytest.mark.parametrize("store", STORES)
def test_every_fault_strikes_once_before_any_strikes_again_and_the_seed_repeats_the_order(store: str) -> None:
    pairs = {(fault.name, place) for fault in FAULTS.values() for place in fault.places if PLACES[place].store == store}
    lanes = [list(itertools.islice(next_rounds(store, [], 7, lane, 2), len(pairs))) for lane in (0, 1)]
    drawn = [each for both in zip(*lanes, strict=True) for each in both]

    assert {(each.fault, each.place) for each in drawn[: len(pairs)]} == pairs
    assert lanes[0] == list(itertools.islice(next_rounds(store, [], 7, 0, 2), len(pairs)))
    assert lanes[0] != list(itertools.islice(next_rounds(store, [], 8, 0, 2), len(pairs)))


def test_the_table_adds_up_the_rounds_of_a_fault_on_a_store() -> None:
    table = Table()
    table.add("redis", Outcome(Round("worker.killed", "redis", 1), jobs=10, recovered=1.0))
    table.add("redis", Outcome(Round("worker.killed", "redis", 2), jobs=20, recovered=3.0))
    table.add("redis", Outcome(Round("sentinel.failover", "sentinel", 1), jobs=5, lost=2, violations=["I1: lost"]))

    assert table.red == 1
    assert "| `worker.killed` | redis | 2 | 30 | 0 | 0 | 0 | 2.0, 3.0 |" in str(table)
    assert "| `sentinel.failover` | redis (sentinel) | 1 | 5 | 2 | 0 | 0 | 0.0, 0.0 |" in str(table)


def test_the_docs_explain_every_fault_and_have_a_row_for_it_on_every_store() -> None:
    text = (ROOT / "docs/reliability.md").read_text()
    explained = dict(re.findall(r"^\| `([a-z0-9.-]+)` \| ([^|]+) \|$", text, re.MULTILINE))
    rows = set(re.findall(r"^\| `([a-z0-9.-]+)` \| ([a-z]+)(?: \([a-z]+\))? \| [1-9]", text, re.MULTILINE))

    assert explained == {fault.name: fault.title for fault in FAULTS.values()}
    assert rows == {(fault.name, PLACES[place].store) for fault in FAULTS.values() for place in fault.places}


def test_the_plot_has_a_line_per_store_in_its_legend_and_in_each_panel(tmp_path: Path) -> None:
    head = "seconds,worker_mib,server_mib,worker_fds,server_fds,rows,store_mib,files,ended\n"
    for store in ("redis", "sqlite"):
        (tmp_path / f"soak-{store}.csv").write_text(head + "5,1,2,3,4,5,6,7,8\n10,1,2,3,4,5,6,7,9\n")

    picture = draw([tmp_path / "soak-redis.csv", tmp_path / "soak-sqlite.csv"])

    assert [picture.count(f'<polyline class="{store}"') for store in ("redis", "sqlite", "postgresql")] == [7, 7, 0]
    assert picture.startswith("<svg")


@pytest.mark.parametrize(
    ("expected", "notes", "is_lost"),
    [
        (None, [], True),
        (None, [("begin", "says")], False),
        ("4", [], True),
        ("4", [("begin", "split"), ("end", "split"), ("begin", "join")], True),
        ("4", [("begin", "split"), ("end", "split"), ("begin", "join"), ("end", "join")], False),
    ],
)
def test_a_soak_counts_a_job_as_lost_unless_its_last_stage_ran(
    expected: str | None, notes: list[tuple[str, str]], is_lost: bool
) -> None:
    ledger = [Entry(what, "job", stage, 0, 1, 1, 1.0) for what, stage in notes]
    acknowledged = {"job": Acknowledged("key", expected)}

    assert lost_jobs(acknowledged, ledger, []) == ["job"] * is_lost
    assert lost_jobs(acknowledged, ledger, ["job"]) == []


@pytest.mark.parametrize(("steps", "text"), [((50, 60, 62), ""), ((50, 60, 80), "worker_mib grows: 60.0, then 80.0")])
def test_memory_may_grow_while_a_soak_warms_up_and_must_level_off_then(steps: tuple[float, ...], text: str) -> None:
    samples = [{"worker_mib": float(step)} for step in steps for _ in range(5)]

    assert growth(samples, "worker_mib") == text


@pytest.fixture
def survives_sigterm() -> Iterator[None]:
    """A SIGTERM that nobody handles fails the test instead of ending the process."""

    def fail(*_: object) -> None:
        raise AssertionError("SIGTERM ends the process at once")

    before = signal.signal(signal.SIGTERM, fail)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("survives_sigterm")
def test_a_soak_that_is_terminated_ends_what_it_has_started() -> None:
    ended = []

    async def soak() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("server")
        return 0

    assert run_until_terminated(soak()) == 128 + signal.SIGTERM
    assert ended == ["server"]

"""The section that measures packhorse beside others: what it reads, compares and prints, and that ours takes part."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bench.book import Book
from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.crashing import Crash
from bench.peers.judging import note_crash, note_elsewhere, note_failure, note_speeds
from bench.peers.ledger import Ledger, parsed, rate, repeated
from bench.peers.measuring import Found
from bench.peers.places import commands
from bench.peers.setup import _locked
from bench.sizes import QUICK
from bench.table import printed

ROOT = Path(__file__).parents[1]
OURS, SYNC, PEER, OTHER = (
    next(each for each in CONTENDERS if each.store == "redis" and each.name == name)
    for name in ("packhorse", "packhorse, sync stages", "bullmq", "huey")
)


def speeds(*, drain: float = 1.0, chains: float = 1.0, pick_up: float = 1.0) -> Found:
    return Found(
        submit=1.0,
        drain=drain,
        chains=chains,
        pick_up_p50=pick_up,
        pick_up_p99=1.0,
        memory=1.0,
        size=1.0,
        calls=1.0,
        bulk=None,
    )


def judged(found: dict[Contender, Found]) -> dict[tuple[str, str], tuple[float, str]]:
    """Ratio and verdict of each judged row."""
    book = Book()
    note_speeds(book, "redis", found, "commands")
    return {(row.of, row.name): (row.ratios[0], row.verdict) for row in book.rows if row.bound is not None}


# Reading the ledger.


def test_a_line_that_is_half_written_is_not_read() -> None:
    assert list(parsed(b"1 job 10\n2 first 20\n3 jo")) == [(1, "job", 10), (2, "first", 20)]


def test_a_ledger_reads_on_where_a_line_was_half_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    path.write_bytes(b"1 job 10\n2 jo")
    before = ledger.times("job", range(5))

    with path.open("ab") as file:
        file.write(b"b 20\n1 job 30\n")

    assert before == {1: [10]}
    assert ledger.times("job", range(5)) == {1: [10, 30], 2: [20]}
    assert ledger.times("job", range(2, 5)) == {2: [20]}
    assert ledger.times("end", range(5)) == {}


def test_a_drain_is_counted_from_its_first_line_to_its_last() -> None:
    assert rate({1: [1_000_000_000], 2: [1_500_000_000], 3: [3_000_000_000]}) == 1.0


def test_a_job_with_two_lines_has_run_twice() -> None:
    assert repeated({1: [1], 2: [1, 2], 3: [1, 2, 3]}) == 2


def test_commands_of_a_script_are_counted_and_our_own_question_is_not() -> None:
    stats = {"cmdstat_evalsha": {"calls": 2}, "cmdstat_hset": {"calls": 5}, "cmdstat_info": {"calls": 9}}

    assert commands(stats) == 7


# Judging.


def test_ours_is_compared_with_the_best_peer_of_each_measure() -> None:
    found = judged(
        {
            OURS: speeds(drain=300, chains=800, pick_up=1.0),
            PEER: speeds(drain=200, chains=100, pick_up=2.0),
            OTHER: speeds(drain=100, chains=200, pick_up=4.0),
        }
    )

    assert found == {
        ("packhorse", "drain"): (1.5, "OK"),
        ("packhorse", "3 stages"): (4.0, "OK"),
        ("packhorse", "pick-up p50"): (0.5, "OK"),
    }


def test_what_is_slower_than_one_peer_is_behind() -> None:
    found = judged(
        {
            OURS: speeds(drain=150, chains=700, pick_up=3.0),
            PEER: speeds(drain=200, chains=100, pick_up=2.0),
            OTHER: speeds(drain=100, chains=200, pick_up=4.0),
        }
    )

    assert {row: verdict for row, (_, verdict) in found.items()} == {
        ("packhorse", "drain"): "BEHIND",
        ("packhorse", "3 stages"): "BEHIND",
        ("packhorse", "pick-up p50"): "BEHIND",
    }


def test_our_other_rows_are_compared_with_nobody() -> None:
    assert judged({SYNC: speeds(), PEER: speeds()}) == {}


def test_nothing_is_judged_where_no_peer_was_measured() -> None:
    assert judged({OURS: speeds(), SYNC: speeds()}) == {}


@pytest.mark.parametrize(
    ("crash", "verdicts"),
    [
        (Crash(hit=5, finished=5, twice=0, resumed=1.9), ["OK", "OK", "OK"]),
        (Crash(hit=5, finished=4, twice=0, resumed=None), ["BEHIND", "OK", "BEHIND"]),
        (Crash(hit=5, finished=5, twice=1, resumed=2.1), ["OK", "BEHIND", "BEHIND"]),
    ],
)
def test_after_a_kill_ours_must_finish_all_once_and_soon(crash: Crash, verdicts: list[str]) -> None:
    book = Book()

    note_crash(book, OURS, crash, QUICK)

    assert [row.verdict for row in book.rows if row.bound is not None] == verdicts


def test_without_a_restart_the_time_is_measured_in_leases() -> None:
    book = Book()

    note_elsewhere(book, OURS, Crash(hit=5, finished=5, twice=0, resumed=1.4 * QUICK.lease), QUICK)

    last = book.rows[-1]
    assert (last.of, last.verdict) == ("packhorse, not restarted", "OK")
    assert last.ratios == pytest.approx([1.4])


def test_a_peer_that_loses_jobs_is_shown_and_not_judged() -> None:
    book = Book()

    note_crash(book, PEER, Crash(hit=5, finished=0, twice=0, resumed=None), QUICK)

    assert [(row.name, row.values, row.verdict) for row in book.rows] == [
        ("running", [5], ""),
        ("finished", [0], ""),
        ("run twice to the end", [0], ""),
    ]


def test_a_measurement_of_ours_that_failed_is_behind() -> None:
    book = Book()

    note_failure(book, OURS)
    note_failure(book, PEER)

    assert [row.verdict for row in book.rows] == ["BEHIND", ""]


# Printing.


def test_contenders_are_lines_measures_are_columns_and_what_is_behind_comes_first() -> None:
    book = Book()
    for _ in range(3):
        note_speeds(book, "redis", {OURS: speeds(drain=300), PEER: speeds(drain=200)}, "commands")
    book.remark("peers, Redis", "oban is left out.")
    book.remark("peers, Redis", "oban is left out.")

    table, _, summary = printed(book.rows, book.remarks).partition("SUMMARY: ")

    head, ours, peer, *remarks = table.strip().splitlines()
    assert re.split(r"\s{2,}", head)[:4] == ["PEERS, REDIS", "submit /s", "drain /s", "3 stages /s"]
    assert ours.split()[:3] == ["packhorse", "1", "300"]
    assert peer.split()[:3] == ["bullmq", "1", "200"]
    assert remarks == ["  oban is left out."]
    assert [line.split()[0] for line in summary.splitlines()[1:]] == ["BEHIND", "OK", "OK"]


# Taking part.


def test_every_peer_has_locked_requirements_that_name_no_host() -> None:
    environments = {each.environment for each in CONTENDERS if not each.is_ours}
    lock = json.loads((ROOT / "bench/peers/side/package-lock.json").read_text())

    for name in environments:
        text = _locked(name).read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text
    packages = [each for name, each in lock["packages"].items() if name]
    assert packages
    assert all("integrity" in each and "resolved" not in each for each in packages)


def test_a_contender_that_is_not_there_is_refused() -> None:
    command = [sys.executable, "-m", "bench", "peers", "--only", "celrey"]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)

    assert ran.returncode == 2
    assert "there is no contender 'celrey'" in ran.stderr


@pytest.mark.release
def test_ours_is_measured_on_every_store(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    command = [sys.executable, "-m", "bench", "peers", "--quick", "--rounds", "1", "--json", str(told)]

    ran = subprocess.run([*command, "--only", "packhorse"], cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert ran.returncode == 0, ran.stderr
    rows = json.loads(told.read_text())["rows"]
    measured = {(row["section"], row["name"]) for row in rows if row["of"] == "packhorse"}
    for store in ("Redis", "PostgreSQL", "SQLite"):
        for name in ("submit", "bulk", "drain", "3 stages", "pick-up p50", "p99", "RSS", "queued"):
            assert (f"peers, {store}", name) in measured, ran.stderr
        for name in ("running", "finished", "run twice to the end", "all run again after"):
            assert (f"peers, {store}, kill -9", name) in measured, ran.stderr
    finished = [row for row in rows if row["name"] == "finished"]
    assert len(finished) == 6  # restarted and not, on three stores
    assert all(row["values"] == [QUICK.crashed] for row in finished)

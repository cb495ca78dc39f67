"""Progress and log on their way to the store: the latest word counts, an outage loses little, a flood costs little."""

from __future__ import annotations

import pytest

from packhorse.errors import StoreUnavailable, UnknownOutcome
from packhorse.store.base import Store
from packhorse.worker import reporter as reporters
from packhorse.worker.reporter import LINE, Reporter, Throttle
from tests.contract.builders import ONLY, line, report, sample, started
from tests.contract.stores import Clock
from tests.worker.faulty import Faults

LIMIT = 100
SAMPLES = 5


@pytest.fixture
def reporter(shaky: Store) -> Reporter:
    return Reporter(shaky, log_limit=LIMIT, samples=SAMPLES)


async def current(store: Store, job_id: str) -> float:
    return (await store.progress([job_id]))[job_id][ONLY].current


async def texts(store: Store, job_id: str) -> list[str]:
    return [found.text for found in await store.lines(job_id)]


# Writing


async def test_only_the_latest_report_of_a_task_is_written(store: Store, reporter: Reporter, faults: Faults) -> None:
    first, second = await started(store), await started(store)

    for number in (1.0, 2.0, 3.0):
        reporter.report(report(first, number))
        reporter.report(report(second, 10 * number))
    await reporter.flush()

    [[written]] = faults.args("report")
    assert len(written) == 2
    assert [await current(store, each.job.id) for each in (first, second)] == [3.0, 30.0]


async def test_lines_are_written_in_order_and_once(store: Store, reporter: Reporter) -> None:
    job = (await started(store)).job

    reporter.line(line(job, "one"))
    reporter.line(line(job, "two"))
    await reporter.flush()
    reporter.line(line(job, "three"))
    await reporter.flush()
    await reporter.flush()

    assert await texts(store, job.id) == ["one", "two", "three"]


async def test_samples_are_written_up_to_what_a_job_may_keep(store: Store, reporter: Reporter) -> None:
    job = (await started(store)).job

    for n in range(SAMPLES + 3):
        reporter.sample(sample(job, float(n)))
    await reporter.flush()

    assert [found.at for found in await store.samples(job.id)] == [3.0, 4.0, 5.0, 6.0, 7.0]


async def test_when_there_is_nothing_to_say_the_store_is_not_asked(reporter: Reporter, faults: Faults) -> None:
    await reporter.flush()

    assert faults.calls == []


# An outage


async def test_progress_and_log_are_kept_while_the_store_is_away(
    store: Store, reporter: Reporter, faults: Faults
) -> None:
    claimed = await started(store)
    for call in ("report", "log", "sample"):
        faults.refuse(call, StoreUnavailable)

    reporter.report(report(claimed, 5.0))
    reporter.line(line(claimed.job, "before"))
    reporter.sample(sample(claimed.job, 1.0))
    await reporter.flush()
    reporter.line(line(claimed.job, "after"))
    for _ in range(3):
        await reporter.flush()

    assert await current(store, claimed.job.id) == 5.0
    assert await texts(store, claimed.job.id) == ["before", "after"]
    assert len(await store.samples(claimed.job.id)) == 1


@pytest.mark.parametrize("call", ["report", "log"])
async def test_a_report_from_before_an_outage_does_not_replace_a_newer_one(
    store: Store, reporter: Reporter, faults: Faults, call: str
) -> None:
    claimed = await started(store)
    reporter.report(report(claimed, 1.0))
    reporter.line(line(claimed.job, "text"))

    async def meanwhile() -> None:
        reporter.report(report(claimed, 2.0))
        raise UnknownOutcome

    faults.before(call, meanwhile)
    await reporter.flush()
    await reporter.flush()

    assert await current(store, claimed.job.id) == 2.0


async def test_the_log_does_not_grow_past_its_limit_while_the_store_is_away(
    store: Store, reporter: Reporter, faults: Faults
) -> None:
    job = (await started(store)).job
    faults.refuse("log", StoreUnavailable, times=50)

    for n in range(50):
        reporter.line(line(job, f"{n:010}"))
        await reporter.flush()
    await reporter.flush()

    [last] = faults.args("log")[-1:]
    assert [each.text for each in last[0]] == [f"{n:010}" for n in range(40, 50)]
    assert await texts(store, job.id) == [f"{n:010}" for n in range(40, 50)]


@pytest.mark.parametrize("is_slow", [False, True], ids=["refuses", "does not answer"])
async def test_empty_lines_do_not_pile_up_while_the_store_is_away(
    store: Store, reporter: Reporter, faults: Faults, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    monkeypatch.setattr(reporters, "MOST_LINES", 10)
    job = (await started(store)).job
    faults.refuse("log", StoreUnavailable, times=1)

    for _ in range(50):
        reporter.line(line(job, ""))
    if not is_slow:
        await reporter.flush()

    assert len(reporter._lines) <= (20 if is_slow else 10)


async def test_samples_do_not_grow_past_their_limit_while_the_store_is_away(
    store: Store, reporter: Reporter, faults: Faults
) -> None:
    job = (await started(store)).job
    faults.refuse("sample", StoreUnavailable, times=20)

    for n in range(20):
        reporter.sample(sample(job, float(n)))
        await reporter.flush()
    await reporter.flush()

    [last] = faults.args("sample")[-1:]
    assert [each.at for each in last[0]] == [15.0, 16.0, 17.0, 18.0, 19.0]


# A flood


def test_a_throttle_lets_its_rate_through_and_counts_what_it_held_back() -> None:
    clock = Clock(50.0)
    throttle = Throttle(2 * (5 + LINE), clock)

    admitted = [throttle.admit([text]) for text in ("12345", "67890", "a", "b", "c")]
    clock.forward(0.5)
    admitted.append(throttle.admit(["d"]))

    assert admitted == [["12345"], ["67890"], [], [], [], ["... 3 lines held back ...", "d"]]


def test_a_throttle_does_not_save_up_more_than_one_second() -> None:
    clock = Clock(50.0)
    throttle = Throttle(2 * (5 + LINE), clock)
    clock.forward(3_600.0)

    admitted = [throttle.admit(["12345"]) for _ in range(3)]

    assert admitted == [["12345"], ["12345"], []]


def test_empty_lines_are_not_free() -> None:
    throttle = Throttle(1000, Clock(50.0))

    admitted = [throttle.admit([""] * 100) for _ in range(100)]

    assert sum(map(len, admitted)) <= 1000 / LINE
    assert throttle.remainder() == [f"... {10_000 - 1000 // LINE} lines held back ..."]


def test_a_line_that_is_too_long_does_not_hold_back_a_shorter_one_of_the_same_read() -> None:
    throttle = Throttle(100, Clock(50.0))

    assert throttle.admit(["x" * 100, "short"]) == ["... 1 line held back ...", "short"]


def test_what_was_held_back_at_the_end_is_told_once() -> None:
    throttle = Throttle(3, Clock(50.0))
    throttle.admit(["too long"])
    throttle.admit(["as well"])

    assert throttle.remainder() == ["... 2 lines held back ..."]
    assert throttle.remainder() == []


def test_a_throttle_that_held_nothing_back_says_nothing() -> None:
    throttle = Throttle(100, Clock(50.0))
    throttle.admit(["short"])

    assert throttle.remainder() == []

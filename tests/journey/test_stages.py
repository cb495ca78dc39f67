"""What one stage can do, and what becomes of its job: real workers, real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from packhorse.core.plan import Status
from packhorse.define import File
from packhorse.store.base import Sample
from tests.journey.site import LEASE, Site, is_running, until


async def test_a_job_with_a_file_goes_through_its_three_stages(site: Site) -> None:
    site.start_worker()
    text = site.folder / "in.txt"
    text.write_text("one three fifteen")

    handle = await site.submit("words", text=File(text))
    snapshot = await handle.a_wait(60)

    assert snapshot.status is Status.COMPLETED, site.log_text()
    assert snapshot.result.read_text() == "3,5,7"
    await site.assert_whole()


async def test_a_failed_attempt_is_tried_again(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("fails_at_first", times=2))

    assert job.status is Status.COMPLETED
    assert job.retry_count == 2


async def test_a_stage_that_keeps_failing_ends_with_its_last_error(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("fails_at_first", times=99))

    assert job.status is Status.FAILED
    assert job.error is not None
    assert (job.error.code, job.error.message) == ("EXCEPTION", "RuntimeError: attempt 3 fails")
    assert "stages.py" in (job.error.detail or "")


async def test_a_permanent_error_is_not_tried_again(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("hopeless"))

    assert job.error is not None
    assert job.error.code == "NO_USE"
    assert len([e for e in site.ledger() if e.what == "begin"]) == 1


async def test_later_calls_the_stage_again_without_counting(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("comes_again", flag=str(site.folder / "flag")))

    assert job.status is Status.COMPLETED
    assert [e.attempt for e in site.ledger()] == [1, 1]


@pytest.mark.parametrize(("pipeline", "attempts"), [("too_slow", [1]), ("too_slow_at_first", [1, 2])])
async def test_a_stage_past_its_timeout_is_killed_and_tried_again_if_it_says_so(
    site: Site, pipeline: str, attempts: list[int]
) -> None:
    site.start_worker()

    job = await site.ended(await site.submit(pipeline))

    assert job.error is not None
    assert job.error.code == "TIMEOUT"
    starts = [event.data["attempt"] for event in await site.events(job.id) if event.type == "stage_started"]
    assert starts == attempts
    assert not any(is_running(entry.pid) for entry in site.ledger())


async def test_a_stage_without_progress_is_killed(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("goes_quiet"))

    assert job.error is not None
    assert job.error.code == "STALLED"


async def test_a_stage_that_eats_memory_is_killed(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("greedy"))

    assert job.error is not None
    assert job.error.code == "OUT_OF_MEMORY"


async def test_a_segfault_spends_an_attempt_and_harms_nobody_else(site: Site) -> None:
    site.start_worker()

    crashing, steady = await site.submit("segfault"), await site.submit("fails_at_first", times=0)
    crashed, done = await site.ended(crashing), await site.ended(steady)

    assert crashed.error is not None
    assert (crashed.error.code, "SIGSEGV" in crashed.error.message) == ("CRASHED", True)
    assert done.status is Status.COMPLETED


async def test_a_process_that_exits_without_a_word_is_a_crash(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("silent"))

    assert job.error is not None
    assert (job.error.code, "status 0" in job.error.message) == ("CRASHED", True)


async def test_a_result_that_is_too_large_says_so(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("huge", size=300_000))

    assert job.error is not None
    assert job.error.code == "RESULT_TOO_LARGE"


async def test_what_a_stage_prints_is_its_log_and_it_sees_no_store(site: Site) -> None:
    site.start_worker()
    handle = await site.submit("says", text="hello there")

    await site.ended(handle)

    printed, logged = [line.text for line in await (await site.store()).lines(handle.id)]
    assert printed == "hello there"
    assert logged.endswith("logged hello there")
    assert (await handle.a_wait()).result == "no store to be seen"


async def until_lines(site: Site, job_id: str, count: int) -> list[str]:
    async def look() -> list[str] | None:
        lines = await (await site.store()).lines(job_id)
        return [line.text for line in lines] if len(lines) >= count else None

    found: list[str] = await until(look, 40, lambda: "no log")
    return found


async def test_what_one_job_leaves_unfinished_is_not_found_in_the_log_of_the_next(site: Site) -> None:
    site.start_worker(queues="default=1")

    handles = [await site.submit("leaves_a_line_open", user=f"u{i}", text=f"secret {i}") for i in range(5)]
    for handle in handles:
        await site.ended(handle)

    store = await site.store()
    assert len({(await handle.a_wait()).result for handle in handles}) == 1  # they shared a warm process
    logs = [[line.text for line in await store.lines(handle.id)] for handle in handles]
    assert logs == [[f"secret {i}"] for i in range(5)]


async def test_a_report_that_was_held_back_arrives_even_if_nothing_follows(site: Site) -> None:
    site.start_worker()
    handle = await site.submit("falls_silent")

    async def look() -> str | None:
        reported = (await (await site.store()).progress([handle.id])).get(handle.id, {})
        return next((each.message for each in reported.values() if each.message), None)

    assert await until(look, 40, lambda: "the second report never came") == "the second"
    await handle.a_cancel()
    await site.ended(handle)


async def test_more_than_a_stage_can_be_given_is_refused_at_once(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("fat", elements=80))

    assert job.error is not None
    assert (job.error.code, job.error.stage) == ("ARGUMENTS_TOO_LARGE", "swallow")


async def test_a_line_of_any_length_ends_no_process(site: Site) -> None:
    site.start_worker(queues="side=2")

    job = await site.ended(await site.submit("speaks_at_length"))

    assert (job.status, job.retry_count) == (Status.COMPLETED, 0), job.error


async def test_the_traceback_of_a_failed_stage_is_in_its_log(site: Site) -> None:
    site.start_worker()
    handle = await site.submit("fails_at_first", times=99)

    await site.ended(handle)

    text = [line.text for line in await (await site.store()).lines(handle.id)]
    assert "RuntimeError: attempt 3 fails" in text
    assert any("stages.py" in line for line in text)


async def test_a_flood_of_output_is_bounded_and_counted(tmp_path: Path) -> None:
    site = Site(tmp_path, log_limit="64KB", log_rate="32KB")
    try:
        site.start_worker()
        handle = await site.submit("flood", lines=50_000)

        job = await site.ended(handle)
        lines = await until_lines(site, handle.id, 10)

        assert job.status is Status.COMPLETED
        assert sum(map(len, lines)) <= 64 * 1024
        assert any("lines held back" in line for line in lines)
    finally:
        await site.close()


async def test_a_stage_that_holds_the_gil_keeps_its_lease(site: Site) -> None:
    site.start_worker()

    job = await site.ended(await site.submit("hold_the_gil", seconds=3 * LEASE))

    assert job.status is Status.COMPLETED
    assert [(e.what, e.attempt) for e in site.ledger()] == [("begin", 1), ("end", 1)]


async def test_a_running_stage_is_sampled(site: Site) -> None:
    site.start_worker()
    handle = await site.submit("polite", seconds=4)

    async def look() -> list[Sample] | None:
        return (await (await site.store()).samples(handle.id)) or None

    samples = await until(look, 40, lambda: "no samples")

    assert samples[0].memory > 1024 * 1024
    await handle.a_cancel()
    await site.ended(handle)


async def test_cancel_ends_a_stage_that_ignores_sigterm(site: Site) -> None:
    site.start_worker()
    handle = await site.submit("deaf")
    entry = await site.started(handle)

    await handle.a_cancel()
    job = await site.ended(handle)

    assert job.status is Status.CANCELLED
    assert not is_running(entry.pid)


async def test_cancel_lets_a_stage_tidy_up(site: Site) -> None:
    site.start_worker()
    handle = await site.submit("polite")
    await site.started(handle)

    await handle.a_cancel()
    await site.ended(handle)

    assert [e.what for e in site.ledger()] == ["begin", "tidied"]


async def test_cancel_of_a_pending_job_is_immediate_and_nothing_starts(site: Site) -> None:
    handle = await site.submit("polite")

    snapshot = await handle.a_cancel()

    assert snapshot.status is Status.CANCELLED
    worker = site.start_worker()
    other = await site.submit("fails_at_first", times=0)
    await site.ended(other)
    assert [e.job_id for e in site.ledger()] == [other.id]
    assert worker.poll() is None


async def test_grandchildren_go_with_the_stage(site: Site) -> None:
    site.start_worker()
    handle = await site.submit("parent")
    entry = await site.started(handle)
    grandchild = int(entry.stage.partition(":")[2])

    await handle.a_cancel()
    await site.ended(handle)

    await gone(grandchild)


async def test_grandchildren_in_a_session_of_their_own_go_too(site: Site) -> None:
    site.start_worker()
    handle = await site.submit("parent", detached=True)
    entry = await site.started(handle)
    grandchild = int(entry.stage.partition(":")[2])

    await handle.a_cancel()
    await site.ended(handle)

    await gone(grandchild)


async def gone(pid: int) -> None:
    async def look() -> bool | None:
        return None if is_running(pid) else True

    await until(look, 40, lambda: f"{pid} is still there")


async def test_async_stages_share_a_process(site: Site) -> None:
    site.start_worker(queues="side=10")

    handles = [await site.submit("beside", user=f"u{i}", seconds=0.5) for i in range(5)]
    await asyncio.gather(*(site.ended(handle) for handle in handles))

    results = {(await handle.a_wait()).result for handle in handles}
    assert len(results) == 1


async def test_an_async_stage_may_report_from_a_thread_and_leave_a_line_open(site: Site) -> None:
    site.start_worker(queues="side=10")
    handle = await site.submit("speaks_from_a_thread")

    job = await site.ended(handle)

    store = await site.store()
    assert job.status is Status.COMPLETED, job.error
    assert [line.text for line in await store.lines(handle.id)] == ["no line end"]
    [progress] = (await store.progress([handle.id]))[handle.id].values()
    assert progress.message == "from a thread"


async def test_a_shared_process_that_dies_costs_everyone_in_it_an_attempt_and_they_run_alone_next(site: Site) -> None:
    site.start_worker(queues="side=10")
    deadly = await site.submit("beside", die=True)
    bystander = await site.submit("beside", user="bob", seconds=1.0)

    jobs = [await site.ended(deadly), await site.ended(bystander)]

    assert [job.status for job in jobs] == [Status.COMPLETED] * 2
    assert [job.retry_count for job in jobs] == [1, 1]
    pids = {e.pid for e in site.ledger() if e.attempt == 2}
    assert len(pids) == 2


async def test_neighbours_of_a_stage_that_we_have_to_kill_are_handed_back_uncounted(site: Site) -> None:
    site.start_worker(queues="side=10")
    stubborn = await site.submit("blocks", seconds=30)
    neighbour = await site.submit("beside", user="bob", seconds=3)
    await site.started(stubborn)
    await site.started(neighbour)

    await stubborn.a_cancel()
    cancelled, done = await site.ended(stubborn), await site.ended(neighbour)

    assert cancelled.status is Status.CANCELLED
    assert (done.status, done.retry_count) == (Status.COMPLETED, 0)


async def test_retry_goes_on_at_the_stage_that_failed(site: Site) -> None:
    site.start_worker()
    handle = await site.submit("chain")
    failed = await site.ended(handle)
    Path(f"{site.ledger_path}.mended").touch()

    await handle.a_retry()
    job = await site.ended(handle)

    assert failed.status is Status.FAILED
    assert (job.status, job.run) == (Status.COMPLETED, 2)
    assert [e.stage for e in site.ledger()] == ["first", "second", "second", "third"]
    await site.assert_whole()


async def test_scratch_is_always_removed(site: Site) -> None:
    worker = site.start_worker()
    [own] = await until_there(site.folder / "scratch")
    text = site.folder / "in.txt"
    text.write_text("a bb")
    await site.ended(await site.submit("words", text=File(text)))
    await site.ended(await site.submit("segfault"))

    async def is_empty() -> bool | None:
        return None if list(own.iterdir()) else True

    await until(is_empty, 40, lambda: f"left while the worker lives: {list(own.iterdir())}")
    worker.terminate()
    await asyncio.to_thread(worker.wait, 60)

    assert list((site.folder / "scratch").iterdir()) == []


async def until_there(folder: Path) -> list[Path]:
    async def look() -> list[Path] | None:
        return (list(folder.iterdir()) or None) if folder.exists() else None

    return await until(look, 40, lambda: f"nothing in {folder}")

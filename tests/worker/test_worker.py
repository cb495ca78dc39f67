"""The supervisor in this process, with a store whose claims can be held up."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from packhorse import metrics
from packhorse.core.models import Job
from packhorse.core.plan import Status, TaskStatus
from packhorse.define import Pipeline
from packhorse.define.registry import load
from packhorse.define.submit import Options
from packhorse.errors import SettingError, UnknownOutcome
from packhorse.jobs.health import find_in_store
from packhorse.runtime import Handle
from packhorse.store.base import Claim, Decide
from packhorse.store.collections import workers
from packhorse.store.sqlite import SqliteStore
from packhorse.worker import limits, process
from packhorse.worker.pool import describe
from packhorse.worker.process import Child
from packhorse.worker.worker import Worker
from tests.journey.site import ROOT, Site, until

LEAVES = 0.3
"""Seconds in which a worker that does not wait for its claim has begun to leave."""


class Held(SqliteStore):
    """Answers a claim that found something only when it is told to; what it has committed is committed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_claimed = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        claims = await super().claim(wants, kinds, decide)
        if claims:
            self.has_claimed.set()
            await self.may_answer.wait()
        return claims


async def test_a_claim_under_way_when_the_worker_is_told_to_leave_is_not_stranded(tmp_path: Path) -> None:
    site = Site(tmp_path, drain=0.1, queues="default=1")
    store = Held(tmp_path / "store.db")
    _, blobs = await site.runtime.open()
    handle = await site.submit("polite", seconds=60)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    await store.has_claimed.wait()

    stop.set()
    has_left, _ = await asyncio.wait([running], timeout=LEAVES)
    store.may_answer.set()
    await asyncio.wait_for(running, 60)

    job = await site.job(handle)
    assert not has_left
    assert (job.status, job.retry_count) == (Status.RUNNING, 0)
    assert job.running_tasks() == []
    assert await workers.list_all(store) == []
    await store.close()
    await site.close()


class Unheard(SqliteStore):
    """Tells a watcher once that there is something, and then never again; counts the claims."""

    claims = 0

    async def wait_for_change(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:
        if mark is not None:
            await asyncio.Event().wait()
        return await super().wait_for_change(mark, timeout, is_working=is_working)

    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        self.claims += 1
        return await super().claim(wants, kinds, decide)


async def drained_unheard(folder: Path, jobs: int, slots: int) -> int:
    """So many jobs, submitted before, worked off by a worker that nobody tells anything; how often it claimed."""
    (folder / "both.py").write_text(BOTH)
    site = Site(folder, app=str(folder / "both.py"), queues=f"default={slots}")
    store = Unheard(folder / "store.db")
    _, blobs = await site.runtime.open()
    handles = [await submitted(site, "aside") for _ in range(jobs)]
    stop = asyncio.Event()
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    running = asyncio.create_task(worker.run(stop))
    for handle in handles:
        assert (await site.ended(handle)).status is Status.COMPLETED
    stop.set()
    await running
    await store.close()
    await site.close()
    return store.claims


async def test_a_slot_that_becomes_free_takes_the_next_job_of_a_queue_that_had_more(tmp_path: Path) -> None:
    assert await drained_unheard(tmp_path, jobs=3, slots=1) >= 3


async def test_a_slot_that_becomes_free_asks_for_nothing_in_a_queue_that_was_seen_empty(tmp_path: Path) -> None:
    assert await drained_unheard(tmp_path, jobs=1, slots=2) == 1


APP = """
from packhorse import App

app = App("mine")

@app.job(retries=0)
def work() -> int:
    return 1
"""


async def test_an_app_that_cannot_be_loaded_for_a_while_costs_no_job_an_attempt(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(APP)
    site = Site(tmp_path, app=str(file), queues="default=1")
    store, blobs = await site.runtime.open()
    worker = Worker(store, blobs, site.settings, await describe(str(file)))
    pipeline = load(str(file)).pipelines["work"]
    file.write_text(APP + "oops(")
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    handles = [await site.runtime.a_submit(pipeline, pipeline.params(), Options()) for _ in range(2)]

    async def has_heard() -> bool | None:
        lines = [line.text for handle in handles for line in await store.lines(handle.id)]
        return any("SyntaxError" in line for line in lines) or None

    async def slots() -> list[Mapping[str, int]]:
        return [card.queues for card in await workers.list_all(store)]

    async def has_none() -> bool | None:
        return await slots() == [{"default": 0}] or None

    async def has_one_again() -> bool | None:
        return await slots() == [{"default": 1}] or None

    await until(has_heard, 40, site.log_text)
    await until(has_none, 40, site.log_text)
    meanwhile = [(await site.job(handle)).status for handle in handles]
    file.write_text(APP)
    ended = [await handle.a_wait(60) for handle in handles]
    await until(has_one_again, 40, site.log_text)
    stop.set()
    await running

    assert Status.FAILED not in meanwhile
    assert [(job.status, job.result) for job in ended] == [(Status.COMPLETED, 1)] * 2
    assert [(await site.job(handle)).retry_count for handle in handles] == [0, 0]
    await site.close()


@asynccontextmanager
async def at_work(site: Site) -> AsyncIterator[Worker]:
    """A worker in this process, until it is left."""
    store, blobs = await site.runtime.open()
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop, stop))

    async def is_known() -> bool | None:
        return bool(await workers.list_all(store)) or None

    try:
        await until(is_known, 40, lambda: f"the worker has not started: {running}")
        yield worker
    finally:
        stop.set()
        await asyncio.wait([running])
        await site.close()
    running.result()


@cache
def loaded(app: str) -> Mapping[str, Pipeline[Any]]:
    return load(app).pipelines


async def submitted(site: Site, name: str, options: Options = Options(), **parameters: object) -> Handle[Any]:
    """As by somebody who has loaded the app before it was broken."""
    pipeline = loaded(site.settings.app)[name]
    return await site.runtime.a_submit(pipeline, pipeline.params(**parameters), options)


async def starts(site: Site, handle: Handle[Any]) -> list[str]:
    """The stages that were started, in order."""
    return [event.data["stage"] for event in await site.events(handle.id) if event.type == "stage_started"]


class Reloads:
    """Tries of a worker to load its app again."""

    def __init__(self, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self._reload = worker._pool.reload
        monkeypatch.setattr(worker._pool, "reload", self._counted)

    async def _counted(self) -> None:
        self.count += 1
        await self.may_go_on.wait()
        await self._reload()

    async def reached(self, count: int) -> None:
        async def is_reached() -> bool | None:
            return self.count >= count or None

        await until(is_reached, 30, lambda: f"the app was tried {self.count} times")


LATE = """
import time
from pathlib import Path
from packhorse import App

if Path(__file__).with_name("slow").exists():
    time.sleep(3)
app = App("late")

@app.job(retries=0, timeout=2, stall=2)
def work() -> int:
    return 1
"""


async def test_the_time_it_takes_to_load_the_app_is_not_the_stages(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    site = Site(tmp_path, app=str(tmp_path / "late.py"))
    async with at_work(site):
        (tmp_path / "slow").touch()
        handle = await submitted(site, "work")

        job = await site.ended(handle)

    assert (job.status, job.retry_count) == (Status.COMPLETED, 0)


LIMITED = """
import time
from packhorse import App

app = App("limited")

@app.job(retries=0, timeout="300ms")
def too_slow() -> None:
    time.sleep(60)

@app.job(retries=0, stall="300ms")
def goes_quiet() -> None:
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("pipeline", "outcome", "words", "reason"),
    [
        ("too_slow", "time_out", "timed out after", "TIMEOUT: The stage took longer than its timeout."),
        ("goes_quiet", "stall", "stalled after", "STALLED: The stage reported no progress for too long."),
    ],
)
async def test_a_timeout_and_a_stall_are_outcomes_of_their_own_in_log_metrics_and_stats(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pipeline: str, outcome: str, words: str, reason: str
) -> None:
    (tmp_path / "limited.py").write_text(LIMITED)
    site = Site(tmp_path, app=str(tmp_path / "limited.py"))
    labels = {"pipeline": pipeline, "stage": pipeline, "outcome": outcome}
    async with at_work(site):
        await site.ended(await submitted(site, pipeline))
    store = await SqliteStore.open(tmp_path / "store.db")
    counted = {tally.name: count for tally, count in await store.list_tallies(60, 0.0, queue="default")}
    await store.close()

    [line] = [line for line in caplog.text.splitlines() if reason in line]
    assert words in line
    assert metrics.REGISTRY.get_sample_value("packhorse_attempts_ended_total", labels) == 1
    assert counted[outcome] == 1
    assert "fail" not in counted


HANGING = """
import time
from packhorse import App

app = App("hanging")

@app.job(retries=0, timeout="300ms")
def hang() -> None:
    time.sleep(600)
"""


async def test_a_process_that_cannot_be_killed_loses_its_lease_and_keeps_its_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    site = Site(tmp_path, app=str(tmp_path / "hanging.py"), queues="default=1")
    signal_group, deaf = process._signal_group, list[int]()
    monkeypatch.setattr(process, "KILL_WAIT", 0.2)
    monkeypatch.setattr(process, "_signal_group", lambda pid, _number: deaf.append(pid))  # as in the state D
    _, blobs = await site.runtime.open()
    store = await SqliteStore.open(tmp_path / "store.db")
    worker, stop = Worker(store, blobs, site.settings, await describe(site.settings.app)), asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    try:
        job = await site.ended(await submitted(site, "hang"))
        lost, slots = worker.lost_slots(), worker.slots()

        async def is_reported() -> bool | None:
            [card] = await workers.list_all(store)
            return card.lost == 1 or None

        await until(is_reported, 40, lambda: "the card does not tell")
        findings = {each.name: each for each in await find_in_store(store, site.settings)}
        monkeypatch.undo()
        signal_group(deaf[0], signal.SIGKILL)

        async def is_free() -> bool | None:
            return worker.slots() == [("default", 0, 1)] or None

        await until(is_free, 40, lambda: "the slot is still taken")
    finally:
        monkeypatch.undo()
        stop.set()
        await running
        await store.close()
        await site.close()

    assert job.error is not None
    assert job.error.code == "TIMEOUT"
    assert (lost, slots, worker.lost_slots()) == (1, [("default", 1, 1)], 0)
    assert f"process {deaf[0]} does not end after SIGKILL" in caplog.text
    found = findings[f"worker {worker.card.id}"]
    assert not found.is_ok
    assert "1 slot lost" in found.meaning


async def test_a_system_without_processes_costs_no_job_an_attempt_and_does_not_end_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    (tmp_path / "mine.py").write_text(APP)
    site = Site(tmp_path, app=str(tmp_path / "mine.py"))
    async with at_work(site) as worker:
        reloads = Reloads(worker, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", no_process)
            handle = await submitted(site, "work")
            await reloads.reached(2)
            meanwhile = await starts(site, handle)

        job = await site.ended(handle)

    assert (job.status, job.retry_count) == (Status.COMPLETED, 0)
    assert meanwhile == ["work"]


BOTH = """
import os
import time
from pathlib import Path
from packhorse import App

app = App("both")

@app.job
def alone(flag: str = "") -> int:
    while flag and not Path(flag).exists():
        time.sleep(0.01)
    return os.getpid()

@app.job
async def aside() -> int:
    return os.getpid()

@app.job(memory="10GiB")
async def measured() -> int:
    return os.getpid()
"""


@pytest.mark.parametrize(("warm", "waiting"), [("alone", "aside"), ("aside", "alone"), ("aside", "measured")])
async def test_a_stage_is_not_claimed_for_a_process_that_cannot_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: str, waiting: str
) -> None:
    file = tmp_path / "both.py"
    file.write_text(BOTH)
    site = Site(tmp_path, app=str(file), queues="default=2")
    async with at_work(site) as worker:
        reloads = Reloads(worker, monkeypatch)
        before = await site.ended(await submitted(site, warm))
        file.write_text("oops(")
        handle = await submitted(site, waiting)
        await reloads.reached(3)
        meanwhile = await starts(site, handle), (await site.ended(await submitted(site, warm))).status
        file.write_text(BOTH)
        job = await site.ended(handle)

    assert before.status is Status.COMPLETED
    assert meanwhile == ([waiting], Status.COMPLETED)
    assert (job.status, job.retry_count) == (Status.COMPLETED, 0)


async def test_who_is_warm_works_while_the_app_is_being_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, flag = tmp_path / "both.py", tmp_path / "flag"
    file.write_text(BOTH)
    site = Site(tmp_path, app=str(file), queues="default=2")
    async with at_work(site) as worker:
        reloads = Reloads(worker, monkeypatch)
        reloads.may_go_on.clear()
        first = await submitted(site, "alone", flag=str(flag))

        async def is_running() -> bool | None:
            return bool(worker._pool.busy()) or None

        await until(is_running, 40, site.log_text)
        file.write_text("oops(")
        second = await submitted(site, "alone")
        await reloads.reached(1)
        flag.touch()
        ended = [await site.ended(handle) for handle in (first, second)]
        tried = reloads.count
        reloads.may_go_on.set()

    assert [job.status for job in ended] == [Status.COMPLETED] * 2
    assert tried == 1


async def test_a_stage_whose_memory_is_limited_shares_its_process_with_nobody(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text(BOTH)
    site = Site(tmp_path, app=str(tmp_path / "both.py"))
    async with at_work(site):
        pids = [(await (await submitted(site, name)).a_wait(60)).result for name in ("aside", "aside", "measured")]

    assert pids[0] == pids[1] != pids[2]


async def test_a_cancel_that_comes_before_an_attempt_has_settled_in_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "START_PERIOD", 1.0)
    monkeypatch.setenv("JOURNEY_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    site = Site(tmp_path, lease=600, queues="default=2")  # no renewal comes to the rescue
    async with at_work(site) as worker:
        old = await site.submit("polite", seconds=600)

        async def has_settled_in() -> bool | None:
            return bool(limits.past_start(worker._running.values())) or None

        await until(has_settled_in, 40, site.log_text)
        young = await site.submit("polite", seconds=600)
        await site.started(young)
        await young.a_cancel()

        job = await site.ended(young)

        assert job.status is Status.CANCELLED
        assert (await site.job(old)).status is Status.RUNNING


CHAIN = """
import time
from pathlib import Path
from packhorse import App, Context, Params, needs

app = App("chains")

class Notes(Params):
    notes: str
    flag: str = ""

chain = app.pipeline("chain", Notes)
other = app.pipeline("other", Notes)

def noted(p: Notes, what: str) -> int:
    with open(p.notes, "a") as file:
        file.write(what + "\\n")
    return 1

@chain.stage
def one(ctx: Context, p: Notes) -> int:
    noted(p, "one")
    while p.flag and not Path(p.flag).exists():
        time.sleep(0.01)
    return 1

@chain.stage
def two(ctx: Context, p: Notes, before: int = needs(one)) -> int:
    return noted(p, "two")

@chain.stage
def three(ctx: Context, p: Notes, before: int = needs(two)) -> int:
    return noted(p, "three")

@other.stage
def urgent(ctx: Context, p: Notes) -> int:
    return noted(p, "urgent")
"""


class Chains:
    """A place with one slot, and what the stages have noted there."""

    def __init__(self, folder: Path) -> None:
        self.notes, self.flag = folder / "notes", folder / "flag"
        (folder / "chains.py").write_text(CHAIN)
        self.site = Site(folder, app=str(folder / "chains.py"), queues="default=1")

    async def submit(self, name: str, priority: int = 0, flag: str = "") -> Handle[Any]:
        return await submitted(self.site, name, Options(priority=priority), notes=str(self.notes), flag=flag)

    def noted(self) -> list[str]:
        return self.notes.read_text().split()

    async def at_stage_one(self) -> Handle[Any]:
        """A job whose first stage waits for the flag."""
        handle = await self.submit("chain", flag=str(self.flag))

        async def is_at_it() -> bool | None:
            return self.notes.exists() or None

        await until(is_at_it, 40, self.site.log_text)
        return handle


async def test_a_chain_in_one_queue_costs_a_version_per_stage_and_two(tmp_path: Path) -> None:
    chains = Chains(tmp_path)
    async with at_work(chains.site):
        job = await chains.site.ended(await chains.submit("chain"))

    assert (job.status, job.version) == (Status.COMPLETED, 5)
    assert chains.noted() == ["one", "two", "three"]


async def test_a_more_urgent_job_of_another_kind_is_not_overtaken_by_a_chain(tmp_path: Path) -> None:
    chains = Chains(tmp_path)
    async with at_work(chains.site):
        chain = await chains.at_stage_one()
        urgent = await chains.submit("other", priority=5)
        chains.flag.touch()
        ended = [await chains.site.ended(handle) for handle in (chain, urgent)]

    assert [job.status for job in ended] == [Status.COMPLETED] * 2
    assert chains.noted() == ["one", "urgent", "two", "three"]


async def test_a_worker_that_drains_begins_no_further_stage_of_a_chain(tmp_path: Path) -> None:
    chains = Chains(tmp_path)
    store, blobs = await chains.site.runtime.open()
    worker = Worker(store, blobs, chains.site.settings, await describe(chains.site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    handle = await chains.at_stage_one()

    stop.set()

    async def is_draining() -> bool | None:
        return worker.is_draining or None

    await until(is_draining, 40, chains.site.log_text)
    chains.flag.touch()
    await running

    assert chains.noted() == ["one"]
    assert await starts(chains.site, handle) == ["one"]
    assert [stage.status for stage in (await chains.site.job(handle)).stages] == [
        TaskStatus.COMPLETED,
        TaskStatus.PENDING,
        TaskStatus.PENDING,
    ]
    await chains.site.close()


async def test_a_claim_whose_answer_is_lost_costs_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    store, blobs = await site.runtime.open()
    claim, lost = store.claim, 0

    async def losing(*asked: Any) -> list[Claim]:
        nonlocal lost
        found = await claim(*asked)
        if found and not lost:
            lost += 1
            raise UnknownOutcome
        return found

    monkeypatch.setattr(store, "claim", losing)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))

    job = await site.ended(await site.submit("says", text="once"))  # which has no attempt to spare
    stop.set()
    await running
    await site.close()

    assert lost == 1
    assert job.status is Status.COMPLETED
    assert job.retry_count == 0


async def test_a_clock_that_jumps_makes_the_worker_delete_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, lease=20)
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    ahead, sweeps = 0.0, 0
    store = await SqliteStore.open(site.folder / "store.db", lambda: time.time() + ahead)
    _, blobs = await site.runtime.open()
    purgeable = store.purgeable

    async def counting(limit: int) -> list[Job]:
        nonlocal sweeps
        sweeps += 1
        return await purgeable(limit)

    monkeypatch.setattr(store, "purgeable", counting)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    handle = await site.submit("says", text="once")
    await site.ended(handle)

    ahead, seen = 1000 * 86_400.0, sweeps

    async def has_swept() -> bool | None:
        return sweeps > seen + 2 or None

    await until(has_swept, 60, site.log_text)
    job = await site.job(handle)
    stop.set()
    await running
    await store.close()
    await site.close()

    assert job.purge_at is not None
    assert job.purge_at < time.time() + ahead
    assert not job.is_purging


async def test_a_sample_that_fails_does_not_end_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    store, blobs = await site.runtime.open()
    measured, calls = limits._measure, 0

    def failing_first(children: list[Child]) -> dict[Child, tuple[float, int]]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("the process table is on fire")
        return measured(children)

    monkeypatch.setattr(limits, "_measure", failing_first)
    monkeypatch.setattr(limits, "SAMPLE", 0.05)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    await site.submit("polite", seconds=60)

    async def is_sampled_again() -> bool | None:
        assert not running.done()
        return calls > 2 or None

    await until(is_sampled_again, 40, site.log_text)
    stop.set()
    await running
    await site.close()


async def test_processes_are_not_looked_at_for_stages_that_are_over_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "both.py").write_text(BOTH)
    site = Site(tmp_path, app=str(tmp_path / "both.py"))
    store, blobs = await site.runtime.open()
    looks = 0

    def measured(_: list[Child]) -> dict[Child, tuple[float, int]]:
        nonlocal looks
        looks += 1
        return {}

    monkeypatch.setattr(limits, "_measure", measured)
    monkeypatch.setattr(limits, "SAMPLE", 0.001)
    monkeypatch.setattr(limits, "START_PERIOD", 60.0)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))

    for _ in range(10):
        await site.ended(await submitted(site, "aside"))

    assert looks == 0
    stop.set()
    await running
    await site.close()


async def test_scratch_folders_are_for_their_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(APP)
    site = Site(tmp_path, app=str(tmp_path / "mine.py"))
    mask = os.umask(0o022)
    try:
        async with at_work(site) as worker:
            folders = [Path(site.settings.scratch), Path(worker.card.scratch)]
            modes = [stat.S_IMODE(folder.stat().st_mode) for folder in folders]
    finally:
        os.umask(mask)

    assert modes == [0o700, 0o700]


async def test_a_worker_says_which_stages_it_has_code_for(tmp_path: Path) -> None:
    site = Site(tmp_path)
    store, blobs = await site.runtime.open()
    described = await describe(site.settings.app)

    worker = Worker(store, blobs, site.settings, described)

    assert set(worker.card.kinds) == described.kinds
    await site.close()


async def test_a_queue_that_no_stage_uses_is_refused_by_name(tmp_path: Path) -> None:
    site = Site(tmp_path)
    store, blobs = await site.runtime.open()
    settings = replace(site.settings, queues={"onxn": 2})

    with pytest.raises(SettingError, match="'onxn'"):
        Worker(store, blobs, settings, await describe(site.settings.app))

    await site.close()

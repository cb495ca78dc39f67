"""A paused queue: nothing more of it is started, what runs runs on, and the others are not held up."""

from __future__ import annotations

from pathlib import Path

from packhorse.core.plan import Status, TaskStatus
from packhorse.store.collections.queues import Pause, drop_pause, put_pause
from tests.journey.site import Site, until
from tests.worker.test_worker import at_work, starts, submitted

APP = """
import time
from pathlib import Path
from packhorse import App, Context, Params, needs

app = App("mine")

class Flag(Params):
    flag: str = ""

two = app.pipeline("two", Flag)

@two.stage(queue="slow")
def first(ctx: Context, p: Flag) -> int:
    while p.flag and not Path(p.flag).exists():
        time.sleep(0.01)
    return 1

@two.stage(queue="slow")
def second(ctx: Context, p: Flag, n: int = needs(first)) -> int:
    return n + 1

@app.job(queue="quick")
def quick() -> int:
    return 1
"""


def site_of(folder: Path) -> Site:
    (folder / "mine.py").write_text(APP)
    return Site(folder, app=str(folder / "mine.py"))


async def test_a_paused_queue_is_left_alone_until_it_is_resumed(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    store = await site.store()
    await put_pause(store, Pause("slow", store.now(), "me"))
    held = await submitted(site, "two")
    async with at_work(site):
        passing = await site.ended(await submitted(site, "quick"))
        meanwhile = await starts(site, held)

        await drop_pause(store, "slow")
        job = await site.ended(held)

    assert (passing.status, job.status) == (Status.COMPLETED, Status.COMPLETED)
    assert meanwhile == []


async def test_a_queue_that_is_paused_while_it_is_served_starts_nothing_more(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    store = await site.store()
    async with at_work(site) as worker:
        under_way = await submitted(site, "two", flag=str(tmp_path / "go"))

        async def runs() -> bool | None:
            return await starts(site, under_way) == ["first"] or None

        async def is_heeded() -> bool | None:
            return "slow" in worker._slots.paused or None

        async def is_through() -> bool | None:
            return (await site.job(under_way)).stage("first").status is TaskStatus.COMPLETED or None

        await until(runs, 40, site.log_text)
        await put_pause(store, Pause("slow", store.now(), "me"))
        await until(is_heeded, 40, site.log_text)
        (tmp_path / "go").touch()
        await until(is_through, 40, site.log_text)
        await site.ended(await submitted(site, "quick"))
        meanwhile = await starts(site, under_way)

        await drop_pause(store, "slow")
        job = await site.ended(under_way)

    assert meanwhile == ["first"]
    assert job.status is Status.COMPLETED

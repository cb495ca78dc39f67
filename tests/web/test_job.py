"""The page of a job: watched as it moves, and everything that can be done with it, done."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from packhorse.client import Client
from packhorse.core.models import Failure
from packhorse.factory import open_store
from packhorse.store.base import Claim, Store
from tests.contract import builders
from tests.contract.builders import HOUR, each, plan, stage
from tests.http.processes import ROOT, Server, until
from tests.tiers import is_release, sampled
from tests.web.browser import aside, check_access, person
from tests.web.shown import HOSTILE, LOOKS, Gated, open_all, shown

LONG_TASKS = """
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) window.tasks.push(Math.round(each.duration));
}).observe({type: "longtask"});
"""
"""A long task is one of at least 50 ms."""

T = TypeVar("T")

BOX = "document.getElementById('log-box')"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("job")
    with shown(folder, promote_to=f"kept=file://{folder / 'kept'}") as server:
        yield server


def test_it_moves_without_a_reload(page: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path)
    job.reaches("prepare")
    page.goto(f"/jobs/{job.id}")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    row = page.locator("#stage-prepare")
    expect(row.locator(".told")).to_have_text("1 of 4 ready to go")

    job.open(1)

    expect(row.locator(".status")).to_contain_text("completed")
    expect(page.locator("#stage-finish_up .told")).to_have_text("1 of 2 half way")
    expect(page.locator("#log")).to_contain_text("finishing")

    job.open(2)

    expect(page.locator("h1 .status")).to_contain_text("completed")
    expect(page.locator("#result")).to_contain_text('"done": 1')
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(page.locator("#facts-title + div")).to_contain_text("Expires")
    assert [url for url in asked if url.endswith(job.id)] == []  # what has changed was sent
    page.locator("#events > summary").click()
    expect(page.locator("#events tbody tr").first).to_contain_text("Completed")


@pytest.mark.parametrize("number", sampled(range(len(HOSTILE))))
def test_hostile_text_that_comes_live_is_text(page: Page, client: Client, tmp_path: Path, number: int) -> None:
    job = Gated(client, tmp_path, note=HOSTILE[number])
    page.goto(f"/jobs/{job.id}")
    job.ends()

    expect(page.locator("#log .line").last).to_have_text(f"finishing {HOSTILE[number]}".strip())

    expect(page.locator("h1 .status")).to_contain_text("completed")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script").count() == 0


def test_a_stream_that_is_lost_as_the_job_ends_costs_no_line_of_its_log(
    page: Page, client: Client, tmp_path: Path
) -> None:
    job = Gated(client, tmp_path)
    page.route("**/live?*", lambda route: route.abort())
    page.goto(f"/jobs/{job.id}")
    job.ends()

    expect(page.locator("#log .line").last).to_have_text("finishing")
    expect(page.locator("h1 .status")).to_contain_text("completed")
    expect(page.locator("#link")).to_be_hidden()


def test_a_stream_that_stays_silent_costs_no_line_of_the_log(page: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path)
    page.clock.install()
    page.route("**/live?*", lambda _route: None)  # neither answered nor refused
    page.goto(f"/jobs/{job.id}")
    job.ends()
    page.clock.fast_forward(60_000)

    expect(page.locator("#log .line").last).to_have_text("finishing")
    expect(page.locator("h1 .status")).to_contain_text("completed")


def test_a_refresh_in_the_middle_loses_nothing(page: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path, lines=5)
    job.reaches("prepare")
    page.goto(f"/jobs/{job.id}")
    expect(page.locator("#log li")).to_have_count(5)

    page.reload()
    expect(page.locator("#log li")).to_have_count(5)
    job.ends()

    expect(page.locator("h1 .status")).to_contain_text("completed")
    texts = ["preparing 0", "preparing 1", "preparing 2", "preparing 3", "preparing 4", "finishing"]
    expect(page.locator("#log .line")).to_have_text(texts)


def test_it_is_cancelled(page: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path)
    job.reaches("prepare")
    page.goto(f"/jobs/{job.id}")

    page.get_by_role("button", name="Cancel").click()

    expect(page.locator("h1 .status")).to_contain_text("cancelled")
    expect(page.locator("#stage-prepare .status")).to_contain_text("cancelled")
    expect(page.locator("#stage-finish_up .status")).to_contain_text("not started")
    expect(page.locator("#stage-finish_up .told")).to_have_text("Not started: the job was cancelled")
    assert client.get(job.id)["status"] == "cancelled"


def test_a_failed_one_says_why_and_is_retried_from_a_stage(page: Page, client: Client, tmp_path: Path) -> None:
    mend = tmp_path / "mended"
    job = Gated(client, tmp_path, mend=str(mend))
    job.ends()
    page.goto(f"/jobs/{job.id}")
    expect(page.locator("#error")).to_have_text("NO_LUCK in finish_up: It is broken.")

    mend.touch()
    expect(page.get_by_role("button", name="Retry from finish_up")).to_be_visible()
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Run again").select_option("from finish_up")
    page.get_by_role("button", name="Run again").click()

    expect(page.locator(".said")).to_have_text("Retry started (run 2).")
    expect(page.locator("h1 .status")).to_contain_text("completed")
    assert [client.get(job.id)["stages"][name]["attempt"] for name in ("prepare", "finish_up")] == [0, 1]
    page.locator("#events > summary").click()
    expect(page.locator("#events")).to_contain_text("Retry started (run 2)")


def test_one_that_failed_was_not_at_its_end(page: Page, client: Client) -> None:
    job = client.wait(client.submit("nearly", {"count": 1}, user="near")["job_id"])
    assert (job["status"], 0 < job["progress"] < 100, 0 < job["stage_progress"] < 100) == ("failed", True, True)

    page.goto(f"/jobs/{job['job_id']}")
    assert float(page.locator("#stage-end progress").get_attribute("value") or 0) == job["stage_progress"]
    expect(page.locator("#stage-end .told")).to_have_text("0 of 1, 1 failed")
    page.goto("/jobs?user_id=near")

    expect(page.locator("tbody tr")).to_contain_text("So near.")


def test_elements_side_by_side_take_no_longer_than_their_job(page: Page, client: Client) -> None:
    job = client.wait(client.submit("nearly", {"count": 12}, user="ann")["job_id"])

    page.goto(f"/jobs/{job['job_id']}")

    columns = page.locator(".stages thead th").all_inner_texts()
    cells = page.locator("#stage-end").locator("th, td").all_inner_texts()
    told = dict(zip(columns, cells, strict=True))
    assert seconds(told["Waited"]) + seconds(told["Took"]) <= job["duration_ms"] / 1000 + 0.2


def seconds(told: str) -> float:
    """Of a short time as the page tells it."""
    value, unit = told.split()
    return float(value) * {"ms": 0.001, "s": 1.0}[unit]


def test_what_is_refused_is_said_where_it_was_asked(page: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path)
    job.ends()
    page.goto(f"/jobs/{job.id}")
    client.delete(client.wait(client.submit("add", {"a": 1}, user="ann")["job_id"])["job_id"])

    page.get_by_text("More", exact=True).click()
    page.evaluate("document.querySelector('#from').options[0].value = 'nowhere'")
    page.get_by_role("button", name="Run again").click()

    expect(page.get_by_role("alert")).to_contain_text("There is no stage")
    expect(page).to_have_url(f"{client.url}/jobs/{job.id}")


def test_it_is_deleted_after_a_question(page: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path)
    job.ends()
    page.goto(f"/jobs/{job.id}")

    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Delete").click()
    expect(page.locator("main")).to_contain_text(job.id)
    check_access(page)
    page.get_by_role("link", name="Cancel").click()
    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Delete").click()
    page.get_by_role("button", name="Delete 1 job").click()

    expect(page).to_have_url(f"{client.url}/jobs")
    assert job.id not in [each["job_id"] for each in client.list()["items"]]


def test_its_result_is_promoted(page: Page, client: Client, running: Server) -> None:
    job = client.wait(client.submit("media", {}, user="ann")["job_id"])
    page.goto(f"/jobs/{job['job_id']}")

    page.get_by_text("More", exact=True).click()
    page.get_by_role("button", name="Promote").click()

    expect(page.locator(".said")).to_have_text("7 files promoted.")
    assert (running.place.folder / "kept" / "jobs" / job["job_id"] / "output").is_dir()


def test_the_log_is_searched_and_shown_of_one_stage(page: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path, lines=12)
    job.ends()
    page.goto(f"/jobs/{job.id}")
    expect(page.locator("#log li:visible")).to_have_count(13)

    search = page.get_by_role("searchbox", name="Search")
    search.fill("PREPARING 1")
    expect(page.locator("#log li")).to_have_count(3)
    expect(page.locator("#found")).to_have_text("3 lines")
    search.fill("")
    page.get_by_role("search").get_by_label("Stage").select_option("finish_up")

    expect(page.locator("#log .line")).to_have_text(["finishing"])
    expect(page).to_have_url(f"{client.url}/jobs/{job.id}?stage=finish_up")
    page.reload()
    expect(page.locator("#log .line")).to_have_text(["finishing"])

    whole = page.request.get(f"/jobs/{job.id}/log.txt")
    assert whole.headers["content-type"].startswith("text/plain")
    assert [each.rstrip() for each in whole.text().splitlines()] == [
        *(f"preparing {n}" for n in range(12)),
        "finishing",
    ]


def test_the_log_is_followed_and_only_its_end_is_kept_in_view(page: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path, lines=300)
    job.reaches("prepare")
    page.goto(f"/jobs/{job.id}")
    expect(page.locator("#log li")).to_have_count(300)

    until(lambda: page.evaluate(f"{BOX}.scrollTop + {BOX}.clientHeight >= {BOX}.scrollHeight - 1"), 30)
    page.evaluate(f"{BOX}.scrollTop = 0")
    latest = page.get_by_role("button", name="Jump to latest")
    expect(latest).to_be_visible()

    job.open(1)

    expect(page.locator("#log li").last).to_contain_text("finishing")
    assert page.evaluate(f"{BOX}.scrollTop") == 0
    latest.click()
    expect(latest).to_be_hidden()
    assert page.evaluate(f"{BOX}.scrollTop + {BOX}.clientHeight >= {BOX}.scrollHeight - 1")
    job.ends()
    expect(page.locator("h1 .status")).to_contain_text("completed")


def test_ten_thousand_elements_change_in_place_and_each_can_be_looked_at(page: Page, running: Server) -> None:
    wide = plan(stage("split"), stage("page", each("split"), elements=10_000))
    page.add_init_script("setInterval = () => 0")  # each ten seconds the page looks where a job that waits stands
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    async def begin(store: Store) -> str:
        return (await builders.split(store, 10_000, wide)).id

    async def advance(store: Store) -> None:
        first, *rest = await builders.claim(store, 20, lease=HOUR)
        await builders.fail(store, first, Failure("BAD_IMAGE", "It is torn."))
        for claim in rest:
            await builders.finish(store, claim)

    async def hurry(store: Store) -> None:
        claims = await builders.claim(store, 20, lease=HOUR)
        await asyncio.gather(*(ended_after(store, claim, n / 20) for n, claim in enumerate(claims)))

    job_id = in_store(running, begin)
    page.goto(f"/jobs/{job_id}")
    grid = page.locator(".cells")
    expect(grid).to_have_attribute("aria-label", "Elements of page: 10,000 pending")

    in_store(running, advance)

    done = "Elements of page: 19 completed, 1 waiting for its retry, 9,980 pending"
    expect(grid).to_have_attribute("aria-label", done)
    expect(page.locator("#stage-page .status")).to_have_text("running")
    assert [url for url in asked if url.endswith(job_id)] == [page.url]
    grid.click(position={"x": 4, "y": 4})
    expect(page.locator("#element")).to_contain_text("BAD_IMAGE")
    page.locator("#element").get_by_role("link", name="Next").click()
    expect(page.locator("#element")).to_contain_text("page[1] completed")
    check_access(page)
    if is_release():  # on a busy machine it tells nothing
        check_tasks_are_short(page, lambda: in_store(running, hurry), grid)


def in_store(running: Server, act: Callable[[Store], Awaitable[T]]) -> T:
    """Do what a worker would do."""

    async def with_store() -> T:
        store = await open_store(running.place.settings.store)
        try:
            return await act(store)
        finally:
            await store.close()

    return aside(lambda: asyncio.run(with_store()))


async def ended_after(store: Store, claim: Claim, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await builders.finish(store, claim)


def check_tasks_are_short(page: Page, act: Callable[[], object], grid: Locator) -> None:
    """No task of the browser takes 50 ms while it draws twenty changes of a second. A busy machine adds some: one round
    of five without any shows that none is needed.
    """
    page.evaluate(LONG_TASKS)
    found = []
    for _ in range(5):
        before = grid.get_attribute("aria-label") or ""
        page.evaluate("window.tasks = []")
        act()
        expect(grid).not_to_have_attribute("aria-label", before)
        found.append(page.evaluate("window.tasks"))
        if not found[-1]:
            return
    raise AssertionError(f"tasks of so many ms: {found}")


def test_what_takes_its_time_has_an_estimate_from_runs_before(page: Page, client: Client, tmp_path: Path) -> None:
    Gated(client, tmp_path).ends()
    until(lambda: client.estimate(client.submit("steps", {}, user="ann")["job_id"])["runs"] > 0, 60)
    later = tmp_path / "later"
    later.mkdir()
    job = Gated(client, later)
    job.reaches("prepare")

    page.goto(f"/jobs/{job.id}")

    expect(page.locator("#left")).to_be_visible()
    job.ends()
    expect(page.locator("h1 .status")).to_contain_text("completed")
    expect(page.locator("#left")).to_have_count(0)


def test_a_job_that_waits_says_why(page: Page, client: Client) -> None:
    job_id = client.submit("add", {"a": 1}, user="ann", delay=3600)["job_id"]

    page.goto(f"/jobs/{job_id}")

    expect(page.locator("h1 .status")).to_contain_text("pending")
    expect(page.locator(".reasons")).to_contain_text("add is not due before")
    expect(page.locator(".reasons code")).to_have_text("add")


def test_the_commands_to_copy_submit_the_same_again(page: Page, client: Client, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    (tmp_path / "it's; a, file.txt").write_text("hello")
    source = tmp_path / "it's; a, file.txt"
    first = client.submit("media", {"note": 'it\'s "quoted" $HOME'}, files={"source": source}, user="ann o'x")
    client.wait(first["job_id"])
    page.goto(f"/jobs/{first['job_id']}")

    texts = {}
    for name in ("curl", "Python", "CLI"):
        page.get_by_text(f"as {name}", exact=True).click()
        page.locator(f"#copy-{name}").get_by_role("button", name="Copy").click()
        expect(page.locator(f"#copy-{name} button")).to_have_text("Copied")
        texts[name] = page.evaluate("navigator.clipboard.readText()")
    scripts = Path(sys.executable).parent
    environment = {"PATH": f"{scripts}:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for command in (texts["curl"], f"python -c {shlex.quote(texts['Python'])}", texts["CLI"]):
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, check=True, timeout=120)

    found = client.list(user="ann o'x")["items"]
    assert [each["parameters"] for each in found] == [first["parameters"]] * 4
    assert [each["inputs"][0]["sha256"] for each in found] == [first["inputs"][0]["sha256"]] * 4


@pytest.mark.parametrize("look", sampled(LOOKS))
def test_it_can_be_used_by_everybody(
    browser: Browser, running: Server, client: Client, tmp_path: Path, look: str
) -> None:
    failed = client.wait(client.submit("fail", {"message": "x" * 300}, user="ann")["job_id"])["job_id"]
    made = client.wait(client.submit("media", {}, user="ann")["job_id"])["job_id"]
    active = Gated(client, tmp_path)
    active.reaches("prepare")

    with person(browser, running.url, **LOOKS[look]) as page:
        for path in (active.id, failed, made, f"{made}/share", f"{made}/delete"):
            page.goto(f"/jobs/{path}")
            open_all(page)
            check_access(page)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    active.ends()

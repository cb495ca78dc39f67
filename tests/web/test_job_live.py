"""What viewers of a job are sent while it changes, and what that costs the server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from packhorse.auth.access import LOCAL
from packhorse.blobs.local import Folder
from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.core.plan import Backoff, Tolerance
from packhorse.http.services import HttpServices
from packhorse.settings import Settings
from packhorse.store.base import Claim, Store
from packhorse.web import broadcast, sections
from packhorse.web.picture import Picture
from packhorse.web.sections import Rights
from tests.contract import builders
from tests.contract.builders import line, plan, stage
from tests.http.conftest import place, store  # noqa: F401  fixtures


class Server:
    """What a broadcast needs of one, in the event loop of the test."""

    def __init__(self, store: Store, folder: Path) -> None:  # noqa: F811
        self.services = HttpServices(Settings(keyless=True), store, Folder(folder))
        self.feed = self.services.feed

    def view(self, job_id: str, shape: str = "", allowed: frozenset[str] = LOCAL.allowed) -> Any:
        return broadcast.frames(self.services, job_id, Rights("", allowed), 0, shape)


@pytest.fixture
async def server(store: Store, tmp_path: Path) -> AsyncIterator[Server]:  # noqa: F811
    server = Server(store, tmp_path)
    reading = asyncio.create_task(server.feed.run())
    yield server
    reading.cancel()


async def told(stream: Any, type: str) -> dict[str, Any]:
    """The next message of that type."""
    async for frame in stream:
        if frame.startswith(f"event: {type}\n".encode()):
            return cast(dict[str, Any], json.decode(frame.split(b"data: ", 1)[1]))
    raise AssertionError(f"no {type}")


async def together(stream: Any, *types: str) -> dict[str, Any]:
    """What messages say until there was one of each type."""
    seen: dict[str, Any] = {}
    missing = set(types)
    async for frame in stream:
        if frame.startswith(b"event: "):
            type, _, data = frame.decode().removeprefix("event: ").partition("\ndata: ")
            seen |= json.decode(data.encode())
            missing.discard(type)
        if not missing:
            return seen
    raise AssertionError(f"no {missing}")


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, *names: str) -> Counter[str]:
    """How often each method is called."""
    calls: Counter[str] = Counter()

    def counted(name: str, method: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return await method(*args, **options)

        return call

    for name in names:
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return calls


async def test_a_viewer_gets_the_state_and_then_only_what_differs(server: Server, store: Store) -> None:  # noqa: F811
    job = await builders.split(store, 200)
    claims = await builders.claim(store, 3)
    stream = server.view(job.id)

    state = await told(stream, "state")
    await builders.finish(store, claims[1])
    await store.log([line(job, "INFO done", task=claims[1].task)], keep=1000)
    delta = await told(stream, "delta")
    while "lines" not in delta:
        delta |= await told(stream, "delta")

    assert state["cells"] == {"page": "3r197p"}
    assert delta["cells"] == {"page": [[1, "c"]]}
    assert delta["stages"].keys() == {"page"}
    assert delta["lines"][0][1:] == ["00:00:01", "page", 1, "info", [["", "INFO done"]]]
    assert "shape" not in delta
    assert len(json.encode(delta)) < 400
    await stream.aclose()


async def test_any_number_of_viewers_cost_one_reader(
    server: Server,
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when a stage ends: each gets the parts of the page that this changes, made once."""
    job = await builders.split(store, 2)
    claims = await builders.claim(store, 2)
    streams = [server.view(job.id) for _ in range(500)]
    for stream in streams:
        await told(stream, "state")
    calls = count_calls(monkeypatch, store, "get", "events", "lines", "snapshot", "progress")
    monkeypatch.setattr(sections, "render_parts", counted_parts := CountedParts())

    await builders.finish(store, claims[0])
    await builders.finish(store, claims[1])
    found = [await told(stream, "parts") for stream in streams]

    assert all(each == found[0] for each in found)
    assert "is-completed" in found[0]["rows"]["page"]
    assert calls.total() < 30
    assert calls["snapshot"] <= 2
    assert len(counted_parts.calls) <= 2
    for stream in streams:
        await stream.aclose()
    assert not broadcast._BROADCASTS.get(server.services)


class CountedParts:
    def __init__(self) -> None:
        self.calls: list[Rights] = []
        self._render = sections.render_parts

    def __call__(self, told: dict[str, Any], rights: Rights, names: Iterable[str]) -> dict[str, str]:
        self.calls.append(rights)
        return self._render(told, rights, names)


async def test_parts_show_what_a_viewer_may_do(server: Server, store: Store) -> None:  # noqa: F811
    claim = await builders.started(store)
    streams = [server.view(claim.job.id, allowed=frozenset(each)) for each in (("read",), ("read", "submit"))]
    for stream in streams:
        await told(stream, "state")

    await builders.fail(store, claim)
    read, submit = [(await told(stream, "parts"))["parts"] for stream in streams]

    assert "/retry" in submit["head"]
    assert "/retry" not in read["head"]
    assert "It can never work." in read["state"]
    for stream in streams:
        await stream.aclose()


async def test_a_page_that_is_older_than_the_state_gets_all_its_parts(server: Server, store: Store) -> None:  # noqa: F811
    job = await builders.split(store, 3)
    stream, current = server.view(job.id, shape="1.pending..ppp"), server.view(job.id)

    seen = await together(stream, "state", "parts")
    again = server.view(job.id, shape=seen["shape"])
    await told(again, "state")
    await builders.claim(store)
    fresh = await told(again, "parts")

    assert seen["parts"].keys() == set(sections.PARTS)
    assert seen["rows"].keys() == {"split", "page", "book"}
    assert 'data-cells="3p"' in seen["parts"]["elements"]
    assert fresh["shape"] != seen["shape"]
    for each in (stream, current, again):
        await each.aclose()


async def test_a_change_of_one_element_does_not_read_the_others(
    server: Server,
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broadcast, "STEADY", 3600.0)
    job = await builders.split(store, 50)
    claims = await builders.claim(store, 4)
    [running] = await store.get([job.id])
    stream = server.view(job.id, shape=Picture(cast(Job, running), {}).shape)
    await told(stream, "state")
    calls = count_calls(monkeypatch, broadcast.Broadcast, "_read", "_send_parts")

    for claim in claims[1:]:
        await builders.finish(store, claim)
        assert (await told(stream, "delta"))["cells"] == {"page": [[claim.task.element, "c"]]}

    assert not calls
    await stream.aclose()


async def test_the_stream_ends_with_the_job_and_its_last_lines(server: Server, store: Store) -> None:  # noqa: F811
    claim = await builders.started(store)
    stream = server.view(claim.job.id)
    await told(stream, "state")

    await store.log([line(claim.job, "the end")], keep=1000)
    await builders.finish(store, claim)

    seen = await together(stream, "end")
    assert seen["lines"][-1][5] == [["", "the end"]]
    assert seen["shape"].startswith("1.completed.")
    assert seen["title"] == "convert completed"
    assert "/result" in seen["parts"]["head"]
    assert "data-live" not in seen["parts"]["state"]


# The picture of a job


def same(picture: Picture, other: Picture, now: float) -> None:
    assert picture.state({}, now) == other.state({}, now)
    assert picture.cells() == other.cells()


@pytest.mark.parametrize("seed", range(6))
async def test_events_tell_as_much_as_reading_all_of_the_job(store: Store, seed: int) -> None:  # noqa: F811
    """Elements start, report, end, fail, are tried again, postponed and left out, in any order."""
    luck = Random(seed)
    fan = plan(
        stage("split"),
        stage("page", builders.each("split"), tolerate=Tolerance(most=5), retries=2, backoff=Backoff(0.0, 0.0)),
        stage("book", builders.gather("page")),
    )
    job = await builders.split(store, 12, fan)
    picture, running, taken = Picture(job, {}), list[Any](), 0
    for _ in range(60):
        running += await builders.claim(store, luck.randint(0, 3))
        if running:
            claim = running.pop(luck.randrange(len(running)))
            if luck.random() < 0.5:
                await store.report([builders.report(claim, luck.randint(0, 100), at=store.now())])
            act = luck.choice(ACTS)
            await act(store, claim)
        [job] = cast(list[Job], await store.get([job.id]))
        reported = (await store.progress([job.id])).get(job.id, {})
        if picture.take(await store.events(job.id, after=picture.n)):
            taken += 1
            picture.report(reported)
        else:
            picture = Picture(job, reported)
        same(picture, Picture(job, reported), store.now())
        if job.status.is_terminal:
            break
    assert taken > 5


async def broken(store: Store, claim: Claim) -> None:  # noqa: F811
    await builders.fail(store, claim, builders.BROKEN)


async def postponed(store: Store, claim: Claim) -> None:  # noqa: F811
    await settled(store, claim, lambda job, now: lifecycle.later(job, claim.task, token=claim.token, now=now))


async def left_out(store: Store, claim: Claim) -> None:  # noqa: F811
    await settled(
        store, claim, lambda job, now: lifecycle.skip(job, claim.task, token=claim.token, reason="blank", now=now)
    )


async def settled(store: Store, claim: Claim, verb: Callable[[Job, float], Change]) -> None:  # noqa: F811
    await builders.settled(store, claim.job.id, lambda job: verb(job, store.now()))


ACTS: Sequence[Callable[[Store, Claim], Awaitable[object]]] = (
    *(builders.finish, builders.finish, builders.finish, builders.fail, broken, postponed, left_out),
)


async def test_a_viewer_that_does_not_keep_up_gets_no_message_behind_a_lost_one() -> None:
    viewer = broadcast.Viewer(Rights("", frozenset()))
    for n in range(broadcast.UNSENT + 1):
        viewer.put(b"%d" % n)
    read = [await viewer.next() for _ in range(10)]

    viewer.put(b"late")
    while (frame := await viewer.next()) is not None:
        read.append(frame)

    assert read == [b"%d" % n for n in range(broadcast.UNSENT)]

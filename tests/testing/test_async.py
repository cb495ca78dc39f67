"""A bench serves async tests as well as plain ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from packhorse import Context
from packhorse.testing import Bench
from tests.testing.pipelines import Convert, Split, add, convert, poll, split, words


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """A server in the event loop of the test."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_job_runs_inside_an_async_test(packhorse: Bench, params: Convert) -> None:
    job = await packhorse.a_run(convert, params, user="ann")

    assert job.status == "completed"
    assert job.result.read_bytes() == b"model checked quantised"


async def test_a_stage_can_talk_to_a_server_in_the_loop_of_the_test(packhorse: Bench) -> None:
    async with served() as port:

        async def fetch(ctx: Context, p: Split) -> list[str]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            said = await reader.read()
            writer.close()
            await writer.wait_closed()
            return [said.decode()]

        packhorse.replace(words, lambda ctx, p: asyncio.run(fetch(ctx, p)))

        job = await packhorse.a_run(split, Split(text=""))

    assert job.result == 5


async def test_plain_calls_work_in_an_async_test_too(packhorse: Bench) -> None:
    packhorse.replace(add, lambda ctx, params: asyncio.run(asyncio.sleep(0, 7)))
    packhorse.fail(add)

    assert packhorse.call(add, 1).result == 7
    assert packhorse.call(poll, "http://a").result == "http://a"
    packhorse.pass_time("8d")


async def test_two_runs_at_once_take_turns(packhorse: Bench) -> None:
    inside = 0

    def count(ctx: Context, p: Split) -> list[str]:
        nonlocal inside
        inside += 1
        assert inside == 1
        threading.Event().wait(0.01)
        inside -= 1
        return []

    packhorse.replace(words, count)

    jobs = await asyncio.gather(*(packhorse.a_run(split, Split(text="")) for _ in range(3)))

    assert [job.attempts_of(words) for job in jobs] == [1, 1, 1]


async def test_the_loop_of_the_test_is_left_alone(packhorse: Bench) -> None:
    loop = asyncio.get_running_loop()

    await packhorse.a_run(split, Split(text="a"))

    assert asyncio.get_event_loop() is loop

"""A background role goes on for ever, whatever one of its steps runs into."""

from __future__ import annotations

import asyncio

import pytest

from packhorse.background.loop import run_forever
from packhorse.errors import BlobUnavailable, StoreUnavailable
from packhorse.log import trace_id


class Steps:
    """Goes through what it is told to do, and then says that it is through."""

    def __init__(self, *steps: Exception | float) -> None:
        self._steps = list(steps)
        self.taken = 0
        self.is_through = asyncio.Event()

    async def tick(self) -> float:
        self.taken += 1
        if not self._steps:
            self.is_through.set()
            return 3_600.0
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.background.loop.AFTER_FAILURE", 0.0)


async def test_a_failed_step_does_not_end_a_duty() -> None:
    duty = Steps(StoreUnavailable(), 0.0, BlobUnavailable(reason="away"), OSError("no space"), 0.0)

    keeping = asyncio.create_task(run_forever(duty))
    await asyncio.wait_for(duty.is_through.wait(), 30.0)
    keeping.cancel()

    assert duty.taken == 6


async def test_a_bug_is_told_with_its_place_and_ends_no_duty(caplog: pytest.LogCaptureFixture) -> None:
    duty = Steps(KeyError("a bug"), 0.0)

    keeping = asyncio.create_task(run_forever(duty))
    await asyncio.wait_for(duty.is_through.wait(), 30.0)
    keeping.cancel()

    assert duty.taken == 3
    [told] = caplog.records
    assert "a bug" in told.getMessage()
    assert told.exc_info is not None


async def test_a_task_may_say_how_long_to_wait_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Patient(Steps):
        after_failure = 0.0

    monkeypatch.setattr("packhorse.background.loop.AFTER_FAILURE", 3_600.0)
    task = Patient(StoreUnavailable())

    keeping = asyncio.create_task(run_forever(task))
    await asyncio.wait_for(task.is_through.wait(), 30.0)
    keeping.cancel()

    assert task.taken == 2


async def test_a_duty_can_be_ended() -> None:
    keeping = asyncio.create_task(run_forever(Steps(3_600.0)))
    await asyncio.sleep(0)

    keeping.cancel()

    with pytest.raises(asyncio.CancelledError):
        await keeping


async def test_every_step_has_a_trace_of_its_own() -> None:
    class Traced(Steps):
        traces: list[str] = []  # noqa: RUF012

        async def tick(self) -> float:
            self.traces.append(trace_id())
            return await super().tick()

    duty = Traced(0.0, OSError("no space"))
    keeping = asyncio.create_task(run_forever(duty))
    await duty.is_through.wait()
    keeping.cancel()

    assert len({each for each in duty.traces if len(each) == 32}) == 3
    assert trace_id() == ""

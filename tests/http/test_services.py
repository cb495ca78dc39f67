"""What goes on beside the requests."""

from __future__ import annotations

import asyncio

import pytest

from packhorse.http import services


async def test_a_loop_that_stumbles_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(services, "AFTER_FAILURE", 0.0)
    goes_on, times = asyncio.Event(), 0

    async def stumbling() -> None:
        nonlocal times
        times += 1
        if times < 3:
            raise ValueError("a stone")
        goes_on.set()
        await asyncio.Event().wait()

    kept = asyncio.create_task(services._run_forever(stumbling))
    await asyncio.wait_for(goes_on.wait(), 40)
    kept.cancel()

    assert times == 3
    assert caplog.text.count("will be retried: ValueError('a stone')") == 2

"""Submits one job as a process of its own, and dies at a crash point if it is told to. Prints the job's id."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from packhorse.define import File
from packhorse.define.submit import Options
from packhorse.runtime import Runtime
from packhorse.settings import load
from tests.journey import stages
from tests.journey.worker_process import hang


async def main() -> None:
    runtime = Runtime(load().settings)
    await runtime.open()
    if "JOURNEY_CRASH" in os.environ:
        point, _, number = os.environ["JOURNEY_CRASH"].partition(":")
        hang(point, int(number))
    params = stages.Words(text=File(Path(sys.argv[1])))
    handle = await runtime.a_submit(stages.words, params, Options(user="ann"))
    sys.stdout.write(handle.id)


if __name__ == "__main__":
    asyncio.run(main())

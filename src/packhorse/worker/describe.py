"""What an app defines, read by a child process: the supervisor never imports user code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

from msgspec import Struct

from packhorse.core import json
from packhorse.core.plan import Definition
from packhorse.core.schedules import Declared
from packhorse.errors import DefinitionError
from packhorse.host import child_environment
from packhorse.worker.pool import may_share
from packhorse.worker.process import START, wait_at_most


class Description(Struct, frozen=True):
    definitions: Sequence[Definition]
    queues: Mapping[str, frozenset[str]]
    """What kinds of stages use each queue."""
    sharing: frozenset[str] = frozenset()
    """The kinds that run side by side in one process."""
    files: tuple[str, ...] = ()
    """Of all modules that were loaded with the app, ours and Python's included."""
    schedules: Sequence[Declared] = ()

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset().union(*self.queues.values())


class _Reply(Struct):
    definitions: list[Definition] = []
    schedules: list[Declared] = []
    files: tuple[str, ...] = ()
    error: str | None = None


async def describe(app: str) -> Description:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "packhorse.worker.child",
        "describe",
        app,
        stdout=asyncio.subprocess.PIPE,
        env=child_environment(),
    )
    try:
        async with asyncio.timeout(START):
            out, _ = await process.communicate()
    except TimeoutError:
        raise DefinitionError(f"{app} took longer than {START:.0f} s to load.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await wait_at_most(process.wait(), 1.0)  # this waits for whoever has its output as well
    reply = json.decode(out, _Reply) if out else _Reply(error=f"{app} ended the process that loads it.")
    if reply.error is not None:
        raise DefinitionError(reply.error)
    if not reply.definitions:
        raise DefinitionError(f"{app} defines no pipeline: add one with app.pipeline(...) or @app.job.")
    plans = [json.plan_from(definition.plan) for definition in reply.definitions]
    stages = [stage for plan in plans for stage in plan.stages]
    queues = sorted({stage.queue for stage in stages})
    return Description(
        reply.definitions,
        {queue: frozenset(stage.kind for stage in stages if stage.queue == queue) for queue in queues},
        frozenset(stage.kind for stage in stages if may_share(stage)),
        reply.files,
        reply.schedules,
    )

"""Simulated stages: the pipelines of a simulation, and children that run them in place of processes.

The pool, and everything above it, is the real one. A child is a machine of its own: it runs on while its worker is
stopped, it dies with its worker, and it can die alone.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import psutil
from msgspec.structs import replace

from lab.loop import Loop, Machine
from packhorse.core import json
from packhorse.core.limits import Fair, Limit
from packhorse.core.plan import TERMINAL, Backoff, Definition, Need, Plan, StagePlan, Tolerance, fingerprint
from packhorse.core.schedules import Declared, Terms
from packhorse.worker.child import messages
from packhorse.worker.pool import Description, Pool, may_share
from packhorse.worker.process import Call, ChildDied, Listener, Then

QUEUE = "default"
LOADING = 0.2
"""Seconds in which a child loads the app."""


# Pipelines.


def _stage(name: str, *needs: Need, pipeline: str, retries: int = 2, **options: Any) -> StagePlan:
    return StagePlan(
        name,
        QUEUE,
        f"{pipeline}.{name}",
        needs,
        retries=retries,
        backoff=Backoff(0.5, 2.0),
        timeout=20.0,
        **options,
    )


def _plan(pipeline: str, *stages: StagePlan, **options: Any) -> Plan:
    bare = Plan(pipeline, stages, **options)
    return replace(bare, fingerprint=fingerprint(bare))


def _needs(stage: str) -> Need:
    return Need(stage, stage, "needs")


LIMITS = (
    Limit("limited.page.user", "user", 2),
    Limit("limited.page.tenant.per_second", "tenant", 3, 1.0),
    Limit("shared", "", 3),
)


PLANS = {
    plan.pipeline: plan
    for plan in (
        _plan("single", _stage("only", pipeline="single", retries=0)),
        _plan(
            "chain",
            _stage("first", pipeline="chain"),
            _stage("second", _needs("first"), pipeline="chain", is_async=True),
            _stage("third", _needs("second"), pipeline="chain"),
            slot="chain",
        ),
        _plan(
            "fan",
            _stage("split", pipeline="fan"),
            _stage("page", Need("split", "split", "each"), pipeline="fan"),
            _stage("book", Need("page", "page", "gather"), pipeline="fan"),
        ),
        _plan(
            "scan",
            _stage("split", pipeline="scan"),
            _stage("page", Need("split", "split", "each"), pipeline="scan", tolerate=Tolerance(share=0.5)),
            _stage("mark", Need("page", "page", "each"), pipeline="scan"),
            _stage("book", Need("page", "page", "gather"), Need("mark", "mark", "gather"), pipeline="scan"),
        ),
        _plan(
            "pair",
            _stage("left", pipeline="pair", is_async=True),
            _stage("right", pipeline="pair"),
            _stage("both", _needs("left"), _needs("right"), pipeline="pair"),
            _stage("either", _needs("left"), _needs("right"), pipeline="pair", optional=("left",)),
            slot="pair",
            on_conflict="queue",
        ),
        _plan("latest", _stage("only", pipeline="latest"), slot="latest", on_conflict="replace"),
        _plan(
            "limited",
            _stage("split", pipeline="limited", fair=Fair("user")),
            _stage("page", Need("split", "split", "each"), pipeline="limited", limits=LIMITS, fair=Fair("user")),
        ),
        _plan("nightly", _stage("only", pipeline="nightly", retries=1)),
    )
}
SUBMITTED = ("single", "chain", "fan", "scan", "pair", "latest", "limited")
SCHEDULE = "every-minute"


def plans_kept_for(keep: float) -> dict[str, Plan]:
    """The pipelines, with jobs that are kept for so many seconds."""
    plans = [replace(plan, keep=dict.fromkeys(sorted(TERMINAL), keep)) for plan in PLANS.values()]
    return {plan.pipeline: replace(plan, fingerprint=fingerprint(replace(plan, fingerprint=""))) for plan in plans}


def describe(keep: float) -> Description:
    """What a child says that the app defines."""
    plans = list(plans_kept_for(keep).values())
    stages = [stage for plan in plans for stage in plan.stages]
    definitions = [Definition("lab", plan.pipeline, json.encode(plan), b"{}", plan.fingerprint) for plan in plans]
    terms = Terms("nightly", b'{"luck":1}', "* * * * *", overlap="queue", misfire="catch_up")
    return Description(
        definitions,
        {QUEUE: frozenset(stage.kind for stage in stages)},
        frozenset(stage.kind for stage in stages if may_share(stage)),
        (),
        [Declared(SCHEDULE, terms)],
    )


# Children.


class World(Protocol):
    """What a child needs of the simulation."""

    loop: Loop

    def new_child(self, worker: Machine) -> Machine: ...

    def stage_began(self, child: Machine, run: messages.Run) -> None: ...

    def may_kill(self, child: Machine) -> bool: ...


class SimPool(Pool):
    """The real pool without the guard process and without the search for orphans."""

    async def open(self) -> None:
        self._opened = time.monotonic()

    async def _end_orphans(self) -> bool:
        return False

    def _sweep_soon(self) -> None: ...


class SimChild:
    """Stands in for `packhorse.worker.process.Child`."""

    world: World
    _count = itertools.count(1)

    def __init__(self, worker: Machine, machine: Machine, is_shared: bool) -> None:
        self._worker = worker
        self.machine = machine
        self.is_shared = is_shared
        self.calls: dict[int, Call] = {}
        self.runs = 0
        self.owner = ""
        self.mark = ""
        self.memory = 0
        self.is_ending = False
        self.has_ended = asyncio.Event()
        self._numbers = itertools.count(1)

    def __hash__(self) -> int:
        return self.machine.number

    @classmethod
    async def start(
        cls, app: str, *, shared: bool, log: Callable[[str], None], mark: str, born: Callable[[Any], None], user: object
    ) -> SimChild:
        del app, log, mark, user
        worker = cls.world.loop.current
        child = cls(worker, cls.world.new_child(worker), shared)
        born(child)
        await asyncio.sleep(LOADING)
        return child

    @property
    def pid(self) -> int:
        return self.machine.number

    @property
    def is_warm(self) -> bool:
        return not self.is_ending and not self.has_ended.is_set()

    def number(self) -> int:
        return next(self._numbers)

    def run(self, message: messages.Run, listener: Listener, then: Then | None = None) -> Call:
        call = Call(message.call, listener, then)
        self.calls[call.number] = call
        self.runs += 1
        self.world.loop.spawn(self.machine, self._work(message))
        return call

    def send(self, message: messages.Run | messages.Stop) -> None:
        """A shared child ends the call that it is asked to stop."""
        if isinstance(message, messages.Stop):
            stopped = messages.Raised(message.call, "STOPPED", "stopped", False, "")
            self.world.loop.call_on(self._worker, 0.05, self._receive, stopped)

    async def end(self, grace: float) -> None:
        self.is_ending = True
        await asyncio.sleep(min(grace, 0.1))
        self._die()

    def tree(self) -> list[psutil.Process]:
        return []

    def _die(self) -> None:
        """Seen from the worker."""
        self.world.loop.kill(self.machine)
        self.has_ended.set()
        calls, self.calls = list(self.calls.values()), {}
        for call in calls:
            call.end(ChildDied("was killed"))

    def _receive(self, message: messages.FromChild) -> None:
        """On the worker's machine."""
        if isinstance(message, messages.Ready | messages.Broken) or message.call not in self.calls:
            return
        call = self.calls[message.call]
        match message:
            case messages.Moved():
                call.listener.on_progress(message)
            case messages.Made():
                call.listener.on_artifact(message)
            case messages.Said():
                call.listener.on_lines([message.text])
            case messages.Returned() | messages.Raised() | messages.Postponed() | messages.Skipped():
                del self.calls[message.call]
                call.end(message)

    def _tell(self, message: messages.FromChild) -> None:
        self.world.loop.call_on(self._worker, 0.001, self._receive, message)

    async def _work(self, run: messages.Run) -> None:
        """A stage. Its parameters are the seed of what it does; under another token it does something else."""
        world = self.world
        world.stage_began(self.machine, run)
        given: dict[str, Any] = json.decode(run.parameters.value)
        rng = random.Random(f"{given['luck']} {run.scratch.rpartition('/')[2]}")
        await asyncio.sleep(rng.random() * given.get("seconds", 1.0))
        if rng.random() < 0.3:
            self._tell(messages.Moved(run.call, 1.0, 2.0, "half"))
            self._tell(messages.Said(run.call, "a line"))
        if world.may_kill(self.machine):
            world.loop.call_on(self._worker, 0.01, self._die)
            return
        await asyncio.sleep(rng.random() * given.get("seconds", 1.0))
        self._tell(self._outcome(run, rng, given.get("trouble", 0.0)))

    def _outcome(self, run: messages.Run, rng: random.Random, trouble: float) -> messages.FromChild:
        luck = rng.random()
        if luck < trouble:
            return messages.Raised(run.call, "EXCEPTION", f"it broke {luck:.3f}", luck < trouble / 5, "")
        if luck < trouble * 1.2:
            return messages.Postponed(run.call, 1.0 + 3.0 * rng.random())
        if run.kind.endswith(".left") and luck > 0.9:
            return messages.Skipped(run.call, "nothing to do")
        if run.kind.endswith(".split"):
            count = 1 + int(3 * rng.random())
            return messages.Returned(run.call, messages.Document(json.encode(list(range(count)))), count)
        if rng.random() < 0.5:
            return messages.Returned(run.call, messages.Document(b'"done"'), None)
        return messages.Returned(run.call, _with_file(Path(run.scratch)), None, has_scratch=True)


def _with_file(scratch: Path) -> messages.Document:
    scratch.mkdir(parents=True, exist_ok=True)
    path = scratch / "out.txt"
    path.write_bytes(scratch.name.encode())
    return messages.Document(b'{"$file":0}', ((str(path), path.name),))

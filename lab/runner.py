"""Runs simulations side by side, each in a process of its own, and makes failing ones smaller."""

from __future__ import annotations

import gc
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from lab import clock
from lab.simulation import Outcome, Scenario, simulate

T = TypeVar("T")
LONGEST = 120.0
"""Seconds after which a simulation is given up."""


def encode(scenario: Scenario) -> str:
    return msgspec.json.encode(scenario).decode()


def decode(text: str) -> Scenario:
    return msgspec.json.decode(text, type=Scenario)


class _Process:
    """A simulation in a forked process: nothing of it is left in this one."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.began = clock.real_time()
        self._text = b""
        sys.stdout.flush()
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            _run(scenario, write)
        os.close(write)
        self.fd = read

    def read(self) -> bool:
        """Whether there is all of it."""
        piece = os.read(self.fd, 1 << 20)
        self._text += piece
        return not piece

    def outcome(self) -> Outcome:
        self._close()
        return msgspec.json.decode(self._text, type=Outcome) if self._text else self._failed("its process died")

    def give_up(self) -> Outcome:
        os.kill(self.pid, signal.SIGKILL)
        self._close()
        return self._failed(f"it took longer than {LONGEST:.0f} s")

    def _close(self) -> None:
        os.close(self.fd)
        os.waitpid(self.pid, 0)

    def _failed(self, why: str) -> Outcome:
        seconds = clock.real_time() - self.began
        return Outcome(self.scenario, (f"LAB: {why}",), "", 0, 0, 0.0, seconds, 0, 0, ())


def _run(scenario: Scenario, fd: int) -> None:
    """Never returns."""
    code = 1
    try:
        gc.disable()  # the order of finalizers must not depend on when it runs
        sys.unraisablehook = lambda _: None  # coroutines of dead machines have no loop to end in
        found = msgspec.json.encode(simulate(scenario))
        while found:
            found = found[os.write(fd, found) :]
        code = 0
    except BaseException:  # broad: this process must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(code)


def run_all(scenarios: Iterable[Scenario], side_by_side: int) -> Iterator[Outcome]:
    """The outcomes, as they come. Scenarios are taken one by one, when there is room."""
    waiting = iter(scenarios)
    running: dict[int, _Process] = {}
    is_more = True
    with selectors.DefaultSelector() as selector:
        try:
            while running or is_more:
                while is_more and len(running) < side_by_side:
                    scenario = next(waiting, None)
                    if scenario is None:
                        is_more = False
                        break
                    process = _Process(scenario)
                    running[process.fd] = process
                    selector.register(process.fd, selectors.EVENT_READ)
                ended = [running[key.fd] for key, _ in selector.select(1.0) if running[key.fd].read()]
                late = [each for each in running.values() if clock.real_time() - each.began > LONGEST]
                for process in {each.fd: each for each in [*ended, *late]}.values():
                    selector.unregister(process.fd)  # before it is closed: forked processes have it open, too
                    del running[process.fd]
                    yield process.outcome() if process in ended else process.give_up()
        finally:
            for process in running.values():  # the caller has seen enough
                process.give_up()


# Shrinking.


def shrink(outcome: Outcome, seconds: float, side_by_side: int) -> Outcome:
    """The same finding with fewer faults, jobs and workers, as far as that time reaches."""
    return _Shrinker(outcome, clock.real_time() + seconds, side_by_side).shrink()


class _Shrinker:
    def __init__(self, outcome: Outcome, until: float, side_by_side: int) -> None:
        self._best = outcome
        self._until = until
        self._side_by_side = side_by_side

    def shrink(self) -> Outcome:
        if self._try([replace(self._best.scenario, only=tuple(each.place for each in self._best.struck))]):
            before = -1
            while before != (before := _size(self._best)) and clock.real_time() < self._until:
                self._fewer(lambda: [each.place for each in self._best.struck], lambda kept: {"only": tuple(kept)})
                self._fewer(lambda: self._best.scenario.jobs, lambda kept: {"jobs": tuple(kept)})
                workers = self._best.scenario.workers
                self._try([replace(self._best.scenario, workers=n) for n in range(1, workers)])
        return self._best

    def _try(self, scenarios: Iterable[Scenario]) -> bool:
        """Keep the first of these that still fails in the same way."""
        for outcome in run_all(scenarios, self._side_by_side):
            if clock.real_time() > self._until:
                return False
            if outcome.invariant == self._best.invariant:
                self._best = outcome
                return True
        return False

    def _fewer(self, parts: Callable[[], Sequence[T]], with_parts: Callable[[list[T]], dict[str, object]]) -> None:
        """Leave out halves, then quarters, down to single ones."""
        size = max(1, len(parts()) // 2)
        while parts() and clock.real_time() < self._until:
            found, best = list(parts()), self._best.scenario
            smaller = [found[:at] + found[at + size :] for at in range(0, len(found), size)]
            is_smaller = self._try(replace(best, **with_parts(kept)) for kept in smaller)  # type: ignore[arg-type]
            if not is_smaller:
                if size == 1:
                    return
                size //= 2
            size = min(size, max(1, len(parts()) // 2))


def _size(outcome: Outcome) -> int:
    return len(outcome.struck) + len(outcome.scenario.jobs) + outcome.scenario.workers

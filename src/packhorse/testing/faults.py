"""What a test has arranged to go wrong, to look at or to stand in for a stage, by the attempt it is meant for."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypedDict, TypeVar

from packhorse.define.stages import Stage

T = TypeVar("T")

Hook = Callable[[str], object]
"""Is given the id of the job."""


class Mishap(Enum):
    """What befalls an attempt instead of its stage."""

    CRASH = "its process dies"
    LOSE = "its worker dies"
    STALL = "it says nothing more and does not end"
    TIME_OUT = "it goes on reporting and does not end"


class Moment(Enum):
    BEFORE = "begun, not called yet"
    DURING = "reported so many times"
    AFTER = "settled"


class Attempts(TypedDict, total=False):
    """Which attempts at a stage are meant."""

    times: int | None
    """The next so many, None for all of them. Default: 1."""
    element: int | None
    """Only those at this element, counted from 0, of a stage that runs once per element. Default: at any."""


class Rule(Generic[T]):
    def __init__(self, what: T, stage: Stage[..., Any], *, times: int | None = 1, element: int | None = None) -> None:
        self.what = what
        self._kind = stage.plan.kind
        self._element = element
        self._left = times

    def applies(self, kind: str, element: int) -> bool:
        """Whether it is for this attempt; if so, it is used up by one."""
        if self._kind != kind or self._element not in (None, element) or self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        return True


class Script:
    def __init__(self) -> None:
        self._mishaps: list[Rule[Mishap | BaseException]] = []
        self._hooks: list[tuple[Moment, int, Rule[Hook]]] = []
        self._stand_ins: dict[str, Callable[..., Any]] = {}

    def add_mishap(self, rule: Rule[Mishap | BaseException]) -> None:
        self._mishaps.append(rule)

    def mishap(self, kind: str, element: int) -> Mishap | BaseException | None:
        """The first that was arranged for such an attempt and is not used up."""
        return next((rule.what for rule in self._mishaps if rule.applies(kind, element)), None)

    def add_hook(self, moment: Moment, reports: int, rule: Rule[Hook]) -> None:
        self._hooks.append((moment, reports, rule))

    def hooks(self, moment: Moment, reports: int, kind: str, element: int) -> list[Hook]:
        return [
            rule.what
            for when, after, rule in self._hooks
            if (when, after) == (moment, reports) and rule.applies(kind, element)
        ]

    def stand_in(self, stage: Stage[..., Any], function: Callable[..., Any]) -> None:
        self._stand_ins[stage.plan.kind] = function

    def function(self, stage: Stage[..., Any]) -> Callable[..., Any]:
        return self._stand_ins.get(stage.plan.kind, stage.function)

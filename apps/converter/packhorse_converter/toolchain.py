"""The protocol of a toolchain, so that a vendor's can replace the built-in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from numpy.typing import NDArray

from packhorse_converter.preprocessing import Preprocessing, Tensor

GROUP = "packhorse_converter.toolchains"
"""Entry point group for toolchains of other packages; each entry is a class without arguments."""
BUILT_IN = "open"

Feed = Mapping[str, NDArray[Any]]
"""A value for each input of a model."""
Outputs = Sequence[NDArray[Any]]
Runner = Callable[[Feed], Outputs]
"""A model, loaded."""
Method = Literal["auto", "max", "percentile", "entropy"]


class ModelRefused(ValueError):
    """The model cannot be converted; the text says why."""

    code = "INVALID_MODEL"


class ModelUnsupported(ModelRefused):
    """The model is valid, but uses something that cannot be converted; the text names the operator or the type."""

    code = "UNSUPPORTED_MODEL"


class ParameterRefused(ModelRefused):
    """A parameter does not fit the model; the text names it."""

    code = "INVALID_PARAMETERS"


class Report(msgspec.Struct, frozen=True):
    """Size and signature of a model."""

    nodes: int
    parameters: int
    opset: int
    inputs: list[Tensor]
    outputs: list[Tensor]


class Optimisation(msgspec.Struct, frozen=True):
    before: Report
    after: Report
    warnings: list[str] = []


class FloatLayer(msgspec.Struct, frozen=True):
    """A layer that stays in floating point, and how much the outputs gain from that alone."""

    name: str
    operator: str
    gained_db: float


class Share(msgspec.Struct, frozen=True):
    """How much of a model is int8."""

    weights: float
    """Share of the elements of all weights."""
    operators: float
    """Share of the operators that compute (not of those that only move or reshape data)."""
    float_operators: dict[str, int] = {}
    """Operators that stay in floating point, with their number."""


class Quantisation(msgspec.Struct, frozen=True):
    method: str
    """How the ranges of the activations were chosen."""
    tried: dict[str, float] = {}
    """Signal to noise ratio in dB of each method, on samples that it was not calibrated with."""
    share: Share | None = None
    """None if the toolchain does not say."""
    per_channel: bool = True
    float_layers: list[FloatLayer] = []
    float_layers_gained_db: float | None = None
    """Signal to noise ratio with these layers in floating point, minus the ratio without, on the selection samples."""
    warnings: list[str] = []


class Options(msgspec.Struct, frozen=True):
    """What the user chose."""

    input_shape: list[int] | None = None
    calibration: Method = "auto"
    float_layers: int = 0


class About(msgspec.Struct, frozen=True):
    """Metadata of a packed model."""

    platform: int
    model_id: int
    version: str
    toolchain: str
    preprocessing: Preprocessing | None = None
    """How to turn a picture into the model's input; None if it takes no pictures."""


class Check(msgspec.Struct, frozen=True):
    """Integer operators compared one by one with an independent implementation, on the same inputs."""

    operators: int
    same: float
    """Share of the integers that are equal."""
    largest_difference: int
    """In steps of int8. One step can be a tie that was rounded the other way."""


class IntegerRun(Protocol):
    """A packed model that runs in integer arithmetic."""

    def run(self, feed: Feed) -> Outputs: ...

    def reference(self, feed: Feed) -> Outputs:
        """The same arithmetic by an independent implementation."""

    def check(self, feed: Feed) -> Check: ...

    def operators(self) -> tuple[dict[str, int], dict[str, int]]:
        """Operators that ran as integers, and in floating point, with their number. Call it after a run."""


class Toolchain(Protocol):
    version: str

    def optimise(self, model: Path, to: Path, options: Options) -> Optimisation:
        """Check and simplify. Raises `ModelRefused`."""

    def quantise(
        self, model: Path, samples: Sequence[Feed], selection: Sequence[Feed], to: Path, options: Options
    ) -> Quantisation:
        """To int8, calibrated with the samples; choices are made on the selection. Raises `ModelRefused`."""

    def pack(self, model: Path, about: About, to: Path) -> None: ...

    def runner(self, model: Path, *, exactly: bool = False) -> Runner | None:
        """Of an optimised or quantised model. ``exactly``: operation by operation, as it is written down.

        None if this toolchain cannot run models.
        """

    def integer_run(self, packed: Path) -> IntegerRun | None:
        """Of a packed model, as the hardware would run it. None if this toolchain cannot."""


@cache
def toolchains() -> dict[str, Toolchain]:
    """The installed and the configured toolchains, by name."""
    from packhorse_converter import commands
    from packhorse_converter.open_toolchain import OpenToolchain

    found: dict[str, Toolchain] = {BUILT_IN: OpenToolchain()}
    for entry in entry_points(group=GROUP):
        made: Any = entry.load()
        found[entry.name] = made()
    return found | commands.configured()


def names() -> list[str]:
    return sorted(toolchains())

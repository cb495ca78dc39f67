"""The protocol of a toolchain, so that a vendor's can replace the built-in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray

GROUP = "packhorse_converter.toolchains"
"""Entry point group for toolchains of other packages; each entry is a class without arguments."""
BUILT_IN = "open"

Feed = Mapping[str, NDArray[Any]]
"""A value for each input of a model."""
Outputs = Sequence[NDArray[Any]]
Runner = Callable[[Feed], Outputs]
"""A model, loaded."""


class ModelRefused(ValueError):
    """The model cannot be converted; the text says why."""


class Tensor(msgspec.Struct, frozen=True):
    name: str
    type: str
    shape: list[int]


class Report(msgspec.Struct, frozen=True):
    """Size and signature of a model."""

    nodes: int
    parameters: int
    opset: int
    inputs: list[Tensor]
    outputs: list[Tensor]


class About(msgspec.Struct, frozen=True):
    """Metadata of a packed model."""

    platform: int
    model_id: int
    version: str
    toolchain: str


class Toolchain(Protocol):
    version: str

    def optimise(self, model: Path, to: Path) -> tuple[Report, Report]:
        """Check and simplify; return reports on the model before and after. Raises `ModelRefused`."""

    def quantise(self, model: Path, samples: Sequence[Feed], to: Path) -> None:
        """To int8, calibrated with the samples."""

    def pack(self, model: Path, about: About, to: Path) -> None: ...

    def runner(self, model: Path, *, exactly: bool = False) -> Runner:
        """Of an optimised or quantised model. ``exactly``: operation by operation, as it is written down."""

    def packed_runner(self, packed: Path) -> Runner:
        """As the hardware would run it: in whole numbers, wherever the model is quantised."""


@cache
def toolchains() -> dict[str, Toolchain]:
    """The installed toolchains, by name."""
    from packhorse_converter.open_toolchain import OpenToolchain

    found: dict[str, Toolchain] = {BUILT_IN: OpenToolchain()}
    for entry in entry_points(group=GROUP):
        made: Any = entry.load()
        found[entry.name] = made()
    return found


def names() -> list[str]:
    return sorted(toolchains())

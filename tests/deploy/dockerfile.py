"""A Dockerfile as a list of instructions, with as much of its grammar as ours uses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """Of the form that is JSON."""
        found: list[str] = json.loads(self.text)
        return found


Stage = list[Instruction]


def stages(path: Path) -> list[Stage]:
    """Each begins with its FROM; what stands before the first is left out."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[Stage] = []
    for line in joined.splitlines():
        name, _, text = line.partition(" ")
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append(Instruction(name, text.strip()))
    return found


def of(stage: Stage, name: str) -> list[Instruction]:
    return [each for each in stage if each.name == name]


def only(stage: Stage, name: str) -> Instruction:
    [found] = of(stage, name)
    return found


def environment(stage: Stage, app: str = "") -> dict[str, str]:
    """With the build argument APP filled in."""
    pairs = (pair.partition("=") for each in of(stage, "ENV") for pair in each.text.split())
    return {
        name: re.sub(r"\$\{APP:\+(.*?)\}", lambda word: word[1].replace("$APP", app) if app else "", value)
        for name, _, value in pairs
    }

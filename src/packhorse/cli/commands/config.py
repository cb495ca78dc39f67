"""`packhorse config`: every setting, its value, where that came from, and what it is for."""

from __future__ import annotations

from typing import Any

from packhorse.cli import output as printing
from packhorse.cli.options import Output, Pace, Places, settings_from
from packhorse.settings import PREFIX, descriptions, printable


def config(*, output: Output = Output(), pace: Pace = Pace(), places: Places = Places()) -> None:
    """Show every setting and where its value comes from: flag, environment, .env, pyproject.toml or default."""
    loaded = settings_from(pace, places)
    found = [
        {"name": PREFIX + name.upper(), "value": value, "origin": loaded.origins[name]}
        for name, value in printable(loaded.settings).items()
    ]
    meaning = descriptions()
    if output.json:
        printing.document([{**each, "meaning": meaning[each["name"]]} for each in found])
        return
    rows = [(each["name"], _env_text(each["value"]), each["origin"], meaning[each["name"]]) for each in found]
    printing.table(("setting", "value", "origin", "meaning"), rows)


def _env_text(value: Any) -> str:
    """As it would be written in the environment."""
    if isinstance(value, dict):
        return ",".join(f"{name}={count}" for name, count in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)

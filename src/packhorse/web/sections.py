"""The parts of a job's page that change when stages or the job begin or end, rendered for all viewers at once.

What a part shows depends on the job and on what a viewer may do, on nothing else of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from packhorse.jobs.view import JobPage
from packhorse.web.render import address_of, environment
from packhorse.web.widgets import job as widgets
from packhorse.web.widgets import stages

PARTS = ("head", "state", "elements", "files_made", "usage", "facts")
ALWAYS = ("head", "state")
"""They also tell what changes by itself, such as the place in a queue: a page may show an older one than was sent."""


class Rights(NamedTuple):
    """Those who have the same see the same page."""

    root: str
    """Under which path the site is mounted."""
    allowed: frozenset[str]


def render_parts(told: dict[str, Any], rights: Rights, names: Iterable[str]) -> dict[str, str]:
    module = _module(told, rights)
    return {name: str(getattr(module, name)()).strip() for name in names}


def render_rows(told: dict[str, Any], rights: Rights, names: Iterable[str]) -> dict[str, str]:
    """Of the table of stages."""
    module = _module(told, rights)
    return {name: str(module.row(name)).strip() for name in names}


def shape(found: JobPage) -> str:
    return stages.shape(found.job)


def row_keys(found: JobPage) -> dict[str, object]:
    """By stage, what its row depends on besides the time and what deltas tell."""
    lost = [each.get("stage") for each in found.events if each.get("code") == widgets.LOST]
    return {
        name: (found.job["run"], each["status"], each["attempt"], each.get("reason"), lost.count(name))
        for name, each in found.job["stages"].items()
    }


def grid_key(told: dict[str, Any]) -> object:
    """What the grids depend on besides the letters of elements, which deltas tell."""
    return {name: (len(grid.letters), told["failed"][name]) for name, grid in told["grids"].items()}


def _module(told: dict[str, Any], rights: Rights) -> Any:
    values = {**told, "url": partial(address_of, rights.root), "may": rights.allowed.__contains__}
    return environment().get_template("job_sections.html").make_module(values)

"""Stops a build of packhorse without the libraries of its pages. pip and `make release` run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = ("idiomorph.esm.js", "uPlot.iife.min.js", "uPlot.min.css", "inter-latin-wght-normal.woff2", "icon-check.svg")
"""Some of what the pages take from npm. `make setup` and the Dockerfile copy all of it, as `package.json` says."""


class PageLibraries(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (the hook's signature)
        folder = Path(self.root) / "src/packhorse/web/static/vendor"
        missing = [name for name in PAGE if not (folder / name).is_file()]
        if missing and version != "editable":  # `make setup` installs the clone before it fetches them
            raise SystemExit(
                f"The web UI needs {', '.join(missing)} from npm, which this clone does not have yet. "
                "Run `make setup` in the clone, which fetches it, then build or install again."
            )

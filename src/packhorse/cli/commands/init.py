"""`packhorse init`: a small project that runs, with a test, to begin from."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from string import Template

from packhorse.cli import output
from packhorse.cli.commands.results import translate_os_errors
from packhorse.errors import WouldOverwrite

NAMES = ("pipelines.py", "test_pipelines.py", "pyproject.toml", "README.md", ".gitignore")
NAMELESS = "jobs"
"""What a project is called whose folder has a name that no package can have."""


def init(folder: Path = Path(), /) -> None:
    """Write a small project that runs, with a test. What is there already is never overwritten.

    Parameters
    ----------
    folder
        Where; this folder unless said otherwise.
    """
    written = {folder / name: text_of(name, folder) for name in NAMES}
    for path in written:
        if path.exists() or path.is_symlink():
            raise WouldOverwrite(path=str(path))
    with translate_os_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in written.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
            output.plain(str(path))
    output.message("\nNext, in two terminals:")
    for command in ("packhorse dev", "packhorse submit count text=@README.md --wait --output ."):
        output.message("  " + _in_folder(folder, command))


def text_of(name: str, folder: Path) -> str:
    template = files("packhorse.cli").joinpath("project", f"{name}.txt").read_text(encoding="utf-8")
    return Template(template).substitute(name=_name(folder))


def _name(folder: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    return name[:63].rstrip("-") or NAMELESS


def _in_folder(folder: Path, command: str) -> str:
    return command if folder == Path() else f"cd {shlex.quote(str(folder))} && {command}"

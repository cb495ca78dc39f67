"""Bugs that the tests must catch: each is a patch of `src` or `apps` in `bugs/` and the tests that must fail with it.

`make seeded` runs them. A patch file starts with a header, which `git apply` skips:

    Title: what the bug does, as one sentence
    Breaks: the invariant it breaks
    Caught by:
        tests/contract/test_store_races.py::test_two_claimers_never_receive_the_same_attempt[sqlite]
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "bugs"
HEADER = re.compile(
    r"\ATitle: (?P<title>\S.*)\nBreaks: (?P<breaks>\S.*)\n"
    r"Caught by:\n(?P<tests>(?: {4}tests/\S.*\n)+)\n--- a/(?:src|apps)/"
)


class Bug(NamedTuple):
    name: str
    title: str
    breaks: str
    tests: tuple[str, ...]
    """Node ids of pytest. Each of them must fail."""
    patch: Path


def load() -> list[Bug]:
    return [read(path) for path in sorted(FOLDER.glob("*.patch"))]


def read(path: Path) -> Bug:
    header = HEADER.match(path.read_text())
    if header is None:
        raise ValueError(f"{path.name} does not start with a header as tests/seeded/__init__.py describes it.")
    tests = tuple(line.strip() for line in header["tests"].splitlines())
    return Bug(path.stem, header["title"], header["breaks"], tests, path)


def apply(bug: Bug, tree: Path, *, only_check: bool = False) -> str:
    """Apply the patch to a copy of the repository; empty, or why it does not apply."""
    command = ["git", "apply", "--whitespace=nowarn", *(["--check"] if only_check else []), str(bug.patch)]
    # Git must not take the folder for a part of a repository around it: it would skip the patch without an error.
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    if only_check:
        del environment["GIT_CEILING_DIRECTORIES"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"git apply ended with {done.returncode}"

"""`make seeded`: apply each bug to a copy of the tree, one at a time, and see that its tests fail.

    python -m tests.seeded                     all bugs
    python -m tests.seeded renew-ignores-owner some of them, by the names of their files

First the same tests run without any bug: a test that fails anyway catches nothing. A bug is caught if every test that
its header names fails in its own body. An error during collection or set-up does not count, nor does a mistake in the
patch itself, such as an unknown name. The working tree is never touched.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.seeded import ROOT, Bug, apply, load

LANES = 2
"""Bugs that are tried at a time."""
LIMIT = 300.0
"""Seconds after which the tests of one bug are ended. A bug that only makes them hang is not caught."""
COPIED = ("src", "tests", "apps", "examples", "lab", "pyproject.toml")
SKIPPED = shutil.ignore_patterns(".pytest_cache", ".hypothesis", "bugs")
MISTAKES = re.compile(r"^(NameError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|UnboundLocalError)\b")
"""What a failure must not be: then the patch is wrong, and any test would fail."""


class Outcome(NamedTuple):
    """How one test ended."""

    node: str
    how: str
    """passed, failure, error or skipped, as in pytest's report."""
    reason: str


class Verdict(NamedTuple):
    bug: Bug
    problem: str
    """Empty if it was caught."""
    reasons: tuple[str, ...]
    """Why its tests failed, in one line each."""
    seconds: float


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy with compiled modules. A file that a patch changes has another time, and is compiled again."""
    with tempfile.TemporaryDirectory(prefix="packhorse-seeded-", ignore_cleanup_errors=True) as name:
        for part in COPIED:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, Path(name) / part, ignore=SKIPPED)
            else:
                shutil.copy2(ROOT / part, Path(name) / part)
        yield Path(name)


def interpreter(tree: Path) -> Path:
    """A Python that finds the packages installed here, but packhorse and its apps in the copy.

    Tests start processes with `sys.executable` and an environment of their own, so a PYTHONPATH would not reach them.
    """
    environment, base = tree / ".venv", Path(sys.executable).resolve()
    packages = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (environment / "bin").mkdir()
    (environment / "bin/python").symlink_to(base)
    for program in Path(sys.executable).parent.iterdir():  # servers that tests start; packhorse itself is the copy's
        if not program.name.startswith(("python", "packhorse")):
            (environment / "bin" / program.name).symlink_to(program)
    (environment / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    copies = [tree / "src", *sorted(path for path in (tree / "apps").iterdir() if path.is_dir())]
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "seeded.pth").write_text("".join(f"{path}\n" for path in (*copies, *sorted(installed))))
    return environment / "bin/python"


def run_tests(tree: Path, nodes: Collection[str], limit: float) -> list[Outcome]:
    """Raises RuntimeError where pytest did not run them."""
    report, output = tree / "report.xml", tree / "output.txt"
    options = ["-q", "-p", "no:cacheprovider", "--tier", "test", f"--junitxml={report}"]
    with output.open("wb") as written:
        process = subprocess.Popen(
            [interpreter(tree), "-m", "pytest", *options, *nodes],
            cwd=tree,
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".hypothesis")},
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"its tests did not end within {limit:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code not in (0, 1):
        last = "\n".join(output.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"pytest ended with {code}:\n{last}")
    return list(read_report(report))


def read_report(report: Path) -> Iterator[Outcome]:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        node = f"{case.get('classname')}.{case.get('name')}"
        parts = [part for part in case if part.tag in ("failure", "error", "skipped")]
        if not parts:
            yield Outcome(node, "passed", "")
        for part in parts:
            yield Outcome(node, part.tag, (part.get("message") or "").strip())


def outcomes_of(node: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those of the test with this id, or of its variants if the id names no parameters."""
    name, bracket, parameters = node.partition("[")
    dotted = name.replace(".py::", ".").replace("::", ".").replace("/", ".") + bracket + parameters
    return [each for each in outcomes if each.node == dotted or (not bracket and each.node.startswith(f"{dotted}["))]


def judge(bug: Bug, outcomes: Sequence[Outcome]) -> str:
    """Why the bug was not caught, or nothing."""
    for node in bug.tests:
        found = outcomes_of(node, outcomes)
        if not found:
            return f"{node} did not run"
        failed = [each for each in found if each.how == "failure"]
        wrong = [each for each in failed if MISTAKES.match(each.reason)]
        if not failed:  # a test that failed may well leave something behind that fails, too
            wrong = [each for each in found if each.how == "error"]
        if wrong:
            return f"{node} did not fail by itself: {_first_line(wrong[0].reason)}"
        if not failed:
            return f"{node} passes"
    return ""


def try_bug(bug: Bug) -> Verdict:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with copied_tree() as tree:
        problem = apply(bug, tree)
        if not problem:
            try:
                outcomes = run_tests(tree, bug.tests, LIMIT)
                problem = judge(bug, outcomes)
            except RuntimeError as error:
                problem = str(error)
    reasons = tuple(_first_line(each.reason) for each in outcomes if each.how == "failure")
    verdict = Verdict(bug, problem, reasons, time.monotonic() - began)
    print(
        f"{'caught' if not problem else 'NOT CAUGHT':10} {verdict.seconds:5.1f} s  {bug.name}: {bug.title}", flush=True
    )
    for line in problem.splitlines() or [f"{len(reasons)} failed: {reasons[0]}"]:
        print(f"{'':20}{line[:160]}", flush=True)
    return verdict


def find_red(nodes: Sequence[str]) -> list[str]:
    """Those of the tests that do not pass without a bug."""
    with copied_tree() as tree:
        try:
            outcomes = run_tests(tree, nodes, 2 * LIMIT)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return list(nodes)
    green = [node for node in nodes if any(each.how == "passed" for each in outcomes_of(node, outcomes))]
    red = [each for each in outcomes if each.how in ("failure", "error")]
    for each in red:
        print(f"{each.node} fails without any bug: {_first_line(each.reason)}", file=sys.stderr)
    return [node for node in nodes if node not in green or any(each in red for each in outcomes_of(node, outcomes))]


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.seeded", description="See that the tests catch each bug.")
    parser.add_argument("names", nargs="*", help="file names in tests/seeded/bugs without .patch (default: all)")
    names = parser.parse_args(arguments).names
    bugs = load()
    if unknown := set(names) - {bug.name for bug in bugs}:
        parser.error(f"there is no bug {', '.join(sorted(unknown))} in tests/seeded/bugs")
    bugs = [bug for bug in bugs if not names or bug.name in names]
    began = time.monotonic()
    nodes = sorted({node for bug in bugs for node in bug.tests})
    with ThreadPoolExecutor(LANES) as lanes:
        reds = lanes.map(find_red, [nodes[lane::LANES] for lane in range(min(LANES, len(nodes)))])
        if red := [node for each in reds for node in each]:
            print("These tests do not pass without a bug:", *red, sep="\n    ", file=sys.stderr)
            return 1
        print(f"{len(nodes)} tests pass without a bug, {time.monotonic() - began:.0f} s", flush=True)
        verdicts = list(lanes.map(try_bug, bugs))
    missed = [each.bug.name for each in verdicts if each.problem]
    print(f"\ncaught {len(bugs) - len(missed)} / {len(bugs)} in {time.monotonic() - began:.0f} s")
    if missed:
        print("not caught:", *missed, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""tests/seeded: every bug still applies to the code, and every test that is to catch it exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.seeded import ROOT, Bug, apply, load, read
from tests.seeded.__main__ import Outcome, judge

BUGS = load()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_seeded_bug_still_applies(bug: Bug) -> None:
    assert apply(bug, ROOT, only_check=True) == ""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_tests_that_catch_a_seeded_bug_exist(bug: Bug) -> None:
    for node in bug.tests:
        path, *names = node.partition("[")[0].split("::")
        assert names
        assert set(names) <= names_in(ROOT / path) | {"runTest"}, node


@cache
def names_in(path: Path) -> set[str]:
    """Of its functions and classes, and of what it assigns to a name, as hypothesis' state machines are."""
    tree = ast.parse(path.read_text())
    defined = {
        each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    assigned = {
        target.id
        for each in tree.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    return defined | assigned


def test_a_patch_without_a_header_is_refused_by_name(tmp_path: Path) -> None:
    patch = tmp_path / "nameless.patch"
    patch.write_text("--- a/src/packhorse/host.py\n+++ b/src/packhorse/host.py\n")

    with pytest.raises(ValueError, match=r"nameless\.patch"):
        read(patch)


BUG = Bug("b", "t", "I1", ("tests/a/test_b.py::test_c[sqlite]",), Path())
NODE = "tests.a.test_b.test_c[sqlite]"


@pytest.mark.parametrize(
    ("outcomes", "problem"),
    [
        ([Outcome(NODE, "failure", "AssertionError: assert 1 == 2")], ""),
        ([Outcome(NODE, "passed", "")], "passes"),
        ([Outcome(NODE, "skipped", "not here")], "passes"),
        ([Outcome(NODE, "error", "failed on setup")], "did not fail by itself"),
        ([Outcome(NODE, "failure", "NameError: name 'jbo' is not defined")], "did not fail by itself"),
        ([Outcome("tests.a.test_b.test_c[redis]", "failure", "AssertionError")], "did not run"),
    ],
)
def test_only_a_test_that_fails_by_itself_catches_a_bug(outcomes: list[Outcome], problem: str) -> None:
    assert (problem in judge(BUG, outcomes)) if problem else judge(BUG, outcomes) == ""

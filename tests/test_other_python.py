"""Which interpreter `make test-all` takes beside its own."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.other_python import Interpreter, look_at, newest


def interpreter(*version: int) -> Interpreter:
    major, minor, patch = version
    return Interpreter((major, minor, patch), Path(f"/python{major}.{minor}"))


def test_the_newest_other_minor_version_is_taken() -> None:
    found = [interpreter(3, 12, 9), interpreter(3, 13, 0), interpreter(3, 11, 7)]

    assert newest(found, (3, 11)) == interpreter(3, 13, 0)
    assert newest(found, (3, 13)) == interpreter(3, 12, 9)


def test_versions_that_are_too_old_do_not_count() -> None:
    assert newest([interpreter(3, 10, 1), interpreter(3, 11, 2)], (3, 11)) is None


def test_a_program_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "python3.99"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    working = tmp_path / f"python3.{sys.version_info.minor}"
    working.symlink_to(sys.executable)

    assert [each.version for each in look_at([broken, working])] == [sys.version_info[:3]]

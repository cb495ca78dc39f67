"""mypy reads users' code the way we promise: silent on right.py, one error on the marked line of each wrong file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WRONG = sorted(HERE.glob("wrong_*.py"))

Found = set[tuple[str, int, str]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """File, line and code of every error, in one run of mypy over all the files."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--no-pretty"]
    config = tmp_path_factory.mktemp("mypy")
    (config / "empty.ini").write_text("[mypy]\n")
    done = subprocess.run(
        [*command, f"--config-file={config / 'empty.ini'}", f"--cache-dir={config}", HERE / "right.py", *WRONG],
        cwd=ROOT,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    errors = re.findall(r"^(.+?):(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    return {(Path(path).name, int(line), code) for path, line, code in errors}


def test_code_as_it_should_be_has_no_errors(found: Found) -> None:
    assert {error for error in found if not error[0].startswith("wrong_")} == set()


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_mistake_is_an_error_on_its_line(found: Found, path: Path) -> None:
    lines = enumerate(path.read_text().splitlines(), start=1)
    marked = {(path.name, n, mark[1]) for n, line in lines if (mark := re.search(r"# error: ([a-z-]+)$", line))}

    assert len(marked) == 1
    assert {error for error in found if error[0] == path.name} == marked

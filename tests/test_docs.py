"""The docs say what the code does: the reference is made from it, and what is shown there runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import sample, settings
from packhorse.background.webhooks import secret_of, sign
from packhorse.core.error_codes import CODES
from packhorse.core.plan import Revive
from packhorse.define.registry import load
from packhorse.factory import check
from tests.cli.house import LONGEST, Dev

ROOT = Path(__file__).parents[1]
APPS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "apps").glob("*/README.md"))


def named_blocks(page: Path) -> dict[str, str]:
    """The Python blocks that begin with the name of a file."""
    blocks = re.findall(r"```python\n# ([\w.]+)\n(.*?)```", page.read_text(), re.DOTALL)
    return dict(blocks)


def test_the_reference_is_what_the_code_says() -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()

    kept = {name: (ROOT / "docs" / "reference" / name).read_text() for name in pages}

    assert kept == pages, "run: make docs"


def test_the_defaults_of_the_settings_can_be_pasted() -> None:
    rows = re.findall(r"\| `(PACKHORSE_\w+)` \| `([^`]+)` \|", (ROOT / "docs/reference/settings.md").read_text())

    check(settings.load(env=dict(rows), folder=ROOT / "docs").settings)

    assert dict(rows)["PACKHORSE_STORE"].startswith("sqlite:///srv/")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *APPS])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    """Those of docs/ are looked at when the site is built."""
    path = ROOT / page

    targets = re.findall(r"\]\(((?!http)[^)#]+)", path.read_text())

    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_every_code_that_is_given_is_in_the_reference() -> None:
    """Words in capitals that a `Failure`, or what makes one, is given somewhere in the code."""
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "packhorse").rglob("*.py"))

    given = set(re.findall(r"(?<![\w.])codes\.([A-Z_]{3,})", source)) - {"CODES", "OWN"}
    spelt = re.findall(r"(?:Failure|_fail)\(\s*\"([A-Z_]+)\"", source)

    assert given <= CODES.keys()
    assert spelt == []
    assert {"TIMEOUT", "STALLED", "OUT_OF_MEMORY", "WORKER_LOST", "CRASHED", "ORPHANED", "HTTP_500"} <= CODES.keys()


def test_the_pipeline_of_the_failures_page_can_be_loaded(tmp_path: Path) -> None:
    [(name, code)] = named_blocks(ROOT / "docs" / "failures.md").items()
    (tmp_path / name).write_text(code)

    [pipeline] = load(str(tmp_path / name)).pipelines.values()

    assert pipeline.plan().revive == Revive(("HTTP_500", "TIMEOUT"), 3, 300.0, 100, 3_600.0)


def test_the_pipeline_of_the_pipelines_page_offers_what_the_worker_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(name, code)] = named_blocks(ROOT / "docs" / "pipelines.md").items()
    (tmp_path / name).write_text(code)
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "anna.onnx").touch()
    monkeypatch.chdir(tmp_path)

    [pipeline] = load(str(tmp_path / name)).pipelines.values()

    assert pipeline.schema.published_schema()["properties"]["voice"]["enum"] == ["anna"]


def test_the_client_of_the_calling_page_gets_a_result(dev: Dev) -> None:
    [(name, code)] = named_blocks(ROOT / "docs" / "calling.md").items()
    (dev.folder / name).write_text(code.replace("http://127.0.0.1:3003", dev.url))
    (dev.folder / "text.txt").write_text("# one\na fine day\n")

    called = subprocess.run(
        [sys.executable, name], cwd=dev.folder, env=dev.env, capture_output=True, text=True, timeout=LONGEST
    )

    [result] = (dev.folder / "out").iterdir()
    assert "completed" in called.stdout, called.stderr
    assert '"words": 3' in result.read_text()


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """`packhorse dev` with the built-in sample."""
    place = Dev(tmp_path, Path(sample.__file__))
    yield place
    place.end()


def test_the_receiver_of_the_webhooks_page_knows_our_messages_from_others(tmp_path: Path) -> None:
    [(name, code)] = named_blocks(ROOT / "docs" / "webhooks.md").items()
    (tmp_path / name).write_text(code)
    is_ours = runpy.run_path(str(tmp_path / name))["is_ours"]
    secret, body = secret_of("k" * 32, "e1"), b'{"type":"job.completed"}'
    headers = sign(secret, "message", time.time(), body)

    assert is_ours(secret, headers, body)
    assert is_ours(secret, {**headers, "webhook-signature": f"v1,other {headers['webhook-signature']}"}, body)
    old, new = secret_of("o" * 32, "e1"), secret_of(f"{'n' * 32},{'o' * 32}", "e1")
    both = sign(new, "message", time.time(), body, replaced=[old])
    assert is_ours(old, both, body), "a receiver that has not got the new secret yet"
    assert is_ours(new, both, body)
    assert not is_ours(secret, headers, body + b" ")
    assert not is_ours(secret, {**headers, "webhook-id": "another"}, body)
    assert not is_ours(secret_of("k" * 32, "e2"), headers, body)
    assert not is_ours(secret, sign(secret, "message", time.time() - 3600, body), body)

"""What there is, is in the docs; and what the docs name, there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from packhorse import errors
from packhorse.cli.registry import COMMANDS, app
from packhorse.core.error_codes import CODES
from packhorse.settings import PREFIX, descriptions, load
from packhorse.web.app import build
from tests.docs.blocks import REASONS, ROOT, blocks

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RUN = [page for page in PAGES if page.parent.name in ("tutorial", "howto") or page.name == "README.md"]
"""Pages whose every block is run: README, tutorials, how-tos."""
TEXT = {page: page.read_text() for page in PAGES}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def everywhere(*folders: str) -> str:
    return "\n".join(text for page, text in TEXT.items() if page.parent.name in folders or not folders)


def test_every_setting_is_in_the_docs() -> None:
    assert [each for each in descriptions() if f"`{each}`" not in everywhere()] == []


def test_every_setting_that_the_docs_name_exists() -> None:
    named = set(re.findall(rf"\b{PREFIX}[A-Z0-9_]+\b(?!…)", everywhere()))
    beginnings = set(re.findall(rf"\b({PREFIX}[A-Z0-9_]+)…", everywhere()))

    assert sorted(named - descriptions().keys()) == []
    assert [each for each in beginnings if not any(known.startswith(each) for known in descriptions())] == []


def test_every_route_is_in_the_docs() -> None:
    api = build(load(env={}, folder=ROOT / "docs").settings).openapi_schema
    calls = [
        f"`{method.upper()} {path}`"
        for path, item in (api.paths or {}).items()
        for method in ("get", "post", "put", "patch", "delete", "head")
        if getattr(item, method) is not None
    ]

    assert len(calls) > 40
    assert [call for call in calls if call not in everywhere("reference")] == []


def test_every_route_that_the_docs_name_exists() -> None:
    api = build(load(env={}, folder=ROOT / "docs").settings).openapi_schema
    patterns = [re.compile(re.sub(r"\{[^}]+\}", "[^/`? ]+", path)) for path in api.paths or {}]
    written = re.findall(
        r"`(?:GET|POST|PUT|DELETE) (?:/apps/\{app\})?(/[^`\s?#]*)", everywhere()
    )  # an app has all of them
    named = set(written)
    below = {
        path if path.startswith(("/api", "/healthz", "/readyz", "/metrics")) else f"/api/v1{path}" for path in named
    }

    assert [path for path in below if not any(each.fullmatch(path) for each in patterns)] == []


def test_every_error_is_in_the_docs() -> None:
    def all_of(cls: type[errors.PackhorseError]) -> list[type[errors.PackhorseError]]:
        return [cls, *(each for child in cls.__subclasses__() for each in all_of(child))]

    own = {each for each in all_of(errors.PackhorseError) if each.__module__ == errors.__name__}

    assert len(own) > 30
    assert [each.type() for each in own if f"| `{each.type()}` |" not in everywhere("reference")] == []


def test_every_code_of_a_failure_is_in_the_docs() -> None:
    assert [code for code in CODES if f"| `{code}` |" not in everywhere("reference")] == []


def test_every_command_is_in_the_docs_and_shown_at_work() -> None:
    """In the reference; and in a page that is run, or at least told about."""
    told = everywhere("docs", "tutorial", "howto")

    assert [each for _, each, _, _ in COMMANDS if f"| `packhorse {each}` |" not in everywhere("reference")] == []
    assert [each for _, each, _, _ in COMMANDS if not re.search(rf"packhorse {each}\b", told)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_line_is_one_that_we_take(page: Path) -> None:
    """Of shell blocks, and of code in a sentence where it is more than the name of a command."""
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.code.splitlines()]
    lines += re.findall(r"`(packhorse \w+ [^` ]+ [^`]*)`", TEXT[page])

    for words in filter(None, map(spoken, lines)):
        app.parse_args(words, print_error=False, exit_on_error=False)


def spoken(line: str) -> list[str]:
    """The words behind `packhorse` in a line of shell, up to where the shell goes on with something else."""
    _, _, rest = re.sub(r"\s#.*", "", line).replace("…", "x").partition("packhorse ")
    words: list[str] = []
    lexer = shlex.shlex(rest.removesuffix('"') if rest.count('"') % 2 else rest, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for word in lexer:
        if word[0] in ";&|()<>":
            break
        words.append(word)
    return words if words and words[0] in {each for _, each, _, _ in COMMANDS} else []


def test_blocks_that_are_not_run_have_one_of_few_reasons() -> None:
    left = [each for page in PAGES for each in blocks(page) if each.reason is not None]

    assert {each.reason for each in left} <= REASONS.keys()
    assert {each.page for each in left} == {
        "docs/howto/deploy.md",
        "docs/howto/from-celery-or-rq.md",
        "docs/howto/scale-out.md",
    }
    assert len(left) <= 6


def test_no_page_installs_from_an_index_where_packhorse_is_not() -> None:
    apps = [path.read_text() for path in (ROOT / "apps").glob("*/README.md")]

    assert re.findall(r"pip install [^`\n]*(?<![./])packhorse\b(?!\.txt).*", "\n".join([everywhere(), *apps])) == []
    assert len([page for page in PAGES if "not on the package index" in TEXT[page]]) == 2  # README and first tutorial


@pytest.mark.parametrize("page", RUN, ids=name)
def test_every_page_that_shows_how_has_a_test_that_runs_it(page: Path) -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests" / "docs").glob("test_*.py"))
    blocks_to_run = [each for each in blocks(page) if each.reason is None]

    assert not blocks_to_run or f'"{name(page)}"' in tests

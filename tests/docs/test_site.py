"""The site: built from what is here, without a word from anybody else, and not at all where something leads nowhere."""

from __future__ import annotations

import re
import runpy
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.docs.blocks import ROOT
from tests.servers.browser import browsing
from tests.tiers import sampled
from tests.web.browser import check_access, person

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def builder() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(DOCS / "build.py")))


@pytest.fixture(scope="module")
def site(builder: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    builder.build(DOCS, folder)
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Docs that a test may spoil."""
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "docs"


def test_every_page_is_built_and_in_the_navigation_of_every_other(site: Path) -> None:
    pages = {str(path.relative_to(DOCS).with_suffix(".html")) for path in DOCS.rglob("*.md")}
    built = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}

    assert built.keys() == pages
    for name, text in built.items():
        rooms = text.partition("<main")[0]
        up = "../" * name.count("/")
        assert [page for page in pages if f'href="{up}{page}"' not in rooms] == []
        assert text.count(" aria-current=page") == 1
        assert "<h1 " in text


def test_every_link_and_picture_of_the_site_leads_to_a_file_of_it(site: Path) -> None:
    for path in site.rglob("*.html"):
        targets = re.findall(r'(?:href|src)="([^"#]+)', path.read_text())
        inside = [target for target in targets if not re.match("https?:", target)]
        assert [target for target in inside if not (path.parent / target).is_file()] == []


def test_nothing_of_it_is_fetched_from_elsewhere(site: Path) -> None:
    """Links may lead out. What a browser loads by itself may not."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert "<script" not in text
        assert "style=" not in text
        assert re.findall(r'<(?:link|img|iframe)[^>]*(?:href|src)="(?:https?:)?//', text) == []
    for path in (*site.rglob("*.css"), *site.rglob("*.svg")):
        assert not re.search(r"@import|url\((?!#)", path.read_text())


def test_code_is_coloured_in_light_and_dark(site: Path) -> None:
    css = (site / "theme" / "code.css").read_text()

    assert '<span class="' in (site / "tutorial" / "5-minutes.html").read_text()
    assert "@media (prefers-color-scheme: dark)" in css
    assert ".code .k," in css
    assert "prefers-color-scheme: dark" in (site / "architecture.svg").read_text()


@pytest.mark.parametrize(
    ("page", "text", "sentence"),
    [
        ("keys.md", "[here](nowhere.md)", "keys.md refers to nowhere, which is no page"),
        ("howto/deploy.md", "[here](keys.md)", "howto/deploy.md refers to howto/keys, which is no page"),
        ("keys.md", "[here](stores.md#nothing)", "keys.md refers to #nothing, which is no heading of stores.md"),
        ("keys.md", "[here](#nothing)", "keys.md refers to #nothing, which is no heading of keys.md"),
        ("keys.md", "![it](nothing.png)", "keys.md shows nothing.png, which is not there"),
        ("keys.md", "<script>alert()</script>", "keys.md has HTML in it"),
        ("keys.md", "<b>bold</b> text", "keys.md has HTML in it"),
        ("keys.md", "```nonsense\n```", "There is no language 'nonsense'"),
        ("new.md", "# New", "new.md is in no room of build.py"),
    ],
)
def test_what_leads_nowhere_is_not_built(
    builder: SimpleNamespace, copy: Path, page: str, text: str, sentence: str
) -> None:
    with (copy / page).open("a") as file:
        file.write(f"\n\n{text}\n")

    with pytest.raises(builder.Broken, match=re.escape(sentence)):
        builder.build(copy, copy.parent / "site")

    assert not (copy.parent / "site").exists()


def test_a_page_that_is_gone_is_missed(builder: SimpleNamespace, copy: Path) -> None:
    (copy / "keys.md").unlink()

    with pytest.raises(builder.Broken, match=re.escape("keys.md is in build.py and nowhere else")):
        builder.build(copy, copy.parent / "site")


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Where a server has it: a browser does not let axe look at styles of files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.mark.parametrize(
    ("theme", "width"), sampled([("light", 360), ("dark", 1280), ("light", 1280), ("dark", 360)], count=2)
)
def test_everybody_can_read_it(address: str, theme: str, width: int) -> None:
    """No serious finding of axe, and nothing that sticks out, on a small screen and a large one."""
    with (
        browsing() as browser,
        person(browser, address, color_scheme=theme, viewport={"width": width, "height": 800}) as page,
    ):
        for name in ("index", "tutorial/5-minutes", "operations", "reference/settings", "architecture"):
            page.goto(f"/{name}.html")
            check_access(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width

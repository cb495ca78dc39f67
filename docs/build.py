"""Builds docs/ into a static site: python docs/build.py [FOLDER]. Strict: what leads nowhere ends it with a sentence.

A generator of our own, because all it needs is here already: Rich brings the Markdown parser and the highlighter. The
site has no script, asks nobody else for anything, and can be read from the disk.
"""

from __future__ import annotations

import html
import posixpath
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

DOCS = Path(__file__).parent
SITE = DOCS.parent / "site"

ROOMS = {
    "Start": ("index", "tutorial/60-seconds", "tutorial/5-minutes", "tutorial/30-minutes"),
    "How to": (
        "howto/mount-in-fastapi",
        "howto/upload-from-a-browser",
        "howto/progress-in-your-page",
        "howto/test-a-pipeline",
        "howto/test-crashes",
        "howto/schedule",
        "howto/scale-out",
        "howto/secure-and-limit",
        "howto/deploy",
        "howto/back-up-and-restore",
        "howto/from-celery-or-rq",
    ),
    "In detail": (
        "pipelines",
        "limits",
        "calling",
        "page",
        "visual-design",
        "schedules",
        "failures",
        "webhooks",
        "keys",
        "security",
        "stores",
        "redis-keys",
        "operations",
        "scaling",
        "performance",
        "reliability",
        "architecture",
        "design",
        "requirements",
    ),
    "Reference": (
        "reference/python",
        "reference/http",
        "reference/commands",
        "reference/settings",
        "reference/errors",
        "reference/codes",
    ),
}
"""Every page, in the order in which it is offered. One that is in no room is a mistake."""

ORDER = [name for names in ROOMS.values() for name in names]
COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
OUTSIDE = re.compile(r"[a-z]+:")


class Broken(Exception):
    """The docs cannot be built as they are."""


@dataclass
class Page:
    name: str
    title: str = ""
    body: str = ""
    anchors: dict[str, str] = field(default_factory=dict)
    """Of its headings, with their text."""
    links: list[tuple[str, str]] = field(default_factory=list)
    """Pages and anchors it refers to."""
    files: list[str] = field(default_factory=list)
    """Pictures it shows."""

    @property
    def root(self) -> str:
        return "../" * self.name.count("/")


def build(docs: Path = DOCS, site: Path = SITE) -> None:
    """Raises Broken, with everything that is wrong, before anything is written."""
    there = {str(path.relative_to(docs).with_suffix("")) for path in docs.rglob("*.md")}
    wrong = [f"{name}.md is in no room of build.py" for name in sorted(there - set(ORDER))]
    wrong += [f"{name}.md is in build.py and nowhere else" for name in sorted(set(ORDER) - there)]
    pages = {name: read(docs, name) for name in ORDER if name in there}
    wrong += [each for page in pages.values() for each in faults(page, pages, docs)]
    if wrong:
        raise Broken("\n".join(wrong))
    shutil.rmtree(site, ignore_errors=True)
    for page in pages.values():
        path = site / f"{page.name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(whole(page, pages), encoding="utf-8")
    for file in {file for page in pages.values() for file in page.files}:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(docs / file, site / file)
    (site / "theme").mkdir()
    for path in (docs / "theme").glob("*.css"):
        shutil.copy(path, site / "theme")


def read(docs: Path, name: str) -> Page:
    page = Page(name)
    markdown = MarkdownIt("commonmark", {"highlight": coloured}).enable("table")
    tokens = markdown.parse((docs / f"{name}.md").read_text(encoding="utf-8"))
    for before, token in zip([tokens[0], *tokens], tokens, strict=False):
        if token.type == "html_block":
            token.content = _without_comments(page, token.content)
        if before.type == "heading_open":
            before.attrSet("id", _anchored(page, _text(token)))
            if before.tag == "h1" and not page.title:
                page.title = _text(token)
        for child in token.children or ():
            _placed(page, child)
    body = markdown.renderer.render(tokens, markdown.options, {})
    page.body = body.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")
    return page


def faults(page: Page, pages: dict[str, Page], docs: Path) -> list[str]:
    found = [] if page.title else [f"{page.name}.md has no title"]
    for target, anchor in page.links:
        if target not in pages:
            found.append(f"{page.name}.md refers to {target}, which is no page")
        elif anchor and anchor not in pages[target].anchors:
            found.append(f"{page.name}.md refers to #{anchor}, which is no heading of {target}.md")
    return found + [
        f"{page.name}.md shows {file}, which is not there" for file in page.files if not (docs / file).is_file()
    ]


def _placed(page: Page, token: Token) -> None:
    """A link leads to a page of the site, a picture to a file beside it."""
    if token.type == "html_inline":
        raise Broken(f"{page.name}.md has HTML in it: {token.content}")
    name = {"link_open": "href", "image": "src"}.get(token.type)
    if name is None or OUTSIDE.match(where := str(token.attrGet(name))):
        return
    path, _, anchor = where.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page.name), path)) if path else page.name
    if token.type == "image":
        page.files.append(target)
    else:
        page.links.append((target.removesuffix(".md"), anchor))
        token.attrSet("href", re.sub(r"\.md$", ".html", path) + (f"#{anchor}" if anchor else ""))


def _without_comments(page: Page, text: str) -> str:
    if COMMENT.sub("", text).strip():
        raise Broken(f"{page.name}.md has HTML in it: {text}")
    return ""


def _anchored(page: Page, text: str) -> str:
    """The name of a heading, as GitHub makes it."""
    slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    anchor, n = slug, 0
    while anchor in page.anchors:
        n += 1
        anchor = f"{slug}-{n}"
    page.anchors[anchor] = text
    return anchor


def _text(token: Token) -> str:
    return "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))


def coloured(code: str, language: str, _attributes: str) -> str:
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound as error:
        raise Broken(f"There is no language {language!r}") from error
    inner: str = highlight(code, lexer, HtmlFormatter(nowrap=True))
    return f'<pre tabindex="0"><code class="code">{inner}</code></pre>'


def whole(page: Page, pages: dict[str, Page]) -> str:
    place = ORDER.index(page.name)
    template = Template((DOCS / "theme" / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.escape("packhorse" if page.name == "index" else f"{page.title} · packhorse"),
        root=page.root,
        nav="".join(_room(title, names, page, pages) for title, names in ROOMS.items()),
        body=page.body,
        toc=_toc(page),
        around=_link(page, pages, place - 1, "← {}") + _link(page, pages, place + 1, "{} →"),
    )


def _room(title: str, names: tuple[str, ...], page: Page, pages: dict[str, Page]) -> str:
    items = "".join(
        f'<li><a href="{page.root}{name}.html"{" aria-current=page" if name == page.name else ""}>'
        f"{html.escape(pages[name].title)}</a></li>"
        for name in names
    )
    return f"<h2>{html.escape(title)}</h2><ul>{items}</ul>"


def _toc(page: Page) -> str:
    wanted = re.findall(r'<h2 id="([^"]+)"', page.body)
    if len(wanted) < 2:
        return ""
    items = "".join(f'<li><a href="#{anchor}">{html.escape(page.anchors[anchor])}</a></li>' for anchor in wanted)
    return f"<strong>On this page</strong><ul>{items}</ul>"


def _link(page: Page, pages: dict[str, Page], place: int, text: str) -> str:
    if not 0 <= place < len(ORDER):
        return "<span></span>"
    to = pages[ORDER[place]]
    return f'<a href="{page.root}{to.name}.html">{text.format(html.escape(to.title))}</a>'


if __name__ == "__main__":
    try:
        build(site=Path(sys.argv[1]) if len(sys.argv) > 1 else SITE)
    except Broken as error:
        sys.exit(str(error))

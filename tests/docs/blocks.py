"""The code of a page: its fenced blocks, what each is for, and why one is not run if it is not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]

REASONS = {
    "an engine": "there is no container engine where the tests run; tests/deploy does what the files say",
    "systemd": "there is no systemd running where the tests run; tests/deploy checks the units",
    "another library": "code of another job queue, shown to compare",
    "an index": "pip would ask an index for what is not in our wheel",
}
"""Why a block may be left alone: `<!-- not run: needs systemd -->` above it. Few, and each is told here."""

SHOWN = {"text", "json"}
"""Languages of what is shown, not run."""
FILES = {"python": "# {}", "js": "// {}", "toml": "# {}", "html": "<!-- {} -->"}
"""Languages that are files if they begin with a comment that is a name."""


@dataclass(frozen=True)
class Block:
    page: str
    section: str
    """The heading it stands under."""
    line: int
    language: str
    code: str
    reason: str | None
    """What it would need to be run, if it is not."""

    @property
    def file(self) -> str | None:
        """The name of the file it is, if it is one."""
        mark = FILES.get(self.language)
        found = re.match(mark.format(r"([\w./-]+\.\w+)") + "\n", self.code) if mark else None
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    comment = section = ""
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    name = str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page)
    for before, token in zip([None, *tokens], tokens, strict=False):
        if before is not None and before.type == "heading_open":
            section = token.content
        if token.type == "html_block":
            comment = token.content
        elif token.type == "fence":
            reason = re.fullmatch(r"<!-- not run: needs (.+) -->\n*", comment)
            line = token.map[0] + 1 if token.map else 0
            found.append(Block(name, section, line, token.info.strip(), token.content, reason[1] if reason else None))
            comment = ""
        elif not token.hidden:
            comment = ""
    return found

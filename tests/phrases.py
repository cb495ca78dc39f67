"""The check of language in `make check`: finds old-fashioned phrases in every text that people read.

It reads the README and the docs, the texts, comments and docstrings of `src`, `apps` and `examples` (errors, hints,
settings, log messages, command line, OpenAPI, descriptions of pipelines), and the templates and scripts of the web UI.
It does not read code in Markdown, identifiers and file names. Each finding names file, line, phrase and a plain
alternative. `docs/reference` is generated from `src`: fix it there.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

PLAIN = {
    r"tried again": "retried",
    r"(is|are|was|be) begun again": "is retried, starts again",
    r"for whom": "name the user, or: whose",
    r"nobody (was|is) there": "no worker was running",
    r"(the|a) run before": "the previous run",
    r"(become|becomes|became) of": "outcome, result, what happens to",
    r"(is|are|was|were|be) remembered": "is cached, is stored",
    r"how it goes": "status, activity",
    r"how far it is": "progress",
    r"(is|are|was|were|be|been) asked for": "requested",
    r"under way": "running, in progress",
    r"for good": "permanently",
    r"whoever": "name the actor",
    r"(is|are|was|were|be|been) told": "name who says it: reports, gets a message",
    r"(goes|go|went|gone|going) on": "continues",
    r"look at it": "see, preview, inspect",
    r"all the same": "anyway, still",
    r"by the clock": "by time, on a schedule",
    r"cron lines?": "cron expression",
    r"(is|are) to be (seen|had|looked)": "name who does it",
    r"no longer there": "deleted",
    r"came with it": "input files",
    r"its like": "similar",
    r"what it is worth": "say what it means",
    r"as it were": "leave it out",
    r"mend(s|ed|ing)?": "fix, repair",
    r"whence|thereof|thereupon|hereby|hitherto|henceforth|lest|nought": "modern English",
    r"it is that": "name the subject",
    r"(a|the) person who waits": "end user",
    r"in the middle of it": "name what is interrupted",
    r"its own affair": "its own responsibility",
    r"in vain": "without success",
    r"(is|are|was|were) heard( of)?": "reported",
    r"something is to be": "name the problem",
    r"lies in the store": "is kept in the store",
    r"two packhorses|several packhorses": "deployments",
    r"(was|is|were|are) not taken": "was not accepted, was not delivered",
    r"(was|is|are|were) left alone": "was not changed",
    r"that are so": "name the property",
    r"all that have what is named": "all that match the filters",
    r"straight (at|to) the store": "directly to the store",
    r"in hand": "running, held",
    r"unless said otherwise": "Default: …",
    r"to be had": "available",
    r"(in|for|after|with|only) so (many|much|long)": "name the number: the limit, this long",
    r"of so (many|much|long)": "name the number: the limit, this long",
    r"(that|this) is so": "name the condition",
    r"as if alone": "say what it sees",
    r"faults? strikes?|it can strike": "occurs, is injected",
    r"(stands?|stood) (in the|there|beside|above)": "is in, is next to",
    r"(lies|lie|lay) (in|on|below|beside|at|between)": "is in, is below",
    r"asks for itself": "reloads",
    r"not a whole one|no whole one": "incomplete",
    r"who (has heard|is further behind|waits exactly|says less|has a face)": "name the actor",
    r"who (is|are|was) (assigned|given|told)": "name the actor",
    r"and is none": "but is not a …",
    r"(is|are|was|were) not to be": "must not, cannot",
    r"all that there (is|are)": "all",
    r"what (it|they) (is|are) called": "its name",
    r"(goes|go) in; .{1,40} comes? out": "say what the program does",
    r"(can be|is|are) claimed again": "returned to the queue",
    r"a word about": "say what",
    r"no others? that serves?": "no other worker",
    r"of which (everything|nothing|nobody|a part)": "two sentences, or: whose, whose parts",
    r"how (things|it) (stands?|stood)": "state",
}
"""Phrase, as a regular expression of whole words, and what to write instead."""

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""File and phrase that are right there, with the reason."""


class Finding(NamedTuple):
    file: str
    line: int
    phrase: str
    plain: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.phrase!r}: write plain English, such as: {self.plain}"


_GAP = r"\s+(?:#\s*|--\s*|//\s*)?"  # a phrase can continue on the next line of a text
_PATTERNS = [
    (re.compile(rf"(?<![\w-])(?:{phrase.replace(' ', _GAP)})(?![\w-])", re.IGNORECASE), plain)
    for phrase, plain in PLAIN.items()
]


def main() -> int:
    findings = [found for path in surfaces() for found in check(path)]
    sys.stdout.writelines(f"{each}\n" for each in findings)
    return 1 if findings else 0


def surfaces(root: Path = ROOT) -> Iterator[Path]:
    """Every file with text that people read."""
    yield from (root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    yield from sorted(path for path in (root / "docs").rglob("*.md") if path.parent.name != "reference")
    for kind in ("py", "html", "js", "md"):
        for folder in ("src", "apps", "examples"):
            for path in sorted((root / folder).rglob(f"*.{kind}")):
                if not {"vendor", "node_modules", "build"} & set(path.parts):
                    yield path


def check(path: Path, root: Path = ROOT) -> Iterator[Finding]:
    name = str(path.relative_to(root))
    for number, text in READERS[path.suffix](path.read_text()):
        for pattern, plain in _PATTERNS:
            for match in pattern.finditer(text):
                line = number + text.count("\n", 0, match.start())
                phrase = re.sub(r"\s+", " ", match[0])
                if (name, phrase.lower()) not in EXCEPTIONS:
                    yield Finding(name, line, phrase, plain)


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    """All but code, as one text: a phrase can go over the end of a line."""
    yield 1, re.sub(r"^```.*?^```|`[^`\n]*`", _blank, text, flags=re.MULTILINE | re.DOTALL)


def _python(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _TEXTS and not _NAME.fullmatch(token.string.strip("\"'")):
            yield token.start[0], token.string


def _template(text: str) -> Iterator[tuple[int, str]]:
    yield 1, re.sub(r"\{%.*?%\}|\{\{.*?\}\}", _blank, text, flags=re.DOTALL)


def _whole(text: str) -> Iterator[tuple[int, str]]:
    yield 1, text


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", match[0])


_NAME = re.compile(r"[\w./-]*")
_TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
READERS = {".md": _markdown, ".py": _python, ".html": _template, ".js": _whole}

if __name__ == "__main__":
    sys.exit(main())

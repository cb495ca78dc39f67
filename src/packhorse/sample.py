"""The built-in sample: a text comes in, its sections are digested side by side, and a report comes out.

`packhorse dev` runs it when it is given no file. Copy it to start a file of your own.
"""

from __future__ import annotations

import html
import json
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Annotated

from msgspec import Meta

from packhorse import App, Context, File, Params, Permanent, each, gather

app = App("sample")


class Report(Params):
    """Counts the words of a text, section by section. A line that begins with "# " opens a section."""

    text: File
    title: str = "Report"
    pace: Annotated[float, Meta(ge=0, le=60, description="Seconds that each section takes, to have time to watch.")] = 0


@dataclass
class Section:
    """A piece of the text. Small, because what a stage returns is kept in the job's record; the text stays a file."""

    title: str
    start: int
    end: int


@dataclass
class Digest:
    title: str
    lines: int
    words: int
    characters: int
    frequent: dict[str, int]


report = app.pipeline("report", Report)


@report.stage
def read(ctx: Context, p: Report) -> list[Section]:
    """Find the sections."""
    data = p.text.read_bytes()
    heads = [(match.start(), match.end(), _text(match[1])) for match in re.finditer(rb"(?m)^# *(.*)\n?", data)]
    if not heads or data[: heads[0][0]].strip():
        heads.insert(0, (0, 0, "Start"))
    ends = [start for start, _, _ in heads[1:]] + [len(data)]
    sections = [Section(title, begin, end) for (_, begin, title), end in zip(heads, ends, strict=True)]
    if not data.strip():
        raise Permanent(f"{p.text.name} is empty, so there is nothing to report.", code="EMPTY")
    ctx.log.info("%s has %d sections", p.text.name, len(sections))
    return sections


@report.stage(weight=8, timeout="5m")
def digest(ctx: Context, p: Report, section: Section = each(read)) -> Digest:
    """Count what is in one section. Runs once for each, as many at a time as the worker has slots."""
    text = _text(p.text.read_bytes()[section.start : section.end])
    lines = text.splitlines()
    words: Counter[str] = Counter()
    for line in ctx.track(lines, message=section.title):
        words.update(_words(line))
        time.sleep(p.pace / len(lines))
    return Digest(section.title, len(lines), words.total(), len(text), _frequent(words, 3))


@report.stage
def render(ctx: Context, p: Report, digests: list[Digest] = gather(digest)) -> File:
    """Write the report: as JSON, the result, and as a page for people, an artifact beside it."""
    found = {
        "title": p.title,
        "source": {"name": p.text.name, "size": p.text.size, "sha256": p.text.sha256},
        "words": sum(digest.words for digest in digests),
        "sections": [asdict(digest) for digest in digests],
    }
    result = ctx.scratch / "report.json"
    result.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    ctx.artifact("report.html", _page(p, digests).encode())
    ctx.log.info("%d words in %d sections", found["words"], len(digests))
    return File(result)


@app.job  # a pipeline of one stage, straight from a function
def words(text: str, most: int = 10) -> dict[str, int]:
    """Lists the most frequent words of a text, and how often each occurs."""
    return _frequent(Counter(_words(text)), most)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _frequent(words: Counter[str], most: int) -> dict[str, int]:
    """The same for the same words in any order, so that a report can be checked by making it again."""
    return dict(sorted(words.items(), key=lambda pair: (-pair[1], pair[0]))[:most])


def _page(p: Report, digests: list[Digest]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(digest.title)}<td>{digest.lines}<td>{digest.words}<td>{digest.characters}"
        f"<td>{html.escape(', '.join(digest.frequent))}"
        for digest in digests
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(p.title)}</title>'
        "<style>body{font:16px/1.5 system-ui;margin:2rem auto;max-width:50rem}td,th{text-align:left;padding:0 1rem}"
        f"</style><h1>{html.escape(p.title)}</h1><p>{html.escape(p.text.name)}, sha256 {p.text.sha256}</p>"
        f"<table><tr><th>section<th>lines<th>words<th>characters<th>frequent{rows}</table></html>\n"
    )

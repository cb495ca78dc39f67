"""What a page says, read from its HTML: for tests that need no browser."""

from __future__ import annotations

import re
from html import unescape

TAG = re.compile(r"<[^>]+>")


def text(html: str) -> str:
    """Without tags, and every gap one space."""
    return " ".join(unescape(TAG.sub(" ", html)).split())


def parts(page: str, pattern: str) -> list[str]:
    """What is between the tags that match, such as `<tr id="job-.*?</tr>`, as text."""
    return [text(found) for found in re.findall(pattern, page, re.DOTALL)]


def rows(page: str) -> list[list[str]]:
    """The cells of each row of all table bodies."""
    bodies = "".join(re.findall(r"<tbody>.*?</tbody>", page, re.DOTALL))
    found = re.findall(r"<tr.*?</tr>", bodies, re.DOTALL)
    return [parts(row, r"<t[dh][ >].*?</t[dh]>") for row in found]


def links(page: str) -> dict[str, str]:
    """Address of each link, by its text."""
    found = re.findall(r'<a [^>]*?href="([^"]*)"[^>]*>(.*?)</a>', page, re.DOTALL)
    return {text(inner): unescape(address) for address, inner in found}

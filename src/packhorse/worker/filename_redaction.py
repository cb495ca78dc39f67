"""Names of files that a stage has made, without what it may have written of a secret into them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from packhorse.core.redaction import MASK, begun, redacted
from packhorse.core.secret_forms import SHORTEST, longest_first
from packhorse.define.files import LONGEST_NAME, sanitised

SLASH = re.compile(r"[/\\]")
MARGIN = 8
"""Bytes that a name which was cut may lack of the longest: half a character, and blanks."""


def unspoken(name: str, secrets: Sequence[str]) -> str:
    """A name comes here made safe: of a secret with slashes in it only the last part may be left, or it was cut."""
    if not secrets:
        return name
    parts = (sanitised(part) for secret in secrets for part in SLASH.split(secret) if len(part.strip(". ")) >= SHORTEST)
    looked_for = longest_first(text for text in (*secrets, *parts) if len(text) >= SHORTEST)
    was_cut = any(len(part.encode()) > LONGEST_NAME - MARGIN for part in name.split("/"))
    name = redacted(name, looked_for)
    return "/".join(_whole(part, looked_for) for part in name.split("/")) if was_cut else name


def _whole(part: str, secrets: Sequence[str]) -> str:
    """Without the beginning of a secret where it was cut: at its end, or before its suffix."""
    for end in {len(part), part.rfind(".")} - {-1}:
        size = begun(part[:end], secrets)
        if size >= SHORTEST:
            return part[: end - size] + MASK + part[end:]
    return part

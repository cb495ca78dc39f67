"""Names of attempts: random, so that nobody else can have the same."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

SIZE = 16
"""Characters of each."""
AT_ONCE = 256
"""Made with one call to the system, which costs more than all the rest."""


def tokens() -> Iterator[str]:
    while True:
        many = secrets.token_hex(SIZE // 2 * AT_ONCE)
        yield from (many[at : at + SIZE] for at in range(0, len(many), SIZE))

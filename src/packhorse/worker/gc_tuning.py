"""Python's collector of cycles in a supervisor, which makes hardly any: what an attempt leaves is freed by counting."""

from __future__ import annotations

import gc

YOUNG = 20_000
"""Objects that may be new before it looks: with Python's 700, a fifth of the supervisor's time went into looking."""


def collect_seldom() -> None:
    """Call it once, when everything is loaded: what is there then stays, and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])

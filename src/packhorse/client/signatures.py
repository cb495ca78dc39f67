"""Gives a method the name, docstring and signature of the description it was made from, for `help` and the docs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar

M = TypeVar("M", bound=Callable[..., Any])

SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def shown_as(method: M, describe: Callable[..., Any], returns: str | None = None) -> M:
    """``returns`` is what the method returns, where that is not what the description is a description of."""
    update_wrapper(method, describe)
    found = inspect.signature(describe)
    given = returns or re.sub(r"^\w+\[(.*)\]$", r"\1", str(found.return_annotation))
    signature = found.replace(parameters=[SELF, *found.parameters.values()], return_annotation=given)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method

"""Inspection of user functions: their place in the source, names and type hints."""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from packhorse.errors import DefinitionError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")

Scope = Mapping[str, Any]


def require_function(value: Any) -> None:
    if not callable(value) or not hasattr(inspect.unwrap(value), "__code__"):
        raise definition_error(f"Only a function can be decorated, not {value!r}")


def place_of(function: Callable[..., Any]) -> str:
    """``file.py:LINE``, which editors can open."""
    code = inspect.unwrap(function).__code__
    return _place(code.co_filename, code.co_firstlineno)


def caller() -> tuple[str, Scope]:
    """The place in the user's code that called this package, and its local names."""
    frame = sys._getframe()
    while (outer := frame.f_back) is not None and _is_ours(frame):
        frame = outer
    return _place(frame.f_code.co_filename, frame.f_lineno), frame.f_locals


def definition_error(sentence: str, place: str | None = None) -> DefinitionError:
    """``place`` is where the mistake is; default: the line in the user's code that called this package."""
    place = place or caller()[0]
    return DefinitionError(f"{sentence.rstrip('.')}. See {place}", place=place)


def check_name(name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid name: use up to 63 letters, digits, - and _, starting with a letter or digit"
        )
    return name


def hint(function: Callable[..., Any], name: str, scope: Scope) -> Any:
    """The type hint of a parameter (or ``return``), Any if it has none. Raises NameError if it cannot be resolved.

    Resolved one at a time, because other hints may only exist for type checkers.
    """
    function = inspect.unwrap(function)
    if name not in function.__annotations__:
        return Any
    alone = types.SimpleNamespace(__annotations__={name: function.__annotations__[name]})
    local = dict(scope) if "<locals>" in function.__qualname__ else None
    return get_type_hints(alone, function.__globals__, local, include_extras=True)[name]


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_ours(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "packhorse"


def _place(path: str, line: int) -> str:
    inside = os.path.relpath(path)
    return f"{path if inside.startswith(os.pardir) else inside}:{line}"

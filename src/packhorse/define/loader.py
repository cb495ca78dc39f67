"""Finds the app in a file or a module of the user's."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from packhorse.define.registry import Code
from packhorse.errors import DefinitionError


def load(target: str) -> Code:
    """``file.py``, ``file.py:attribute``, ``module`` or ``module:attribute``; without attribute, the only app there."""
    where, _, attribute = target.partition(":")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    except DefinitionError:
        raise
    except BaseException as error:  # broad: loading runs the user's module, which may raise anything, SystemExit too
        raise DefinitionError(f"{where} cannot be loaded: {_last_line(error)}") from error
    return _code(module, where, attribute)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DefinitionError(f"There is no file {path}.")
    sys.path.insert(0, str(path.parent.absolute()))  # so that it finds its neighbours, as `python file.py` would
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _code(module: ModuleType, where: str, attribute: str) -> Code:
    if attribute:
        code = getattr(getattr(module, attribute, None), "code", None)
        if not isinstance(code, Code):
            raise DefinitionError(f"{where} has no app named {attribute!r}.")
        return code
    found = {
        id(code): code for value in vars(module).values() if isinstance(code := getattr(value, "code", None), Code)
    }
    if len(found) != 1:
        many = "no app" if not found else f"{len(found)} apps; name one, as {where}:NAME"
        raise DefinitionError(f'{where} has {many}. An app is made with app = App("name").')
    return next(iter(found.values()))


def _last_line(error: BaseException) -> str:
    """The error, and the place in the user's file where it came up, be it deep in a library called from there."""
    said = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError):
        return f"{said} ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if frame.name == "<module>"), frames[-1])
    return f"{said} ({place.filename}:{place.lineno})"

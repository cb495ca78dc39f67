"""The code of one app: its pipelines, schedules and stages; and loading it from a file or module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from packhorse.core.plan import Definition
from packhorse.define.introspection import check_name, definition_error
from packhorse.define.options import ScheduleOptions, check_names, seconds
from packhorse.define.pipelines import Pipeline
from packhorse.define.signature import Submits
from packhorse.define.stages import Stage
from packhorse.errors import DefinitionError, InvalidInput

if TYPE_CHECKING:
    from packhorse.core.schedules import Declared


class Code:
    def __init__(self, app: str, default_pipeline: str | None = None, postgres: str | None = None) -> None:
        try:
            self.app = check_name(app)
        except ValueError as error:
            raise definition_error(f"App: {error}") from error
        self._default = default_pipeline
        self.postgres = postgres
        """The app's SQL file."""
        self._pipelines: dict[str, Pipeline[Any]] = {}
        self._schedules: dict[str, Declared] = {}

    @property
    def pipelines(self) -> Mapping[str, Pipeline[Any]]:
        return self._pipelines

    def add(self, pipeline: Pipeline[Any]) -> None:
        """Its stages may follow later. Names must differ in more than case, because some file systems ignore case."""
        twin = next((p for p in self._pipelines.values() if p.name.lower() == pipeline.name.lower()), None)
        if twin is not None and twin is not pipeline:
            raise definition_error(
                f"Pipeline {pipeline.name!r} has the name of {twin.name!r} at {twin.place}", pipeline.place
            )
        self._pipelines[pipeline.name] = pipeline

    @property
    def schedules(self) -> Sequence[Declared]:
        return list(self._schedules.values())

    def schedule(
        self, id: str, what: Pipeline[Any] | Submits[..., Any], params: object, cron: str, options: ScheduleOptions
    ) -> None:
        """Declare a schedule. Loads the calendar, which apps without schedules do not need."""
        from packhorse.core.schedules import Declared, Terms, check_terms

        pipeline = what.pipeline if isinstance(what, Submits) else what
        try:
            check_names(options, ScheduleOptions, "a schedule")
            given: dict[str, Any] = {**options, "window": seconds(options.get("window", 3600.0))}
            terms = Terms(pipeline.name, _parameters(what, params), cron, **given)
            check_terms(terms, time.time())
            declared = Declared(check_name(id), terms)
        except (ValueError, TypeError, InvalidInput) as error:
            raise definition_error(f"Schedule {id!r}: {error}") from error
        if id in self._schedules:
            raise definition_error(f"There are two schedules {id!r}")
        if pipeline.name not in self._pipelines:
            raise definition_error(f"Schedule {id!r} is for a pipeline of another app")
        self._schedules[id] = declared

    @property
    def by_kind(self) -> Mapping[str, tuple[Pipeline[Any], Stage[..., Any]]]:
        return {
            stage.plan.kind: (pipeline, stage)
            for pipeline in self._pipelines.values()
            for stage in pipeline.stages.values()
        }

    def definitions(self) -> list[Definition]:
        """Raises DefinitionError for a word or a default that names nothing: only now are all pipelines known."""
        if self._default is not None and self._default not in self._pipelines:
            raise definition_error(f"App {self.app!r} has default_pipeline={self._default!r}, but no such pipeline")
        named = {stage for each in self._pipelines.values() for stage in each.stage_statuses}
        if missing := sorted(named - {stage for each in self._pipelines.values() for stage in each.stages}):
            raise definition_error(f"App {self.app!r} has statuses= for {missing[0]!r}, but no stage has that name")
        return [
            pipeline.definition(self.app, is_default=pipeline.name == self._default)
            for pipeline in self._pipelines.values()
        ]


def load(target: str) -> Code:
    """``file.py``, ``file.py:attribute``, ``module`` or ``module:attribute``; without attribute, the only app there."""
    where, _, attribute = target.partition(":")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    except DefinitionError:
        raise
    except BaseException as error:  # broad: loading runs the user's module, which may raise anything, SystemExit too
        if not where.endswith(".py") and Path(where).is_file():
            raise DefinitionError(f"{where} is not a Python file. Give file.py or module:attribute.") from error
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


def _parameters(what: Pipeline[Any] | Submits[..., Any], params: object) -> bytes:
    """The parameters of a schedule as JSON."""
    pipeline, build = (what.pipeline, what.params_from) if isinstance(what, Submits) else (what, what.params)
    if params is None or isinstance(params, Mapping):
        params = build(**(params or {}))
    data, files = pipeline.schema.encode(params)
    if files:
        raise ValueError("a schedule cannot hold files")
    return data

"""The pipelines that workers have published, and what may be submitted to each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import jsonschema_rs
import msgspec

from packhorse.core import json
from packhorse.core.plan import Definition, Status
from packhorse.define import validation
from packhorse.define.files import ANYTHING, PATH_NAME, Accepts
from packhorse.define.files import SCHEMA as FILE
from packhorse.define.schemas import unknown_names
from packhorse.define.validation import UNDECODABLE, FieldError, decode_json, list_some
from packhorse.errors import InvalidInput
from packhorse.store.base import Records
from packhorse.store.collections.workers import list_definitions

FRESH = 2.0
"""Seconds for which definitions are cached. An unknown name causes a read at once."""

UNSAID = "What was sent"
"""Replaces the invalid value in messages where it may be or contain a secret."""

UNIQUE_BY = "x-unique-by"
"""Keyword of a list: all elements have this field, each with a value of its own, or none has it."""

Json = Mapping[str, Any]
Many = Literal["one", "many"]


class Published:
    """One pipeline: its plan, and the rules of its parameters."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.plan = json.plan_from(definition.plan)
        self._schema: dict[str, Any] = json.decode(definition.schema)
        self._properties: Json = self._schema.get("properties", {})
        files = {name: found for name, part in self._properties.items() if (found := self._file(part)) is not None}
        self.files = {name: how for name, (how, _) in files.items()}
        self._accepts = {name: Accepts.from_schema(schema) for name, (_, schema) in files.items()}
        self._paths: dict[str, str] = {
            alias: name for name, (_, part) in files.items() if (alias := part.get(PATH_NAME)) is not None
        }
        self._validator = jsonschema_rs.validator_for(
            self._schema,
            validate_formats=True,
            formats={"date-time": _is_time},
            offline=True,
            keywords={UNIQUE_BY: _UniqueBy},
            mask=UNSAID if self.plan.secrets else None,
        )

    @property
    def names(self) -> list[str]:
        return list(self._properties)

    def takes(self, name: str) -> bool:
        return name in self._properties or self._schema.get("additionalProperties") is not False

    def accepts(self, name: str) -> Accepts:
        """What the file, or each of the files, of this parameter may be."""
        return self._accepts.get(name, ANYTHING)

    def file_of(self, name: str) -> str:
        """The parameter that takes the file whose path is given under this name; else the name itself."""
        return self._paths.get(name, name)

    def rename_paths(self, values: Json) -> dict[str, Any]:
        """The values with each path under the name of its file. Raises InvalidInput if both names are given."""
        doubled = [alias for alias, name in self._paths.items() if alias in values and name in values]
        if doubled:
            errors: list[FieldError] = [{"field": name, "message": "This is given twice"} for name in doubled]
            raise validation.invalid(validation.NOT_VALID, errors)
        return {self.file_of(name): value for name, value in values.items()}

    def is_list(self, name: str) -> bool:
        """Whether the parameter may be given several times."""
        return self._list(name) is not None

    def read(self, name: str, texts: Sequence[str]) -> Any:
        """The value of a form field: the text where the schema allows one, else JSON. For a list, of each element.

        A single text that is a JSON array is that array. What is not JSON stays a text, so that the schema says what
        was expected.
        """
        schema, array = self._of(name), self._list(name)
        if array is None or (len(texts) == 1 and not self._is_element(texts[0], schema)):
            return self._one(texts[0], schema)
        return [self._one(text, _item(array, i)) for i, text in enumerate(texts)]

    def find_errors(self, values: Json) -> list[FieldError]:
        """Of parameters in which each file is a text."""
        if self._validator.is_valid(values):
            return []
        errors = list(self._validator.iter_errors(values))
        surplus = unknown_names(values, self._schema) if errors else {}
        return [found for error in errors for found in _field_errors(error, surplus)]

    def _file(self, schema: Json) -> tuple[Many, Json] | None:
        """Whether it takes one or many, and the schema of each; None if it is no file."""
        branches = [part for part in self._branches(schema) if part.get("type") != "null"]
        if len(branches) != 1:
            return None
        if _is_file(branches[0]):
            return "one", branches[0]
        items = branches[0].get("items")
        if isinstance(items, Mapping) and _is_file(self._resolve(items)):
            return "many", self._resolve(items)
        return None

    def _of(self, name: str) -> Json:
        rest = self._schema.get("additionalProperties")
        found: Json = self._properties.get(name, rest if isinstance(rest, Mapping) else {})
        return found

    def _list(self, name: str) -> Json | None:
        return next((part for part in self._branches(self._of(name)) if "array" in _several(part.get("type"))), None)

    def _is_element(self, text: str, schema: Json) -> bool:
        """Whether a single text is an element of the list, and not the whole list."""
        kinds = {kind for part in self._branches(schema) for kind in _several(part.get("type"))}
        if kinds - {"array", "null"}:
            return False
        try:
            whole = decode_json(text.encode())
        except msgspec.DecodeError:  # no JSON
            return True
        except UNDECODABLE:  # nested too deeply
            return False
        return not (isinstance(whole, list) or (whole is None and "null" in kinds))

    def _one(self, text: str, schema: Json) -> Any:
        if self._is_text(schema):
            return text
        try:
            return decode_json(text.encode())
        except UNDECODABLE:
            return text

    def _is_text(self, schema: Json) -> bool:
        return any(
            "string" in _several(part.get("type"))
            or any(isinstance(value, str) for value in (*part.get("enum", ()), part.get("const")))
            for part in self._branches(schema)
        )

    def _branches(self, schema: Json) -> Iterator[Json]:
        schema = self._resolve(schema)
        inner = schema.get("anyOf") or schema.get("oneOf")
        if inner:
            for part in inner:
                yield from self._branches(part)
        else:
            yield schema

    def _resolve(self, schema: Json) -> Json:
        while "$ref" in schema:
            schema = self._schema["$defs"][schema["$ref"].rpartition("/")[2]]
        return schema


class Catalog:
    def __init__(self, store: Records, default: str = "") -> None:
        """``default`` is the pipeline that is meant where none is named."""
        self._store = store
        self._default = default
        self._found: dict[str, Published] = {}
        self._read_at = -FRESH

    async def all(self, app: str = "") -> Sequence[Published]:
        """Of the app, if one is named."""
        await self._refresh()
        return list(self._of(app).values())

    async def get(self, name: str | None, app: str = "") -> Published:
        """The pipeline of that name; without a name, the default, or the only pipeline. Of the app, if one is named."""
        await self._refresh()
        found = self._of(app)
        if (name is not None and name not in found) or not found:
            await self._refresh(always=True)
            found = self._of(app)
        if name is not None:
            if name not in found:
                raise validation.unknown_pipeline(name, found)
            return found[name]
        defaults = [self._default, *(each for each, of in found.items() if app and of.definition.is_default)]
        chosen = next((each for each in defaults if each in found), None)
        if chosen is None and len(found) == 1 and not (self._default and not app):
            [chosen] = found
        if chosen is not None:
            return found[chosen]
        if self._default and not app:
            raise validation.unknown_pipeline(self._default, found)
        nothing = "No pipeline is published; a worker publishes its own when it starts."
        message = f"Name a pipeline: {list_some(sorted(found))}." if found else nothing
        raise InvalidInput(message, field="pipeline")

    def _of(self, app: str) -> dict[str, Published]:
        return {name: each for name, each in self._found.items() if app in ("", each.definition.app)}

    async def read_status(self, word: str | None, pipeline: str | None = None, app: str = "") -> Status | None:
        """The status that a word means: one of ours, or an app's own, of the named pipeline. Raises InvalidInput."""
        if word is None or word in [*Status]:
            return None if word is None else Status(word)
        plans = [each.plan for each in await self.all(app) if pipeline in (None, each.plan.pipeline)]
        meant = sorted({status for plan in plans for status, called in plan.statuses.items() if called == word})
        if len(meant) == 1:
            return meant[0]
        if meant:
            message = f"It can mean {' or '.join(meant)}: use one of these, or name the pipeline"
        elif stages := sorted({stage for plan in plans for stage, each in plan.stage_statuses.items() if each == word}):
            message = f"It names a job while its stage {stages[0]} runs: use running"
        else:
            words = dict.fromkeys([*Status, *(word for plan in plans for word in plan.statuses.values())])
            raise validation.invalid(validation.NOT_VALID, [validation.one_of("status", words)])
        raise validation.invalid(validation.NOT_VALID, [{"field": "status", "message": message}])

    async def _refresh(self, *, always: bool = False) -> None:
        if not always and time.monotonic() - self._read_at < FRESH:
            return
        found = {definition.pipeline: definition for definition in await list_definitions(self._store)}
        self._found = {name: self._compile(definition) for name, definition in found.items()}
        self._read_at = time.monotonic()

    def _compile(self, definition: Definition) -> Published:
        """Once: every worker that starts publishes its definitions again."""
        known = self._found.get(definition.pipeline)
        if known is not None and known.definition.fingerprint == definition.fingerprint:
            known.definition = definition
            return known
        return Published(definition)


def _field_errors(error: jsonschema_rs.ValidationError, surplus: Mapping[str, Sequence[str]]) -> list[FieldError]:
    path = _path(error.instance_path)
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.Custom() if error.kind.keyword == UNIQUE_BY:
            at, _, message = error.message.partition(" ")
            return [{"field": path + at, "message": message}]
        case jsonschema_rs.ValidationErrorKind.Required():
            return [{"field": _join(path, error.kind.property), "message": "This is required"}]
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties():
            names = [_join(path, name) for name in error.kind.unexpected]
            return [found for name in names for found in validation.unknown_fields([name], surplus.get(name, ()))]
        case jsonschema_rs.ValidationErrorKind.Enum():
            return [validation.one_of(path, error.kind.options)]
    return [{"field": path, "message": error.message}]


class _UniqueBy:
    """Checks `UNIQUE_BY`. The message begins with the place of the first element that breaks the rule."""

    def __init__(self, _parent: Json, field: str, _path: Sequence[str | int]) -> None:
        self._field = field

    def validate(self, value: Any) -> None:
        if not isinstance(value, list):
            return  # its type is reported
        found = [each.get(self._field) if isinstance(each, Mapping) else None for each in value]
        seen = set[str]()
        for i, each in enumerate(found):
            if (each is None) != (found[0] is None):
                raise ValueError(f"[{i}].{self._field} All elements must have it, or none")
            if each is not None and (key := repr(each)) in seen:
                raise ValueError(f"[{i}].{self._field} It must not be the same as of another element")
            if each is not None:
                seen.add(key)


def _path(steps: Sequence[str | int]) -> str:
    path = ""
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else _join(path, step)
    return path


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _item(array: Json, i: int) -> Json:
    first: Sequence[Json] = array.get("prefixItems", ())
    found: Any = first[i] if i < len(first) else array.get("items")
    return found if isinstance(found, Mapping) else {}


def _is_file(schema: Json) -> bool:
    return all(schema.get(key) == value for key, value in FILE.items())


def _several(kind: Any) -> Sequence[Any]:
    return kind if isinstance(kind, list) else [kind]


def _is_time(text: str) -> bool:
    """As Python reads it, also without a zone."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True

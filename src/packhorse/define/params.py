"""Parameters of a pipeline: their type, choices, JSON Schema, encoding and decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import NoneType
from typing import Annotated, Any, dataclass_transform, get_args, get_origin

import msgspec

from packhorse.core.json import ANY, values_at
from packhorse.core.plan import Path
from packhorse.define.files import ANYTHING, Accepts, File, accepts_in, file_at
from packhorse.define.introspection import alternatives
from packhorse.define.schemas import (
    Many,
    fields_of,
    files_in,
    has_fields,
    is_hidden,
    is_model,
    model_to_json,
    parse_model,
    schema_of,
    unknown_names,
)
from packhorse.define.secrets import Secret, secrets_in, to_secret
from packhorse.define.signatures import HEAD
from packhorse.define.validation import UNDECODABLE, FieldError, field_errors, invalid, one_of, unknown_fields
from packhorse.errors import DefinitionError, InvalidInput

Choice = str | int

NOT_VALID = "The parameters are not valid"


class Choices:
    """``voice: Annotated[str, Choices(voices)]`` is one of what ``voices()`` returns where the worker runs.

    A worker calls the function when it starts and publishes the choices with the schema; each process that runs stages
    calls it once. Submitting never calls it. Defaults are not checked. Also works in ``... | None``, in ``list[...]``,
    and in the fields of a parameter's type.
    """

    def __init__(self, find: Callable[[], Iterable[Choice]]) -> None:
        self._find = find

    @cached_property
    def values(self) -> list[Choice]:
        """Raises ValueError if there are none, and whatever the function raises."""
        known = list(dict.fromkeys(self._find()))
        if not known or not all(isinstance(choice, str | int) for choice in known):
            raise ValueError(f"choices must be texts or numbers, and at least one, not {known!r}")
        return known

    def add_to(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The JSON Schema of a value with the choices. Raises TypeError if they cannot be for it."""
        if schema.get("type") not in ("string", "integer"):
            raise TypeError("choices are for texts and whole numbers")
        return {**schema, "enum": self.values}


def choices_of(type: type[Any]) -> dict[Path, Choices]:
    """Choices by their path in a parameter type. TypeError if a union makes it unclear which values they are for."""
    return {path: here for field in fields_of(type) for path, here in _find(field.hint, (field.name,), (type,))}


def _find(hint: Any, path: Path, inside: tuple[Any, ...]) -> Iterator[tuple[Path, Choices]]:
    if get_origin(hint) is Annotated:
        base, *notes = get_args(hint)
        noted = next((note for note in notes if isinstance(note, Choices)), None)
        yield from ((path, noted),) if noted is not None else _find(base, path, inside)
    elif has_fields(hint):
        if hint in inside:  # a recursive type
            return
        for field in fields_of(hint):
            yield from _find(field.hint, (*path, field.name), (*inside, hint))
    elif (parts := alternatives(hint)) != (hint,):
        within = [each for part in parts for each in _find(part, path, inside)]
        if within and len([part for part in parts if part is not NoneType]) > 1:
            raise TypeError(
                f"choices cannot be for one alternative of several, as in {hint}; only None may be beside them"
            )
        yield from within
    else:
        for each in get_args(hint):
            yield from _find(each, (*path, ANY), inside)


Change = Callable[[dict[str, Any]], dict[str, Any]]


def change_schema(schema: Mapping[str, Any], path: Path, change: Change) -> dict[str, Any]:
    """The schema with the part at the path changed; of a list, its elements, and of a union, all but None."""
    defs = dict(schema.get("$defs", {}))
    whole = _change_part(schema, path, change, defs)
    return {**whole, "$defs": defs} if defs else whole


def _change_part(schema: Mapping[str, Any], path: Path, change: Change, defs: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        defs[name] = _change_part(defs[name], path, change, defs)
        return dict(schema)
    if "anyOf" in schema:
        parts = [p if p.get("type") == "null" else _change_part(p, path, change, defs) for p in schema["anyOf"]]
        return {**schema, "anyOf": parts}
    if path and path[0] in schema.get("properties", {}):
        inner = _change_part(schema["properties"][path[0]], path[1:], change, defs)
        return {**schema, "properties": {**schema["properties"], path[0]: inner}}
    for name in ("items", "additionalProperties") if path else ("items",):
        if isinstance(schema.get(name), dict):
            return {**schema, name: _change_part(schema[name], path[1:], change, defs)}
    return change(dict(schema))


def field_name(path: Path) -> str:
    return ".".join(path).replace(f".{ANY}", "[]")


def _single(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _single(each)
    else:
        yield value


class _KeywordOnly(msgspec.StructMeta):
    """Makes every subclass keyword-only; msgspec does not inherit that."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True} | config)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Params(msgspec.Struct, metaclass=_KeywordOnly, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Parameters of a job. Subclass it and declare them as typed fields."""


def params_type(name: str, module: str, fields: Mapping[str, tuple[Any, Any]]) -> type[Params]:
    """Create a `Params` class from names, types and `msgspec.field`s."""
    types = {field: hint for field, (hint, _) in fields.items()}
    defaults = {field: default for field, (_, default) in fields.items()}
    made: type[Params] = _KeywordOnly(
        name, (Params,), {"__module__": module, "__qualname__": name, "__annotations__": types, **defaults}
    )
    return made


class Schema:
    """The JSON form of a parameter type. Raises DefinitionError for an unsupported type."""

    def __init__(self, type: type[Any]) -> None:
        self.type = type
        try:
            fields = list(fields_of(type))
            self.files: Mapping[str, Many] = {
                field.name: how for field in fields if (how := files_in(field.hint)) is not None
            }
            self.accepts = _accepts({field.name: field.hint for field in fields}, self.files)
            self._choices = choices_of(type)
            if any(isinstance(field.default, File) for field in fields):
                raise TypeError("a File cannot be a default; write `File | None = None`")
            if hidden := [field.name for field in fields if is_hidden(field.hint)]:
                raise TypeError(f"{hidden[0]} is a SecretStr, which is written as asterisks; use packhorse.Secret")
            if not is_model(type):
                msgspec.json.Decoder(type)
            self._schema = schema_of(type)
            for name, accepts in self.accepts.items():
                self._schema = change_schema(self._schema, (name,), partial(dict, **accepts.schema()))
            self.secrets = secrets_in(self._schema)
            if self._schema.get("type") != "object":
                raise TypeError("it is not an object in JSON, so it has no named parameters")
        except (TypeError, ValueError, NameError, RuntimeError) as error:
            raise DefinitionError(f"{type.__name__} cannot be the parameters of a job: {error}.") from error

    def json_schema(self) -> dict[str, Any]:
        return self._schema

    def published_schema(self) -> dict[str, Any]:
        """The JSON Schema with the choices of this machine. Raises DefinitionError that names the parameter."""
        schema = self._schema
        for path, choices in self._choices.items():
            try:
                schema = change_schema(schema, path, choices.add_to)
            except Exception as error:  # broad: the user's function may raise anything
                raise DefinitionError(f"the choices of {field_name(path)!r} cannot be read: {error!r}") from error
        return schema

    def encode(self, value: object) -> tuple[bytes, list[tuple[str, int, File]]]:
        """JSON with each File as ``{"$file": n}``, and parameter, index and File for each n.

        Raises InvalidInput for what `decode` would refuse, and for a missing file.
        """
        if not isinstance(value, self.type):
            raise InvalidInput(f"Expected {self.type.__name__}, got {type(value).__name__}.")
        files: list[File] = []

        def plain(inner: Any) -> Any:
            if isinstance(inner, File):
                files.append(inner)
                return {"$file": len(files) - 1}
            if isinstance(inner, Secret):
                return inner.reveal()
            if is_model(type(inner)):
                return model_to_json(inner, plain)
            raise TypeError(f"a value of type {type(inner).__name__} cannot be a parameter")

        try:
            data = msgspec.json.encode(value, enc_hook=plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"{NOT_VALID}: {error}.") from error
        self.decode(data, files)
        found = self._places(msgspec.json.decode(data), files)
        if len(found) != len(files):
            raise InvalidInput(f"{NOT_VALID}: a File is only possible where the type says File.")
        missing = [
            {"field": self._place(name, i), "message": f"There is no file {file.path}"}
            for name, i, file in found
            if file.made_by is None and not file.path.is_file()
        ]
        if missing:
            raise invalid(NOT_VALID, missing)
        for name, i, file in found:
            if file.made_by is None:
                accepts, field = self.accepts.get(name, ANYTHING), self._place(name, i)
                accepts.check(field, file.name)
                accepts.check_size(field, file.size)
                accepts.check_content(field, file.name, "", _head(file))
        return data, found

    def _place(self, name: str, i: int) -> str:
        return name if self.files[name] == "one" else f"{name}[{i}]"

    def decode(self, data: bytes, files: Sequence[File], *, is_worker: bool = False) -> object:
        """The value, with ``files`` in place of their numbers. Raises InvalidInput with a message per field.

        Choices are checked on a worker only, because only a worker knows them.
        """

        def revive(hint: Any, value: Any) -> Any:
            if hint is File:
                return file_at(value, files)
            if hint is Secret:
                return to_secret(value)
            return parse_model(hint, msgspec.json.encode(value)) if is_model(hint) else value

        try:
            given = msgspec.json.decode(data)
            surplus = unknown_names(given, self._schema)
            if surplus:
                raise invalid(NOT_VALID, [m for name, known in surplus.items() for m in unknown_fields([name], known)])
            if is_worker and (mistakes := list(self._choice_errors(given))):
                raise invalid(NOT_VALID, mistakes)
            if is_model(self.type):
                return parse_model(self.type, data, files)
            return msgspec.json.decode(data, type=self.type, dec_hook=revive)
        except UNDECODABLE as error:
            raise invalid(NOT_VALID, field_errors(error)) from error

    def _choice_errors(self, given: Any) -> Iterator[FieldError]:
        for path, choices in self._choices.items():
            values = (each for value in values_at(given, [path]) for each in _single(value))
            if any(value is not None and value not in choices.values for value in values):
                yield one_of(field_name(path), choices.values)

    def _places(self, plain: Mapping[str, Any], files: Sequence[File]) -> list[tuple[str, int, File]]:
        """The parameter of each file. Fields are encoded in order, so file numbers increase."""
        found = []
        for name, how in self.files.items():
            given = plain.get(name)
            for i, reference in enumerate(given or ()) if how == "many" else ((0, given),):
                if reference is not None:
                    found.append((name, i, files[reference["$file"]]))
        return found


def _head(file: File) -> bytes:
    with file.open() as content:
        return content.read(HEAD)


def _accepts(hints: Mapping[str, Any], files: Mapping[str, Many]) -> dict[str, Accepts]:
    found = {name: accepts for name, hint in hints.items() if (accepts := accepts_in(hint)) is not None}
    if strange := found.keys() - files.keys():
        raise TypeError(f"{min(strange)} has Accepts, but is not a file")
    taken = set(hints)
    for name, path in ((name, accepts.path) for name, accepts in found.items() if accepts.path is not None):
        if path in taken:
            raise ValueError(f"the path of {name} cannot be named {path!r}: another parameter has this name")
        taken.add(path)
    return found

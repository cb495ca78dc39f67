"""Support for pydantic models. Never imports pydantic; it is used only if the user's code has imported it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from packhorse.define.files import File
from packhorse.define.introspection import alternatives


def is_model(hint: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(hint, type) and issubclass(hint, pydantic.BaseModel)


def is_hidden(hint: Any) -> bool:
    """Whether the type is or may be pydantic's SecretStr."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and pydantic.SecretStr in alternatives(hint)


def schema_of(model: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """Its JSON Schema; the types it refers to are added to ``defs``."""
    schema: dict[str, Any] = model.model_json_schema()
    for name, found in schema.pop("$defs", {}).items():
        if defs.setdefault(name, found) != found:
            raise TypeError(f"Two types named {name} are used together")
    return schema


def fields_of(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name in JSON, type and default of each field."""
    for name, field in model.model_fields.items():
        # What pydantic does not understand of an annotation, it keeps aside.
        hint = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        yield field.serialization_alias or name, hint, field.default


def plain(value: Any, unknown: Callable[[Any], Any]) -> Any:
    """The model as JSON values. ``unknown`` converts what pydantic cannot, such as a File."""
    # round_trip leaves out what is computed from other fields and would be refused as unknown on the way back.
    return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False, fallback=unknown)


def parse(model: Any, data: bytes, files: Sequence[File] = ()) -> Any:
    """Parse a client's JSON, as strict as the model is."""
    return model.model_validate_json(data, context={"files": files})


def revive(model: Any, value: Any, files: Sequence[File]) -> Any:
    """Restore a value that `plain` encoded. Lax, because JSON has no dates."""
    return model.model_validate(value, strict=False, context={"files": files})


def errors_in(error: BaseException | None) -> list[dict[str, str]] | None:
    """Field and message of each mistake, None if the error is not pydantic's."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not isinstance(error, pydantic.ValidationError):
        return None
    return [{"field": _path(mistake["loc"]), "message": mistake["msg"]} for mistake in error.errors(include_url=False)]


def _path(location: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")

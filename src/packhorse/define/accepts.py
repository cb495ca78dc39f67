"""Which files a parameter accepts: kinds and maximum size."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

from packhorse.define.durations import Size
from packhorse.define.durations import size as bytes_of
from packhorse.define.introspection import caller, definition_error
from packhorse.errors import TooLarge, UnsupportedMedia

KIND = re.compile(r"\.[^\s/,;]{1,30}|[a-z]+/(?:\*|[a-z0-9][a-z0-9.+-]*)")

ACCEPT, MAX_BYTES = "x-accept", "x-max-bytes"
"""Extension keywords in JSON Schema, which has none for this."""


class Accepts:
    """``model: Annotated[File, Accepts(".onnx", "image/*", size="200MB")]``: one of these kinds, no larger than that.

    A kind is a suffix or a media type. It is compared with the file name and the media type that the client sent. The
    content is not checked: that is up to the stage. Also works in ``... | None`` and ``list[...]``.
    """

    def __init__(self, *kinds: str, size: Size | None = None) -> None:
        wrong = [kind for kind in kinds if not KIND.fullmatch(str(kind).lower())]
        if wrong:
            raise definition_error(
                f'{wrong[0]!r} is not a kind of file: use ".onnx", "image/png" or "image/*"', caller()[0]
            )
        self.kinds = tuple(kind.lower() for kind in kinds)
        try:
            self.size = None if size is None else bytes_of(size)
        except ValueError as error:
            raise definition_error(str(error), caller()[0]) from error

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any]) -> Accepts:
        """Read from the JSON Schema of a file parameter."""
        return cls(*schema.get(ACCEPT, ()), size=schema.get(MAX_BYTES))

    def schema(self) -> dict[str, Any]:
        accept = {ACCEPT: list(self.kinds)} if self.kinds else {}
        return accept if self.size is None else {**accept, MAX_BYTES: self.size}

    def check(self, field: str, name: str, media_type: str = "") -> None:
        """Raises UnsupportedMedia with the field and the accepted kinds."""
        given = {media_type.partition(";")[0].strip().lower(), mimetypes.guess_type(name)[0] or ""}
        if self.kinds and not any(_matches(kind, name.lower(), given) for kind in self.kinds):
            raise UnsupportedMedia(f"{field} must be {_join_or(self.kinds)}, and {name} is not.", field=field)

    def check_size(self, field: str, size: int) -> None:
        if self.size is not None and size > self.size:
            raise TooLarge(field=field, limit=self.size)

    def limit(self, most: int) -> int:
        return most if self.size is None else min(most, self.size)


ANYTHING = Accepts()


def accepts_in(hint: Any) -> Accepts | None:
    """The `Accepts` annotation of a parameter type: its own, beside None, or of its elements."""
    inside = get_args(hint)
    if get_origin(hint) is Annotated:
        base, *notes = inside
        return next((note for note in notes if isinstance(note, Accepts)), None) or accepts_in(base)
    return next((found for each in inside if (found := accepts_in(each)) is not None), None)


def add_accepts(schema: Mapping[str, Any], accepts: Accepts) -> dict[str, Any]:
    """The schema of a file parameter with its accepted kinds and size added."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [p if p.get("type") == "null" else add_accepts(p, accepts) for p in schema["anyOf"]]}
    if isinstance(schema.get("items"), dict):
        return {**schema, "items": add_accepts(schema["items"], accepts)}
    return {**schema, **accepts.schema()}


def _matches(kind: str, name: str, given: set[str]) -> bool:
    if kind.startswith("."):
        return name.endswith(kind)
    if kind.endswith("/*"):
        return any(each.startswith(kind[:-1]) for each in given)
    return kind in given


def _join_or(kinds: tuple[str, ...]) -> str:
    *first, last = kinds
    return f"{', '.join(first)} or {last}" if first else last

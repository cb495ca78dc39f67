"""The parts of a submitted form: files are stored as they arrive, other fields are combined at the end."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from packhorse.define.files import ANYTHING, sanitize_name
from packhorse.define.validation import (
    NO_PARAMETER,
    NOT_VALID,
    UNDECODABLE,
    FieldError,
    decode_json,
    field_errors,
    invalid,
    unknown_fields,
)
from packhorse.errors import InvalidInput, TooLarge
from packhorse.http.requests.body import Body
from packhorse.http.requests.multipart import Multipart, Part
from packhorse.jobs.catalog import Published
from packhorse.jobs.submit import Intake

BESIDES = 64 * 1024
"""Bytes a request may have besides its parameters and files: metadata, names, punctuation."""

TEXTS = frozenset({"pipeline", "user_id", "delay"})
VALUES = frozenset({"parameters", "priority", "metadata"})

NAME = re.compile(r"\w[\w.-]{0,99}")
"""What a file's parameter can be called; it becomes a part of the object's key."""

Values = dict[str, Any]


class StoredPart(NamedTuple):
    """An uploaded file that was stored."""

    name: str
    media_type: str
    reference: dict[str, int]
    """Its placeholder among the parameters."""


class Form:
    def __init__(
        self, intake: Intake, limit: int, pipeline: Published | None, find: Callable[[str], Awaitable[Published]]
    ) -> None:
        """Once the pipeline is known, a file that it does not accept is refused before it is stored."""
        self._intake = intake
        self._limit = limit
        self._left = limit + BESIDES
        self._pipeline = pipeline
        self._find = find
        self._texts: dict[str, list[bytes]] = {}
        self._files: dict[str, list[StoredPart]] = {}

    async def read(self, body: Body, content_type: str) -> None:
        form = Multipart(body, content_type)
        async with aclosing(form.parts()) as parts:
            async for part in parts:
                if part.filename is None or part.name in TEXTS | VALUES:
                    await self._take_text(part.name, form)
                else:
                    await self._take_file(part, part.filename, form)

    def named(self) -> Values:
        """Everything but the parameters, as it would be in JSON."""
        found: Values = {name: _text(name, texts[0]) for name, texts in self._texts.items() if name in TEXTS}
        return found | {name: _value(name, texts[0]) for name, texts in self._texts.items() if name in VALUES}

    def parameters(self, pipeline: Published, given: Values) -> tuple[Values, Values]:
        """The parameters with each file as its name, and with each file as its placeholder in the record."""
        mistakes = [*self._misplaced_errors(pipeline, given)]
        values: Values = dict(given)
        if mistakes:
            raise invalid(NOT_VALID, mistakes)
        for name, texts in self._texts.items():
            if name not in TEXTS | VALUES:
                values[name] = pipeline.read(name, [_text(name, text) for text in texts])
        self._check(pipeline)
        names = {name: [file.name for file in files] for name, files in self._files.items()}
        references = {name: [file.reference for file in files] for name, files in self._files.items()}
        return values | _arrange(pipeline, names), values | _arrange(pipeline, references)

    def _check(self, pipeline: Published) -> None:
        """Check the files that arrived before the pipeline was known."""
        for name, file in [(name, file) for name, files in self._files.items() for file in files]:
            pipeline.accepts(name).check(name, file.name, file.media_type)
            pipeline.accepts(name).check_size(name, self._intake.inputs[file.reference["$file"]].file.size)

    def _misplaced_errors(self, pipeline: Published, given: Values) -> list[FieldError]:
        texts = self._texts.keys() - TEXTS - VALUES
        strange = {name for name in texts | self._files.keys() if not pipeline.takes(name)}
        doubled = given.keys() & (texts | self._files.keys()) | texts & self._files.keys()
        doubled |= {name for name, files in self._files.items() if len(files) > 1 and pipeline.files.get(name) == "one"}
        doubled |= {name for name in texts - strange if len(self._texts[name]) > 1 and not pipeline.is_list(name)}
        return [
            *unknown_fields(sorted(strange), pipeline.names),
            *_each(doubled, "This is given twice"),
            *_each(self._files.keys() - pipeline.files.keys() - strange, "This is not a file"),
        ]

    async def _take_text(self, name: str, form: Multipart) -> None:
        if name in self._texts and name in TEXTS | VALUES:
            raise InvalidInput(f"{name} is given twice.", field=name)
        try:
            text = await form.text(name, self._left)
        except TooLarge as error:
            raise too_much(name, self._limit) from error
        self._left -= len(text) + len(name)
        self._texts.setdefault(name, []).append(text)

    async def _take_file(self, part: Part, filename: str, form: Multipart) -> None:
        if self._pipeline is None and "pipeline" in self._texts:
            self._pipeline = await self._find(_text("pipeline", self._texts["pipeline"][0]))
        self._admit(part.name)
        accepts = ANYTHING if self._pipeline is None else self._pipeline.accepts(part.name)
        async with aclosing(form.chunks()) as chunks:
            first = await anext(chunks, b"")
            if not first and not filename:  # a browser sends this if no file was chosen
                return
            accepts.check(part.name, sanitize_name(filename), part.media_type)
            try:
                reference = await self._intake.upload(part.name, filename, _chain(first, chunks), accepts)
            except TooLarge as error:  # the object store names it by its key
                raise TooLarge(field=part.name, limit=error.facts["limit"]) from error
        stored = StoredPart(self._intake.inputs[-1].file.name, part.media_type, reference)
        self._files.setdefault(part.name, []).append(stored)

    def _admit(self, name: str) -> None:
        """Refuse a file that cannot be right before it is stored."""
        if self._pipeline is not None and not self._pipeline.takes(name):
            raise invalid(NOT_VALID, unknown_fields([name], self._pipeline.names))
        if not NAME.fullmatch(name):
            raise invalid(NOT_VALID, [{"field": name, "message": NO_PARAMETER}])
        how = "many" if self._pipeline is None else self._pipeline.files.get(name)
        if how is None:
            raise InvalidInput(f"{name} is not a file.", field=name)
        if how == "one" and name in self._files:
            raise InvalidInput(f"{name} is given twice.", field=name)


def too_much(field: str, limit: int) -> TooLarge:
    """Names the setting, not what was left of the limit."""
    return TooLarge(
        f"{field} is too large: a job's parameters have at most {limit} bytes (PACKHORSE_PARAMETERS_LIMIT), "
        f"what is sent with them {BESIDES}, besides files.",
        field=field,
        limit=limit,
    )


def _arrange(pipeline: Published, files: Mapping[str, list[Any]]) -> Values:
    return {name: each[0] if pipeline.files[name] == "one" else each for name, each in files.items()}


def _each(names: set[str], message: str) -> list[FieldError]:
    return [{"field": name, "message": message} for name in sorted(names)]


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{name} is not UTF-8.", field=name) from None


def _value(name: str, data: bytes) -> Any:
    try:
        return decode_json(data)
    except UNDECODABLE as error:
        if name == "priority":  # no JSON anybody would have meant: what is wrong with the text is said as in JSON
            return _text(name, data)
        raise invalid(NOT_VALID, [{**each, "field": name} for each in field_errors(error)]) from error


async def _chain(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk

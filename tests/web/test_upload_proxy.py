"""A browser's form on its way to the API: piece by piece, without what nobody has filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from packhorse.errors import Malformed, PackhorseError, TooLarge
from packhorse.http.form import Multipart
from packhorse.web.forms import Relayed
from packhorse.web.widgets.fields import Field

KIND = "multipart/form-data; boundary=b"
FIELDS = [
    Field("file", "file"),
    Field("text", "text", is_required=True),
    Field("note", "text"),
    Field("title", "text", value="Untitled"),
    Field("count", "number"),
    Field("is_so", "check"),
    Field("labels", "list"),
    Field("secret", "secret"),
]


def part(name: str, content: str, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{content}\r\n'.encode()


def relayed(pieces: list[bytes], limit: int = 1000) -> Relayed:
    waiting = iter(pieces)

    async def receive() -> Any:
        piece = next(waiting, None)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": piece != b"--b--\r\n"}

    return Relayed(receive, KIND, {field.name: field for field in FIELDS}, limit)


class Told:
    """The API's end."""

    def __init__(self, form: Relayed) -> None:
        self._form = form
        self._more = True

    async def read(self) -> bytes | None:
        while self._more:
            message = await self._form.receive()
            self._more = message["more_body"]
            if message["body"]:
                body: bytes = message["body"]
                return body
        return None


async def read(form: Relayed) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    parts = Multipart(Told(form), form.content_type)
    async for each in parts.parts():
        text = (await parts.text(each.name, 10_000)).decode()
        found.setdefault(each.name, []).append(text if each.filename is None else f"{each.filename}: {text}")
    return found


def whole(fields: Mapping[str, str]) -> Iterator[bytes]:
    yield from (part(name, text) for name, text in fields.items())
    yield b"--b--\r\n"


async def test_what_nobody_filled_in_is_not_told() -> None:
    empty = dict.fromkeys(("user_id", "priority", "text", "note", "title", "count", "labels", "secret"), "")

    found = await read(relayed([*whole(empty)]))

    assert found == {"text": [""], "title": [""], "is_so": ["false"]}


async def test_what_is_filled_in_is_told_line_by_line_where_it_is_a_list() -> None:
    given = {"user_id": "ann", "note": "a\r\nb", "labels": "x\r\n\r\n y ", "is_so": "true", "odd": "left out"}

    found = await read(relayed([*whole(given)]))

    assert found == {"user_id": ["ann"], "note": ["a\nb"], "labels": ["x", "y"], "is_so": ["true"]}


async def test_a_file_is_told_on_before_all_of_it_is_there() -> None:
    head = part("file", "", '; filename="a\\"b.txt"')[:-2]
    form = relayed([head + b"first", b"second", b"third\r\n" + part("text", "t"), b"--b--\r\n"])

    begun = [(await form.receive())["body"] for _ in range(3)]

    assert begun[0].endswith(b'name="file"; filename="a%22b.txt"\r\n\r\n')
    assert b"first" in b"".join(begun[1:])
    assert form.typed == {}


async def test_what_was_typed_is_known_again_but_for_secrets() -> None:
    form = relayed([*whole({"text": "t", "secret": "s3cret"})])

    await read(form)

    assert form.typed == {"text": ["t"]}


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([part("text", "t" * 1001), b"--b--\r\n"], TooLarge),
        ([part("text", "t")], Malformed),
        ([b"nonsense", b"--b--\r\n"], Malformed),
    ],
    ids=["too much", "cut off", "no form"],
)
async def test_what_is_wrong_with_the_form_is_raised_where_the_api_reads_it(
    pieces: list[bytes], error: type[PackhorseError]
) -> None:
    form = relayed(pieces)

    with pytest.raises(error):
        await read(form)

    assert (await form.receive())["type"] in ("http.request", "http.disconnect")

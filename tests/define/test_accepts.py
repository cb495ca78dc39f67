"""What a pipeline takes for a file: published with its schema, and checked wherever a job is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from packhorse import Accepts, App, File
from packhorse.define import Params, Schema
from packhorse.errors import DefinitionError, TooLarge, UnsupportedMedia

Small = Annotated[File, Accepts(".ONNX", "image/*", size="1KB")]
SMALL = {"type": "string", "format": "binary", "x-accept": [".onnx", "image/*"], "x-max-bytes": 1024}


class Convert(Params):
    model: Small
    second: Small | None = None
    images: list[Small] = []  # noqa: RUF012 (msgspec copies it)
    whole: Annotated[list[File], Accepts(size=10)] = []  # noqa: RUF012 (msgspec copies it)
    any: File | None = None


class Model(BaseModel):
    model: Small
    images: list[Small] = []


HEADS = {"b.png": b"\x89PNG\r\n\x1a\n", "c.jpeg": b"\xff\xd8\xff\xe0"}


def file(folder: Path, name: str, size: int = 1) -> File:
    (folder / name).write_bytes(HEADS.get(name, b"").ljust(size, b"x"))
    return File(folder / name)


def test_what_is_accepted_is_in_the_schema() -> None:
    found = Schema(Convert).json_schema()["properties"]

    assert found["model"] == SMALL
    assert found["second"]["anyOf"] == [SMALL, {"type": "null"}]
    assert found["images"]["items"] == SMALL
    assert found["whole"]["items"] == {"type": "string", "format": "binary", "x-max-bytes": 10}
    assert found["any"]["anyOf"][0] == {"type": "string", "format": "binary"}
    assert Schema(Model).json_schema()["properties"]["model"].items() >= SMALL.items()
    assert Schema(Model).json_schema()["properties"]["images"]["items"] == SMALL


@pytest.mark.parametrize("name", ["a.onnx", "A.ONNX", "b.png", "c.jpeg"])
def test_a_file_of_one_of_the_kinds_is_taken(tmp_path: Path, name: str) -> None:
    data, files = Schema(Convert).encode(Convert(model=file(tmp_path, name, 1024)))

    assert b'"model":{"$file":0}' in data
    assert len(files) == 1


@pytest.mark.parametrize("kind", [Convert, Model])
@pytest.mark.parametrize("name", ["a.txt", "onnx", "b.onnx.zip"])
def test_a_file_of_another_kind_is_refused_by_its_name(tmp_path: Path, kind: Any, name: str) -> None:
    good, bad = file(tmp_path, "good.onnx"), file(tmp_path, name)

    with pytest.raises(UnsupportedMedia, match=r"must be \.onnx or image/\*") as model:
        Schema(kind).encode(kind(model=bad))
    with pytest.raises(UnsupportedMedia) as image:
        Schema(kind).encode(kind(model=good, images=[good, bad]))

    assert [error.value.errors[0]["field"] for error in (model, image)] == ["model", "images[1]"]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [("a.png", b"%PDF-1.7", "PDF"), ("a.jpg", b"", "empty"), ("a.gif", b"hello", "in an unknown format")],
)
def test_a_file_whose_content_is_of_another_kind_is_refused(
    tmp_path: Path, name: str, content: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(UnsupportedMedia, match=rf"model must be .*: the content of {name} is {what}") as error:
        Schema(Convert).encode(Convert(model=File(tmp_path / name)))

    assert error.value.errors[0]["field"] == "model"


CONTENTS = {
    ".png": b"\x89PNG\r\n\x1a\n",
    ".jpg": b"\xff\xd8\xff\xdb",
    ".gif": b"GIF89a",
    ".webp": b"RIFF\x24\0\0\0WEBPVP8 ",
    ".wav": b"RIFF\x24\0\0\0WAVEfmt ",
    ".mp3": b"\xff\xfb\x90\x00",
    ".flac": b"fLaC\0\0\0\x22",
    ".ogg": b"OggS\0\x02",
    ".mp4": b"\0\0\0\x20ftypisom",
    ".mov": b"\0\0\0\x14ftypqt  ",
    ".webm": b"\x1aE\xdf\xa3\x9f",
    ".zip": b"PK\x03\x04\x14\0",
    ".gz": b"\x1f\x8b\x08\0",
    ".pdf": b"%PDF-1.7",
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_the_first_bytes_say_what_a_file_is(kind: str) -> None:
    alike = {".mp4", ".mov"}
    for other, head in CONTENTS.items():
        if other == kind or {kind, other} <= alike:
            Accepts(kind).check_content("f", f"a{kind}", "", head)
        else:
            with pytest.raises(UnsupportedMedia):
                Accepts(kind).check_content("f", f"a{kind}", "", head)


UTF_16 = '\ufeff{"a": 1}'.encode("utf-16-le")


@pytest.mark.parametrize(
    ("kind", "name", "head"),
    [
        ("text/*", "a.csv", b"BMI,age,weight,height\n"),
        ("text/*", "a.txt", b"The free software that"),
        ("text/*", "a.txt", UTF_16),
        ("application/*", "a.json", UTF_16),
        ("application/*", "a.bin", b"BM and whatever else there is"),
        (".tiff", "a.tiff", b"II+\0\x08\0\0\0"),
        ("image/*", "a.tiff", b"II+\0\x08\0\0\0"),
        (".wav", "a.wav", b"RF64\xff\xff\xff\xffWAVEds64"),
        (".pdf", "a.pdf", b"\n\n%PDF-1.4"),
        ("image/avif", "a.avif", b"\0\0\0\x20ftypmif1"),
        ("image/*", "a.heic", b"\0\0\0\x20ftypheis"),
        ("image/*", "a.svgz", b"\x1f\x8b\x08\0"),
        (".flac", "a.flac", b"ID3\4\0\0\0\0\0\0"),
        (".mp3", "a.mp3", bytes(32)),
        (".mp4", "a.mp4", b"\0\0\0\x18stypmsdh"),
        (".zip", "a.zip", b"PK\7\x08PK\3\4"),
        (".mov", "a.mov", b"\0\0\0\x08wide\0\0\0\0mdat"),
    ],
)
def test_unusual_beginnings_of_a_kind_are_not_refused(kind: str, name: str, head: bytes) -> None:
    Accepts(kind).check_content("f", name, "", head)


@pytest.mark.parametrize(
    ("kind", "name", "head"),
    [
        ("text/*", "a.csv", CONTENTS[".png"]),
        ("image/*", "a.png", CONTENTS[".pdf"]),
        ("audio/*", "a.mp3", CONTENTS[".zip"]),
        (".bmp", "a.bmp", CONTENTS[".gif"]),
    ],
)
def test_content_that_contradicts_the_kind_is_refused(kind: str, name: str, head: bytes) -> None:
    with pytest.raises(UnsupportedMedia):
        Accepts(kind).check_content("f", name, "", head)


def test_a_kind_without_a_signature_and_one_that_opted_out_take_any_content() -> None:
    Accepts(".onnx", "text/*").check_content("f", "a.onnx", "", b"%PDF-")
    Accepts("image/*").check_content("f", "a.svg", "", b"<svg/>")
    Accepts(".png", content=False).check_content("f", "a.png", "", b"%PDF-")

    assert not Accepts.from_schema(Accepts(".png", content=False).schema()).content


def test_a_name_without_a_suffix_is_what_its_media_type_says() -> None:
    Accepts(".txt").check("f", "notes", "text/plain")
    for name, media_type in (("notes", ""), ("notes", "image/png"), ("notes.pdf", "text/plain")):
        with pytest.raises(UnsupportedMedia):
            Accepts(".txt").check("f", name, media_type)


def test_a_media_type_that_was_sent_is_compared_with_the_content() -> None:
    with pytest.raises(UnsupportedMedia):
        Accepts("image/*").check_content("f", "photo", "image/png", b"hello")


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TooLarge) as error:
        Schema(Convert).encode(Convert(model=file(tmp_path, "a.onnx", 1025)))

    assert error.value.facts == {"field": "model", "limit": 1024}


@pytest.mark.parametrize("kind", ["onnx", "image", "image/", "*/*", "", ".a b"])
def test_what_is_no_kind_is_refused_where_it_is_written(kind: str) -> None:
    with pytest.raises(DefinitionError, match=r"not a kind of file.*test_accepts\.py"):
        Accepts(kind)


def test_a_size_that_is_none_is_refused_where_it_is_written() -> None:
    with pytest.raises(DefinitionError, match=r"is not a size.*test_accepts\.py"):
        Accepts(size="large")


def test_only_a_file_accepts_anything() -> None:
    class Wrong(Params):
        text: Annotated[str, Accepts(".txt")]

    with pytest.raises(DefinitionError, match="text has Accepts, but is not a file"):
        Schema(Wrong)


class OfParameter(Params):
    model: Annotated[File, Accepts(path="place")]
    place: str = ""


class OfAnother(Params):
    model: Annotated[File, Accepts(path="place")]
    image: Annotated[File, Accepts(path="place")]


class OfSubmit(Params):
    model: Annotated[File, Accepts(path="user_id")]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (OfParameter, "the path of model cannot be named 'place'"),
        (OfAnother, "the path of image cannot be named 'place'"),
        (OfSubmit, "a parameter cannot be named 'user_id'"),
    ],
)
def test_the_name_of_a_path_is_refused_where_it_is_taken(params: type[Params], said: str) -> None:
    with pytest.raises(DefinitionError, match=rf"{said}.*test_accepts\.py:\d+"):
        App("mine").pipeline("convert", params)


def test_a_function_may_say_what_it_accepts() -> None:
    app = App("mine")

    @app.job
    def look(image: Annotated[File, Accepts("image/png")]) -> int:
        return image.size

    [definition] = app.code.definitions()
    assert b'"x-accept":["image/png"]' in definition.schema

"""Files checked against what a pipeline takes, on every store: before they are kept if it is known by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from packhorse.store.base import Store
from tests.http.conftest import publish
from tests.http.processes import Place
from tests.http.test_submit import fields, nothing_is_left

Http = AsyncTestClient[Any]

HEAD, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0"
PNG = ("a.png", HEAD, "application/octet-stream")
OCTETS = "application/octet-stream"

KNOWN: dict[str, tuple[dict[str, str], str]] = {
    "in the query": ({}, "jobs?pipeline=picture"),
    "by an earlier part": ({"pipeline": "picture"}, "jobs"),
}


@pytest.fixture
def place(tmp_path: Path, anywhere: str, beside: dict[str, str]) -> Place:
    place = Place(tmp_path, store=anywhere, **beside)
    publish(place)
    return place


async def submitted(http: Http, how: str, files: list[tuple[str, tuple[str, bytes, str]]]) -> Any:
    if how == "at the end":
        return await http.post("jobs", files=[*files, ("pipeline", (None, b"picture"))])
    data, url = KNOWN[how]
    return await http.post(url, data=data, files=files)


WAYS = [*KNOWN, "at the end"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    "image", [PNG, ("A.PNG", HEAD, OCTETS), ("photo", JPEG, "image/jpeg; q=1"), ("photo.jpg", JPEG * 256, OCTETS)]
)
async def test_what_a_pipeline_takes_is_taken(http: Http, how: str, image: tuple[str, bytes, str]) -> None:
    answer = await submitted(http, how, [("image", image), ("notes", ("n.txt", b"x" * 100, OCTETS))])

    assert answer.status_code == 202, answer.text


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("field", "file", "status"),
    [
        ("image", ("a.txt", b"x", "text/plain"), 415),
        ("image", ("a", b"x", OCTETS), 415),
        ("image", ("a.png", HEAD.ljust(1025), OCTETS), 413),
        ("image", ("a.png", b"%PDF-1.7", OCTETS), 415),
        ("image", ("photo", HEAD, "image/jpeg"), 415),
        ("notes", ("a.png", b"x", "image/png"), 415),
        ("notes", ("a.txt", b"x" * 101, "text/plain"), 413),
    ],
)
async def test_what_it_does_not_take_is_refused_by_name(
    http: Http, place: Place, store: Store, how: str, field: str, file: tuple[str, bytes, str], status: int
) -> None:
    good = [] if field == "image" else [("image", PNG)]

    answer = await submitted(http, how, [*good, (field, file)])

    assert (answer.status_code, fields(answer)) == (status, {field})
    assert "Content-Type" not in answer.json().get("hint", "")
    assert answer.json()["detail"].startswith(field)
    assert await nothing_is_left(place, store)


async def test_the_schema_of_a_pipeline_says_what_it_takes(http: Http) -> None:
    found = {each["name"]: each for each in (await http.get("pipelines")).json()["items"]}

    image = found["picture"]["schema"]["properties"]["image"]
    assert (image["x-accept"], image["x-max-bytes"]) == ([".png", "image/jpeg"], 1024)

"""Input files that are named by path: read only below the folders and prefixes of the setting, and copied at submit."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from packhorse.blobs import open_blobs
from packhorse.blobs.base import open_file
from packhorse.cli.commands.submit import parameters_from
from packhorse.errors import SettingError
from packhorse.factory import check, open_store
from packhorse.jobs import input_paths
from packhorse.jobs.input_paths import ABSENT, OUTSIDE, UNSET
from packhorse.settings import load
from packhorse.store.base import Filter
from packhorse.store.collections.workers import publish_definitions
from tests.http.conftest import sampled
from tests.http.processes import Place
from tests.http.unserved import Http, unserved
from tests.servers import seaweed
from tests.worker.builders import chunks

Json = dict[str, Any]
SECRET = "nothing that a caller may read"


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """The folder that callers may read, beside and around what they may not."""
    inbox = tmp_path / "inbox"
    (inbox / "folder").mkdir(parents=True)
    (inbox / "folder" / "a b.txt").write_text("one two")
    (inbox / "model.onnx").write_bytes(b"weights")
    (inbox / ".env").write_text(SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a b.txt").write_text(SECRET)
    (inbox / "link.txt").symlink_to(tmp_path / "secret.txt")
    (inbox / "dangling.txt").symlink_to(tmp_path / "missing.txt")
    (inbox / "out").symlink_to(tmp_path / "outside")
    (inbox / "in.txt").symlink_to(inbox / "folder" / "a b.txt")
    os.mkfifo(inbox / "pipe")
    return inbox


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[tuple[Place, Http]]:
    place = Place(folder, **settings)
    store = await open_store(place.settings.store)
    await publish_definitions(store, sampled())
    await store.close()
    async with unserved(place.settings) as http:
        yield place, http


async def left(place: Place) -> tuple[set[str], int]:
    store = await open_store(place.settings.store)
    try:
        return place.objects(), len(await store.find(Filter()))
    finally:
        await store.close()


def split(text: str, name: str = "text") -> Json:
    return {"pipeline": "split", "parameters": {name: text}}


@pytest.mark.parametrize("name", ["text", "text_path"])
@pytest.mark.parametrize("path", ["folder/a b.txt", "in.txt", "folder/../folder/a b.txt"])
async def test_a_file_below_the_folder_is_copied_at_submit(inbox: Path, tmp_path: Path, path: str, name: str) -> None:
    opened = serving(tmp_path, input_folders=f"/nowhere, {inbox}")
    async with opened as (place, http):
        answer = await http.post("jobs", json=split(f"{inbox}/{path}", name))
        (inbox / "folder" / "a b.txt").write_text("changed since")

        assert answer.status_code == 202, answer.text
        job = answer.json()
        assert (job["source_filename"], job["input"]["size_bytes"]) == (Path(path).name, 7)
        [key] = place.objects()
        assert (place.blobs / key).read_text() == "one two"


async def test_a_form_may_name_paths_beside_files_that_it_sends(inbox: Path, tmp_path: Path) -> None:
    opened = serving(tmp_path, input_folders=str(inbox))
    data = {"pipeline": "convert", "user_id": "ann", "model": f"{inbox}/model.onnx"}
    async with opened as (place, http):
        answer = await http.post("jobs", data=data, files=[("ref_images", ("a.png", b"a"))])

    assert answer.status_code == 202, answer.text
    assert {each["filename"] for each in answer.json()["inputs"]} == {"model.onnx", "a.png"}
    assert len(place.objects()) == 2


OUT = {
    "exists": "{top}/secret.txt",
    "is missing": "{top}/missing.txt",
    "by dots": "{inbox}/../secret.txt",
    "by dots, missing": "{inbox}/../missing.txt",
    "a link": "{inbox}/link.txt",
    "a link to nothing": "{inbox}/dangling.txt",
    "a linked folder": "{inbox}/out/a b.txt",
    "a linked folder, missing": "{inbox}/out/missing.txt",
    "by dots after a linked folder": "{inbox}/out/../secret.txt",
    "a hidden file": "{inbox}/.env",
    "the folder itself": "{inbox}",
    "a folder that begins the same": "{inbox}2/a.txt",
    "another user's home": "~root/.ssh/id_rsa".replace("~root", "/root"),
    "a bucket": "s3://inbox/a.txt",
}


async def test_a_path_outside_is_refused_in_the_same_words_whether_it_exists_or_not(
    inbox: Path, tmp_path: Path
) -> None:
    async with serving(tmp_path, input_folders=str(inbox)) as (place, http):
        texts = {why: text.format(inbox=inbox, top=tmp_path) for why, text in OUT.items()}
        answers = {why: await http.post("jobs", json=split(text)) for why, text in texts.items()}

    refused = (422, [{"field": "text", "message": OUTSIDE}])
    assert {why: (each.status_code, each.json()["errors"]) for why, each in answers.items()} == dict.fromkeys(
        OUT, refused
    )
    assert await left(place) == (set(), 0)


async def test_what_is_no_file_below_the_folder_is_told(inbox: Path, tmp_path: Path) -> None:
    async with serving(tmp_path, input_folders=str(inbox)) as (place, http):
        names = ["missing.txt", "folder", "pipe", "model.onnx/x", "x" * 300]
        answers = {name: await http.post("jobs", json=split(f"{inbox}/{name}")) for name in names}

    refused = (422, [{"field": "text", "message": ABSENT}])
    assert {name: (each.status_code, each.json()["errors"]) for name, each in answers.items()} == dict.fromkeys(
        names, refused
    )
    assert await left(place) == (set(), 0)


async def test_packhorses_own_files_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "x.txt").write_text(SECRET)
    own = ["blobs/deployment", "packhorse.db", "packhorse.db-wal", "scratch/x.txt"]
    async with serving(tmp_path, input_folders=str(tmp_path)) as (_, http):
        assert all((tmp_path / each).exists() for each in own)
        answers = {each: await http.post("jobs", json=split(f"{tmp_path}/{each}")) for each in own}

    told = {each: (answer.status_code, answer.json()["errors"][0]["message"]) for each, answer in answers.items()}
    assert told == dict.fromkeys(own, (422, OUTSIDE))


def swap_file(inbox: Path) -> None:
    (inbox / "folder" / "a b.txt").unlink()
    (inbox / "folder" / "a b.txt").symlink_to(inbox.parent / "secret.txt")


def swap_folder(inbox: Path) -> None:
    (inbox / "folder").rename(inbox / "before")
    (inbox / "folder").symlink_to(inbox.parent / "outside")


def move_folder(inbox: Path) -> None:
    (inbox / "folder").rename(inbox.parent / "moved")


@pytest.mark.parametrize("swap", [swap_file, swap_folder])
async def test_a_link_that_replaces_a_path_after_the_check_leads_nowhere(
    inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path], None]
) -> None:
    opened = serving(tmp_path, input_folders=str(inbox))
    enter = input_paths._enter

    def swapped(folder: str | Path, at: int | None, entered: Any) -> int:
        if at is None:  # the path has been resolved and checked, and is about to be opened
            swap(inbox)
        return enter(folder, at, entered)

    monkeypatch.setattr(input_paths, "_enter", swapped)
    async with opened as (place, http):
        answer = await http.post("jobs", json=split(f"{inbox}/folder/a b.txt"))

    assert (answer.status_code, answer.json()["errors"][0]["message"]) == (422, ABSENT)
    assert await left(place) == (set(), 0)


async def test_a_folder_that_is_moved_outside_while_it_is_opened_is_not_read(
    inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = serving(tmp_path, input_folders=str(inbox))

    def moved(*arguments: Any, **options: Any) -> int:
        move_folder(inbox)
        return open_file(*arguments, **options)

    monkeypatch.setattr(input_paths, "open_file", moved)
    async with opened as (place, http):
        answer = await http.post("jobs", json=split(f"{inbox}/folder/a b.txt"))

    assert (answer.status_code, answer.json()["errors"][0]["message"]) == (422, OUTSIDE)
    assert await left(place) == (set(), 0)


async def test_nothing_is_read_without_the_setting(inbox: Path, tmp_path: Path) -> None:
    opened = serving(tmp_path)
    async with opened as (place, http):
        answer = await http.post("jobs", json=split(f"{inbox}/in.txt"))

    assert (answer.status_code, answer.json()["errors"][0]["message"]) == (422, UNSET)
    assert await left(place) == (set(), 0)


async def test_limits_and_accepted_kinds_hold_as_for_uploads(inbox: Path, tmp_path: Path) -> None:
    (inbox / "no.png").write_bytes(b"GIF89a" + bytes(50))
    (inbox / "big.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1100))
    async with serving(tmp_path, input_folders=str(inbox), file_limit=5) as (place, http):
        large = await http.post("jobs", json=split(f"{inbox}/in.txt"))
    async with serving(tmp_path, input_folders=str(inbox)) as (place, http):
        pictures = [
            await http.post("jobs", json={"pipeline": "picture", "parameters": {"image": f"{inbox}/{name}"}})
            for name in ("in.txt", "no.png", "big.png")
        ]

    assert (large.status_code, large.json()["field"], large.json()["limit"]) == (413, "text", 5)
    assert [(each.status_code, each.json()["field"]) for each in pictures] == [
        (415, "image"),
        (415, "image"),
        (413, "image"),
    ]
    assert await left(place) == (set(), 0)


async def test_both_names_of_one_file_are_too_many(inbox: Path, tmp_path: Path) -> None:
    path = {"text_path": f"{inbox}/in.txt"}
    async with serving(tmp_path, input_folders=str(inbox)) as (place, http):
        answers = [
            await http.post("jobs", json={"pipeline": "split", "parameters": {**path, "text": f"{inbox}/in.txt"}}),
            await http.post("jobs", data={"pipeline": "split", **path}, files={"text": ("a.txt", b"a")}),
        ]

    told = [(each.status_code, each.json()["errors"][0]["message"]) for each in answers]
    assert told == [(422, "This is given twice")] * 2
    assert await left(place) == (set(), 0)


async def test_an_object_below_the_prefix_is_copied_and_packhorses_own_are_not(tmp_path: Path) -> None:
    keys = {"s3_access_key": seaweed.KEYS.access, "s3_secret_key": seaweed.KEYS.secret}
    top, _, query = seaweed.running().place().partition("?")
    opened = serving(tmp_path, blobs=f"{top}/own?{query}", input_folders=f"{top}?{query}", **keys)
    inbox = open_blobs(f"{top}?{query}", *keys.values())
    await inbox.put("videos/a.txt", chunks(b"one two"))
    text = top.replace("%20", " ")
    async with opened as (_, http):
        answers = {
            key: await http.post("jobs", json=split(f"{text}/{key}"))
            for key in ("videos/a.txt", "videos/b.txt", "own/deployment", "../first", "videos/../own/deployment")
        }
    await inbox.close()

    assert {key: answer.status_code for key, answer in answers.items()} == dict.fromkeys(answers, 422) | {
        "videos/a.txt": 202
    }
    told = {key: answer.json()["errors"][0]["message"] for key, answer in answers.items() if key != "videos/a.txt"}
    assert told == {
        "videos/b.txt": ABSENT,
        "own/deployment": OUTSIDE,
        "../first": ABSENT,
        "videos/../own/deployment": ABSENT,
    }
    assert answers["videos/a.txt"].json()["input"]["size_bytes"] == 7


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("/", "every file of this machine"),
        ("//", "every file of this machine"),
        ("/srv/..", "every file of this machine"),
        ("videos", "neither an absolute folder"),
        ("https://example.org/", "neither an absolute folder"),
    ],
)
def test_a_setting_that_would_open_too_much_is_refused(value: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        load({"input_folders": value}, env={})


@pytest.mark.parametrize(
    "value", ["{0}/blobs", "{0}/blobs/jobs", "{0}/scratch", "{0}/link", "s3://packhorse/own/x", "s3://"]
)
def test_packhorses_own_places_cannot_be_input_folders(tmp_path: Path, value: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "blobs")
    kept = {"blobs": "s3://packhorse/own", "s3_access_key": "a", "s3_secret_key": "b"} if "s3:" in value else {}
    place = Place(tmp_path, input_folders=value.format(tmp_path), **kept)

    with pytest.raises(SettingError, match="PACKHORSE_INPUT_FOLDERS cannot have"):
        check(place.settings)


def test_the_command_line_sends_paths_only_if_asked() -> None:
    schema = {"properties": {"text": {"type": "string", "format": "binary"}}}

    assert parameters_from({"text": ["/srv/a"]}, schema) == ({}, {"text": Path("/srv/a")})
    assert parameters_from({"text": ["/srv/a"]}, schema, by_path=True) == ({"text": "/srv/a"}, {})
    assert parameters_from({"text": ["s3://inbox/a"]}, schema) == ({"text": "s3://inbox/a"}, {})

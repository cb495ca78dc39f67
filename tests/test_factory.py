"""Where results are promoted to, as the settings say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.errors import SettingError
from packhorse.factory import check, destinations_from
from packhorse.settings import Settings, printable


async def test_one_address_needs_no_name(tmp_path: Path) -> None:
    [(name, destination)] = destinations_from(Settings(promote_to=f"file://{tmp_path}/kept/")).items()

    assert (name, destination.address) == ("default", f"file://{tmp_path}/kept")
    await destination.close()


async def test_several_have_names_and_the_first_is_the_usual_one(tmp_path: Path) -> None:
    to = f"desk=file://{tmp_path}/a, web=https://files.example/x,s=s3://bucket/p?endpoint=http://127.0.0.1:1"

    found = destinations_from(Settings(promote_to=to, s3_access_key="a", s3_secret_key="b"))

    assert {name: each.address for name, each in found.items()} == {
        "desk": f"file://{tmp_path}/a",
        "web": "https://files.example/x",
        "s": "s3://bucket/p",
    }
    assert next(iter(found)) == "desk"
    for each in found.values():
        await each.close()


def test_none_is_none() -> None:
    assert destinations_from(Settings()) == {}


@pytest.mark.parametrize(
    "to",
    [
        "ftp://host/x",
        "file://relative",
        "https://user:canary@host/x",
        "https://host/x?sig=canary",
        "s3://bucket/p?secret=canary",
        "s3://",
        "https://",
        "a=file:///x,a=file:///y",
        "nowhere",
    ],
)
def test_what_is_no_place_is_refused_without_repeating_a_secret(to: str, tmp_path: Path) -> None:
    to = to.replace("/x", f"{tmp_path}/x").replace("/y", f"{tmp_path}/y") if "file:" in to else to

    with pytest.raises(SettingError) as refused:
        destinations_from(Settings(promote_to=to, s3_access_key="a", s3_secret_key="b"))

    assert refused.value.facts["name"] == "promote_to"
    assert "canary" not in str(refused.value) + repr(refused.value.facts)


@pytest.mark.parametrize(
    ("blobs", "to", "is_apart"),
    [
        ("file:///data/files", "file:///data/files", False),
        ("file:///data/files", "file:///data/files/out", False),
        ("file:///data/files", "file:///data", False),
        ("file:///data/files", "file:///data/x/../files/", False),
        ("file:///data/files", "file:///data/files-too", True),
        ("s3://bucket/jobs", "s3://bucket", False),
        ("s3://bucket", "s3://bucket/published?region=eu-west-1", False),
        ("s3://bucket/jobs", "s3://bucket/published", True),
        ("s3://bucket", "s3://other", True),
        ("s3://bucket", "file:///bucket", True),
    ],
)
def test_published_files_have_a_destination_of_their_own(blobs: str, to: str, is_apart: bool, tmp_path: Path) -> None:
    settings = Settings(
        store=f"sqlite://{tmp_path}/s.db", blobs=blobs, publish_to=to, s3_access_key="k", s3_secret_key="s"
    )

    if is_apart:
        check(settings)
    else:
        with pytest.raises(SettingError, match="PACKHORSE_PUBLISH_TO must not be inside"):
            check(settings)


def test_a_destination_that_is_no_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="PACKHORSE_PUBLISH_TO must begin with"):
        check(Settings(store=f"sqlite://{tmp_path}/s.db", blobs=f"file://{tmp_path}/b", publish_to="ftp://x"))


def test_the_secret_is_not_shown() -> None:
    settings = Settings(promote_client_secret="canary")

    assert "canary" not in str(printable(settings)) + repr(settings)


@pytest.mark.parametrize("path", ["/blobs", "/blobs/", "/blobs/../blobs", "/blobs/jobs", "/blobs/jobs/kept"])
def test_copies_cannot_lie_among_the_objects_that_go_with_their_jobs(tmp_path: Path, path: str) -> None:
    settings = Settings(blobs=f"file://{tmp_path}/blobs", promote_to=f"file://{tmp_path}{path}")

    with pytest.raises(SettingError, match="packhorse deletes what is there with its jobs"):
        destinations_from(settings)


def test_copies_can_lie_in_another_part_of_the_object_store(tmp_path: Path) -> None:
    settings = Settings(blobs=f"file://{tmp_path}/blobs", promote_to=f"file://{tmp_path}/blobs/kept")

    assert [*destinations_from(settings)] == ["default"]

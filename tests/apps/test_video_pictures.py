"""What is small in a picture: people far away, faces in a crowd, and the clock of a scoreboard."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from packhorse_video import boxes, faces, objects, poses, sample, texts

SIZE = (960, 540)


@pytest.fixture(scope="module")
def far_away() -> Image.Image:
    """The astronaut and the photographer, small, on a wide lawn."""
    wide = Image.new("RGB", SIZE, (96, 120, 80))
    wide.paste(sample.photograph("astronaut.png").resize((200, 200)), (90, 250))
    wide.paste(sample.photograph("camera.png").resize((200, 200)), (660, 250))
    return wide


def test_people_far_away_are_found_with_their_pose(far_away: Image.Image) -> None:
    found = poses.find(far_away, 0.0)

    middles = sorted((each.box[0] + each.box[2]) / 2 * SIZE[0] for each in found if each.box is not None)
    assert middles == pytest.approx([190, 750], abs=60)


def test_a_pose_needs_a_person_that_the_object_detector_sees_too(monkeypatch: pytest.MonkeyPatch) -> None:
    astronaut = sample.photograph("astronaut.png")
    before = poses.find(astronaut, 0.0)
    monkeypatch.setattr(objects, "detect", lambda *_: [])

    assert len(before) == 1
    assert poses.find(astronaut, 0.0) == []


def test_small_faces_and_people_are_found_once_each(far_away: Image.Image) -> None:
    assert len(faces.find(far_away, 0.0)) == 1  # the other looks away
    assert [each.label for each in objects.find(far_away, 0.0)].count("person") == 2


def test_tiles_cover_the_picture_and_map_back_to_it() -> None:
    whole, *parts = boxes.tiles(Image.new("RGB", SIZE))

    assert (whole.corner, whole.size) == ((0, 0), (1, 1))
    assert [tile.picture.size for tile in parts] == [(540, 540)] * 3
    corners = np.array([tile.back(np.array([[0, 0], [1, 1]], np.float32)).ravel() for tile in parts])
    assert corners[:, 0] == pytest.approx([0, 210 / 960, 420 / 960], abs=0.001)
    assert corners[:, 2] == pytest.approx([540 / 960, 750 / 960, 1], abs=0.001)
    assert boxes.is_cut_off(np.array([0.5, 0.2, 1, 0.6], np.float32), parts[0])
    assert not boxes.is_cut_off(np.array([0.5, 0.2, 1, 0.6], np.float32), parts[-1])


def test_every_reading_of_a_clock_is_new() -> None:
    reader = texts.Reader()
    photograph = sample.photograph("cup.png").resize(SIZE)
    read = []
    for second in range(6):
        frame = photograph.copy()
        ImageDraw.Draw(frame).rectangle((36, 36, 110, 64), fill="black")
        ImageDraw.Draw(frame).text((42, 38), f"12:3{second}", "white", ImageFont.load_default(22))
        read += [[each.label for each in reader.find(frame, second + half)] for half in (0.0, 0.5)]

    assert read == [[f"12:3{second}"] for second in range(6) for _ in range(2)]
    assert reader.read == 6

"""Scene changes that a plain difference of frames misses: dark cuts, fades and dissolves; and what is none of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from packhorse_video import cuts, sample
from packhorse_video.cuts import SIZE
from packhorse_video.findings import Finding

RATE = sample.RATE_OF_FRAMES
Pictures = list[np.ndarray]


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    return [np.asarray(each.resize(SIZE, Image.Resampling.BOX), np.float32) for each in sample.pictures()]


@pytest.fixture(scope="module")
def scenes(pictures: Pictures) -> list[Pictures]:
    """Astronaut, cup, cat and photographer, each in motion."""
    bounds = [round(each * RATE) for each in sample.BOUNDS]
    return [pictures[start:end] for start, end in pairwise(bounds[1:])]


def found(pictures: Sequence[np.ndarray]) -> list[Finding]:
    return cuts.find(np.stack(pictures).astype(np.uint8), [i / RATE for i in range(len(pictures))])


@pytest.mark.parametrize("brightness", [0.3, 0.1, 0.05])
def test_cuts_between_dark_scenes_are_found(pictures: Pictures, brightness: float) -> None:
    dark = found([each * brightness for each in pictures])

    assert [each.at for each in dark] == pytest.approx(sample.CUTS)
    assert {each.label for each in dark} == {"cut"}


@pytest.mark.parametrize("length", [8, 25, 50])
def test_a_dissolve_is_found_with_its_beginning_and_end(scenes: list[Pictures], length: int) -> None:
    before, after = scenes[0], scenes[1]
    shares = [(i + 1) / (length + 1) for i in range(length)]
    mixed = [a * (1 - s) + b * s for s, a, b in zip(shares, before[-length:], after[:length], strict=True)]

    [change] = found([*before[:-length], *mixed, *after[length:]])

    assert change.label == "dissolve"
    assert change.at == pytest.approx((len(before) - length) / RATE, abs=0.1)
    assert change.until == pytest.approx(len(before) / RATE, abs=0.1)


@pytest.mark.parametrize(("length", "pause"), [(8, 5), (25, 5), (12, 1)])
def test_a_fade_out_and_in_is_one_change(scenes: list[Pictures], length: int, pause: int) -> None:
    before, after = scenes[0], scenes[1]
    out = [each * (1 - (i + 1) / length) for i, each in enumerate(before[-length:])]
    black = [np.zeros_like(before[0])] * pause
    into = [each * ((i + 1) / length) for i, each in enumerate(after[:length])]

    [change] = found([*before[:-length], *out, *black, *into, *after[length:]])

    assert change.label == "fade"
    assert change.at == pytest.approx((len(before) - length) / RATE, abs=0.1)
    assert change.until == pytest.approx((len(before) + pause + length) / RATE, abs=0.1)


def test_a_pan_and_a_light_that_is_turned_up_are_no_scene_changes() -> None:
    wide = sample.photograph("astronaut.png")
    pan = [
        np.asarray(wide.crop((i * 4, 0, i * 4 + 250, 140)).resize(SIZE, Image.Resampling.BOX), np.float32)
        for i in range(60)
    ]
    light = [pan[0] * (0.4 + 0.5 * i / 40) for i in range(40)]

    assert found(pan) == []
    assert found([light[0]] * 20 + light + [light[-1]] * 20) == []

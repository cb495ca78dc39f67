"""Videos that are made to take more than they are worth, or that are merely odd."""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from packhorse import File
from packhorse.testing import Bench
from packhorse_video import decoder, preview, sounds
from packhorse_video.app import Analyse, analyse
from packhorse_video.decoder import About, NotAVideo
from packhorse_video.frames import Frames

RATE = 25
FORMATS = {".ts": "mpegts", ".mkv": "matroska", ".mp4": "mp4"}


def write(
    path: Path, times: Sequence[float], *, size: tuple[int, int] = (64, 48), sound: tuple[float, float] | None = None
) -> None:
    """Grey pictures at those times, and sound from when on for how long."""
    with av.open(str(path), "w", format=FORMATS[path.suffix]) as file:
        video: Any = file.add_stream("mpeg4", rate=RATE)
        video.width, video.height = size
        audio = file.add_stream("mp2", rate=16_000, layout="mono") if sound else None
        for i, at in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), i * 9 % 256, np.uint8), format="rgb24")
            frame.pts, frame.time_base = round(at * RATE), Fraction(1, RATE)
            file.mux(video.encode(frame))
        file.mux(video.encode(None))
        if audio is not None and sound is not None:
            tone = np.full((1, round(sound[1] * 16_000)), 9000, np.int16)
            heard = av.AudioFrame.from_ndarray(tone, format="s16", layout="mono")
            heard.sample_rate, heard.pts, heard.time_base = 16_000, round(sound[0] * 16_000), Fraction(1, 16_000)
            file.mux(audio.encode(heard))
            file.mux(audio.encode(None))


def decoded(path: Path, sampling_rate: float = 5.0) -> About:
    return decoder.decode(path, path.parent, sampling_rate=sampling_rate, longest=960, progress=lambda _, __: None)


def seconds(count: float) -> list[float]:
    return [i / RATE for i in range(round(count * RATE))]


def previewed(folder: Path) -> int:
    """How many pictures the film has."""
    preview.preview(Frames(folder / "frames.zip"), {}, None, folder / "preview.mp4", 5.0, lambda _, __: None)
    with av.open(str(folder / "preview.mp4")) as film:
        return sum(1 for _ in film.decode(video=0))


def test_sound_that_begins_later_than_the_pictures_is_heard_when_it_begins(tmp_path: Path) -> None:
    write(tmp_path / "a.mkv", seconds(1), sound=(1800, 1))
    tracemalloc.start()

    about = decoded(tmp_path / "a.mkv")

    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sound, rate = sounds.read(tmp_path / "sound.wav")
    assert about.has_sound
    assert int(np.argmax(np.abs(sound) > 0.1)) / rate == pytest.approx(1800, abs=0.2)
    assert sound.size / rate == pytest.approx(1801, abs=0.2)
    assert most < 20_000_000  # the silence alone has 57 million bytes


def test_sound_that_begins_after_half_a_day_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.mkv", seconds(1), sound=(40_000, 1))

    with pytest.raises(NotAVideo, match="longer than 4 hours"):
        decoded(tmp_path / "a.mkv")

    assert (tmp_path / "sound.wav").stat().st_size < 1_000_000


def test_more_sound_than_is_listened_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MOST_SECONDS", 2)
    write(tmp_path / "a.mkv", seconds(1), sound=(1, 2))

    with pytest.raises(NotAVideo, match="is not looked at"):
        decoded(tmp_path / "a.mkv")


def test_pictures_that_come_after_half_a_day_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.mkv", [*seconds(1), 40_000])

    with pytest.raises(NotAVideo, match="longer than 4 hours"):
        decoded(tmp_path / "a.mkv")


def test_more_pictures_than_there_is_memory_for_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MOST_DECODED", 24)
    write(tmp_path / "a.mkv", seconds(1))

    with pytest.raises(NotAVideo, match="more than 24 pictures"):
        decoded(tmp_path / "a.mkv")


def test_pictures_that_grow_after_the_beginning_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MOST_PIXELS", 64 * 48)
    write(tmp_path / "small.ts", seconds(1))
    write(tmp_path / "large.ts", seconds(1), size=(640, 480))
    (tmp_path / "a.ts").write_bytes((tmp_path / "small.ts").read_bytes() + (tmp_path / "large.ts").read_bytes())

    with pytest.raises(NotAVideo, match="640 by 480"):
        decoded(tmp_path / "a.ts")


def test_no_stage_may_take_all_the_memory_there_is() -> None:
    assert {stage.plan.memory for stage in analyse.stages.values()} == {4 * 1024**3}


def write_to_and_fro(path: Path) -> None:
    """Five seconds, of which the third goes back, and the fourth is there a second time."""
    parts = b""
    for start in (0, 10, 5, 10, 11):
        write(path.with_name("part.ts"), [start + at for at in seconds(1)])
        parts += path.with_name("part.ts").read_bytes()
    path.write_bytes(parts)


def test_a_video_whose_times_go_back_is_analysed_to_the_end(packhorse: Bench, tmp_path: Path) -> None:
    write_to_and_fro(tmp_path / "a.ts")

    job = packhorse.run(analyse, Analyse(video=File(tmp_path / "a.ts"), processors=["cut"], sampling_rate=RATE))

    assert job.status == "completed", job.error
    assert (job.result.video.frames, job.result.video.sampled) == (125, 75)


def test_pictures_whose_times_go_back_or_repeat_are_not_looked_at_again(tmp_path: Path) -> None:
    write_to_and_fro(tmp_path / "a.ts")

    about = decoded(tmp_path / "a.ts", sampling_rate=RATE)

    times = Frames(tmp_path / "frames.zip").times
    assert times == sorted(set(times))
    assert (about.frames, about.sampled) == (125, 75)
    assert about.duration == pytest.approx(12, abs=0.1)
    assert previewed(tmp_path) == about.sampled == len(times)


def test_after_a_jump_of_the_times_no_more_pictures_are_looked_at_than_before(tmp_path: Path) -> None:
    write(tmp_path / "a.mkv", [*seconds(2), *(60 + at for at in seconds(2))])

    decoded(tmp_path / "a.mkv", sampling_rate=5)

    times = Frames(tmp_path / "frames.zip").times
    assert times == pytest.approx([*(i / 5 for i in range(10)), *(60 + i / 5 for i in range(10))], abs=0.05)


@pytest.mark.parametrize(("angle", "size"), [(10, (66, 40)), (80, (40, 66)), (-100, (40, 66)), (170, (66, 40))])
def test_what_was_stored_askew_is_turned_to_the_nearest_side(tmp_path: Path, angle: int, size: tuple[int, int]) -> None:
    write(tmp_path / "straight.mp4", seconds(1), size=(66, 40))
    data = bytearray((tmp_path / "straight.mp4").read_bytes())
    matrix = data.index(b"tkhd") + 44
    across, down = round(math.cos(math.radians(angle)) * 65_536), round(math.sin(math.radians(angle)) * 65_536)
    data[matrix : matrix + 36] = struct.pack(">9i", across, down, 0, -down, across, 0, 0, 0, 1 << 30)
    (tmp_path / "a.mp4").write_bytes(data)

    about = decoded(tmp_path / "a.mp4")

    assert (about.width, about.height) == size
    assert Frames(tmp_path / "frames.zip")[0].picture.size == size
    assert previewed(tmp_path) == about.sampled

"""The video app on the real models. What it says of a video is compared with what was put into it."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from packhorse import File
from packhorse.testing import Bench, BenchJob
from packhorse_video import findings, preview, processors, sample, timeline, weights
from packhorse_video.accuracy import word_errors
from packhorse_video.app import Analyse, analyse, decode, face, yolo
from packhorse_video.decoder import About
from packhorse_video.findings import Finding
from packhorse_video.frames import Frames
from packhorse_video.timeline import Entry, Timeline

RATE = 2.0
EYES = (0.40, 0.205, 0.49, 0.20)
"""Of the astronaut, on her photograph, as shares of its width: the right one, and the left one."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "sample.mp4"
    sample.write(path)
    return path


@pytest.fixture(scope="module")
def analysed(made: Path) -> Iterator[BenchJob[Any]]:
    with Bench() as bench:
        job = bench.run(analyse, Analyse(video=File(made), sampling_rate=RATE))
        assert job.status == "completed", job.error
        yield job


def findings_of(job: BenchJob[Any], processor: str) -> list[Finding]:
    report = findings.read(job.artifacts[f"{processor}/{processor}.json"].path)
    assert report.processor == processor
    return report.findings


def joined(job: BenchJob[Any]) -> Timeline:
    return timeline.read(job.result.timeline.path)


def per_frame(job: BenchJob[Any], processor: str) -> Iterator[tuple[float, list[Finding]]]:
    """Of every frame that was looked at, the middle of the flash excepted."""
    all_of_them = findings_of(job, processor)
    for i in range(round(sample.DURATION * RATE)):
        at = next(t for t in np.arange(0, sample.DURATION, 1 / sample.RATE_OF_FRAMES) if t + 0.02 >= i / RATE)
        yield float(at), [each for each in all_of_them if abs(each.at - at) < 0.02]


def test_all_of_it_is_said_of_the_video(analysed: BenchJob[Any]) -> None:
    about = analysed.result.video

    assert (about.width, about.height, about.frame_rate, about.frames) == (*sample.SIZE, 25.0, 340)
    assert (about.duration, about.sampled, about.has_sound) == (pytest.approx(sample.DURATION), 28, True)
    assert set(analysed.result.found) == set(processors.PROCESSORS)
    assert analysed.result.notes == {}
    assert not analysed.result.partial


def test_the_cuts_are_found_to_the_frame_and_a_flash_is_none(analysed: BenchJob[Any]) -> None:
    assert [each.at for each in findings_of(analysed, "cut")] == pytest.approx(sample.CUTS, abs=0.001)


def test_the_words_on_the_pictures_are_read_while_they_are_there(analysed: BenchJob[Any]) -> None:
    for at, here in per_frame(analysed, "ocr"):
        written = sample.scene_at(at)[0].texts
        assert Counter(_letters(each.label) for each in here) == Counter(map(_letters, written)), at


def _letters(text: str) -> str:
    return text.replace(" ", "").upper()


def test_words_are_where_they_were_written(analysed: BenchJob[Any]) -> None:
    title = [each.box for each in findings_of(analysed, "ocr") if each.label == "PACKHORSE"]

    for left, top, right, bottom in filter(None, title):
        assert [left, top] == pytest.approx([40 / 640, 137 / 360], abs=0.03)
        assert right - left > 0.25
        assert bottom - top < 0.15
    assert len(title) == 5


def test_each_face_is_found_where_it_is_and_nowhere_else(analysed: BenchJob[Any]) -> None:
    for at, here in per_frame(analysed, "face"):
        scene, done = sample.scene_at(at)
        assert len(here) == (scene.face is not None), at
        for each in here:
            left, top, right, bottom = _on_the_photograph(scene, done, each.box)
            assert scene.face is not None
            assert left > scene.face[0]
            assert top > scene.face[1]
            assert right < scene.face[2]
            assert bottom < scene.face[3]


def _on_the_photograph(scene: sample.Scene, done: float, box: Any) -> tuple[float, ...]:
    left, top, right, bottom = scene.seen(done)
    wide, high = right - left, bottom - top
    return (left + box[0] * wide, top + box[1] * high, left + box[2] * wide, top + box[3] * high)


def test_the_points_of_a_face_are_in_their_places(analysed: BenchJob[Any]) -> None:
    astronaut = [each for each in findings_of(analysed, "face") if sample.CUTS[0] <= each.at < sample.CUTS[1]]

    for at, points in ((each.at, each.points or {}) for each in astronaut):
        right_eye, left_eye, nose, mouth = (points[name] for name in ("right_eye", "left_eye", "nose", "mouth"))
        assert right_eye[0] < nose[0] < left_eye[0]
        assert max(right_eye[1], left_eye[1]) < nose[1] < mouth[1]
        eyes = _on_the_photograph(*sample.scene_at(at), (*right_eye[:2], *left_eye[:2]))
        assert eyes == pytest.approx(EYES, abs=0.03)
    assert len(astronaut) == 7


def test_people_are_found_with_their_pose_and_nothing_else_is(analysed: BenchJob[Any]) -> None:
    people = 0
    for at, here in per_frame(analysed, "pose"):
        scene, _ = sample.scene_at(at)
        assert len(here) <= (scene.face is not None), at
        people += len(here)
    assert people >= 11  # of 13


def test_the_points_of_a_pose_fit_the_face_that_was_found_beside_it(analysed: BenchJob[Any]) -> None:
    faces = {each.at: each.box for each in findings_of(analysed, "face")}
    astronaut = [each for each in findings_of(analysed, "pose") if sample.CUTS[0] <= each.at < sample.CUTS[1]]

    for each in astronaut:
        assert each.points is not None
        left, top, right, bottom = faces[each.at] or (0, 0, 0, 0)
        x, y, sure = each.points["nose"]
        assert (left < x < right, top < y < bottom, sure > 0.9) == (True, True, True)
        right_shoulder, left_shoulder = each.points["right_shoulder"], each.points["left_shoulder"]
        assert right_shoulder[0] < left < right < left_shoulder[0]
        assert min(right_shoulder[1], left_shoulder[1]) > bottom
    assert len(astronaut) == 7


def test_the_things_in_the_pictures_are_named(analysed: BenchJob[Any]) -> None:
    for at, here in per_frame(analysed, "yolo"):
        assert [each.label for each in here] == list(sample.scene_at(at)[0].objects), at


def test_a_thing_is_where_it_is(analysed: BenchJob[Any]) -> None:
    cups = [each.box for each in findings_of(analysed, "yolo") if each.label == "cup"]

    for left, top, right, bottom in filter(None, cups):
        assert 0.2 < left < 0.4
        assert 0.55 < right < 0.75
        assert top < 0.1
        assert 0.5 < bottom < 0.9
    assert len(cups) == 5


def test_what_is_said_is_heard_when_it_is_said(analysed: BenchJob[Any]) -> None:
    words = findings_of(analysed, "asr")
    for spoken in sample.SPEECH:
        for start, end, text in spoken.phrases:
            shift = spoken.at - spoken.start
            heard = [each.label.lower() for each in words if start + shift - 0.2 <= each.at < end + shift]
            allowed = 0 if spoken.speaker == "reader" else 1
            assert word_errors(text.split(), heard) <= allowed, (text, heard)
    assert all(each.until is not None and each.at < each.until for each in words)
    assert [each.label for each in words].count("times") == 2
    assert "wisdom" in [each.label for each in words]


def test_two_people_are_told_apart(analysed: BenchJob[Any]) -> None:
    turns = findings_of(analysed, "asrx")

    reader, president = sample.SPEECH
    assert {each.speaker for each in turns if each.at < 8} == {"speaker 1"}
    assert {each.speaker for each in turns if each.at > 8} == {"speaker 2"}
    said = {who: " ".join(each.label for each in turns if each.speaker == who) for who in ("speaker 1", "speaker 2")}
    assert "best of times" in said["speaker 1"]
    assert "my fellow" in said["speaker 2"]
    assert turns[0].at == pytest.approx(reader.at + reader.phrases[0][0] - reader.start, abs=0.2)
    assert turns[-1].until == pytest.approx(president.at + president.phrases[-1][1] - president.start, abs=0.3)


def test_words_and_turns_are_of_one_transcription(analysed: BenchJob[Any]) -> None:
    words = [each.label for each in findings_of(analysed, "asr")]
    turns = " ".join(each.label for each in findings_of(analysed, "asrx")).split()

    assert [each.strip(".,") for each in turns] == words


def test_the_timeline_has_each_thing_once_for_as_long_as_it_is_there(analysed: BenchJob[Any]) -> None:
    made = joined(analysed)

    assert [entry.at for entry in made.entries] == sorted(entry.at for entry in made.entries)
    assert set(made.models) == set(processors.PROCESSORS)
    [cat] = [entry for entry in made.entries if entry.label == "cat"]
    assert (cat.processor, cat.seen, cat.most) == ("yolo", 5, 1)
    assert [cat.at, cat.until] == pytest.approx([8.4, 10.8], abs=0.5)
    faces = [(entry.at, entry.until) for entry in made.entries if entry.processor == "face"]
    assert np.allclose(faces, [(2.4, 6.0), (10.8, 13.6)], atol=0.5)


def test_the_preview_is_a_film_with_what_was_found_drawn_in(analysed: BenchJob[Any]) -> None:
    with av.open(str(analysed.result.preview.path)) as film:
        frames = {round(frame.time or 0.0, 2): frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)}
    with av.open(str(analysed.result.preview.path)) as film:
        heard = np.concatenate([frame.to_ndarray().ravel() for frame in film.decode(audio=0)])

    assert len(frames) == 28
    assert heard.size / 16_000 == pytest.approx(sample.DURATION, abs=0.2)
    originals = list(sample.pictures())
    cats = [each for each in findings_of(analysed, "yolo") if each.label == "cat"]
    for each in cats:
        before = np.asarray(originals[round(each.at * sample.RATE_OF_FRAMES)], np.int16)
        change = np.abs(frames[round(each.at, 2)] - before).max(2)
        left, top, right, bottom = _pixels(each.box)
        assert change[top + 9 : bottom - 9, right - 3 : right + 2].max(1).mean() > 60
        assert change[top + 30 : bottom - 100, left + 30 : right - 30].mean() < 10
    assert len(cats) == 5


def _pixels(box: Any) -> list[int]:
    return [round(share * side) for share, side in zip(box, sample.SIZE * 2, strict=True)]


def test_the_sheet_has_a_picture_of_each_scene(analysed: BenchJob[Any]) -> None:
    with Image.open(analysed.result.sheet.path) as image:
        sheet = image.convert("RGB")

    tile = (preview.TILE + 8, 180 + preview.LINE + 16)
    assert sheet.size == (3 * tile[0], 2 * tile[1])
    means = [
        np.asarray(sheet.crop((x + 4, y + 4, x + 324, y + 184)), np.float32).mean((0, 1))
        for y in (0, tile[1])
        for x in (0, tile[0], 2 * tile[0])
    ]
    expected = list(sample.pictures())
    for mean, bound, scene in zip(means[:5], sample.BOUNDS, sample.SCENES, strict=False):
        middle = expected[round(bound * sample.RATE_OF_FRAMES) + scene.frames // 2 - 3]
        assert np.abs(mean - np.asarray(middle, np.float32).mean((0, 1))).max() < 8


def test_what_was_not_asked_for_does_not_run(packhorse: Bench, made: Path) -> None:
    job = packhorse.run(analyse, Analyse(video=File(made), processors=["cut", "yolo"], sampling_rate=0.5))

    assert job.status == "completed", job.error
    assert set(job.result.found) == {"cut", "yolo"}
    assert job.result.notes == dict.fromkeys(["ocr", "face", "pose", "asr", "asrx"], "not selected")
    assert (job.status_of(face), job.attempts_of(face)) == ("skipped", 0)
    assert job.result.video.sampled == 7


def test_a_video_without_sound_says_so(packhorse: Bench, tmp_path: Path) -> None:
    sample.write(tmp_path / "silent.mp4", has_sound=False)

    job = packhorse.run(analyse, Analyse(video=File(tmp_path / "silent.mp4"), processors=["asr", "asrx"]))

    assert job.status == "completed", job.error
    assert (job.result.video.has_sound, job.result.found) == (False, {})
    assert (job.result.notes["asr"], job.result.notes["asrx"]) == ("the video has no sound", "the video has no sound")
    assert len(joined(job).entries) == 0


def text(path: Path, _: Path) -> None:
    path.write_text("this is no video")


def empty(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def cut_off(path: Path, made: Path) -> None:
    path.write_bytes(made.read_bytes()[:2000])


def picture(path: Path, _: Path) -> None:
    Image.new("RGB", (64, 64)).save(path, "PNG")


def playlist(path: Path, made: Path) -> None:
    """Which would have another file read, whoever it belongs to."""
    with av.open(str(made)) as source, av.open(str(path.with_name("other.ts")), "w") as other:
        copied = other.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = copied
                other.mux(packet)
    path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:20\n#EXTINF:13,\n{path.with_name('other.ts')}\n#EXT-X-ENDLIST\n")


def sound_alone(path: Path, _: Path) -> None:
    with av.open(str(path), "w", format="mp4") as file:
        stream = file.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16_000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


def no_frames(path: Path, _: Path) -> None:
    with av.open(str(path), "w", format="mp4") as file:
        stream: Any = file.add_stream("libx264", rate=25)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        file.start_encoding()


def garbled(path: Path, made: Path) -> None:
    data = made.read_bytes()
    at = data.index(b"mdat") + 4
    path.write_bytes(data[:at] + bytes(len(data) - at))


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (text, "cannot be read as a video"),
        (empty, "cannot be read as a video"),
        (cut_off, "cannot be read as a video"),
        (picture, "cannot be read as a video"),
        (playlist, "cannot be read as a video"),
        (sound_alone, "has no pictures"),
        (no_frames, "has no pictures"),
        (garbled, "has no frame that can be decoded"),
    ],
)
def test_what_is_no_video_fails_at_once_and_says_why(
    packhorse: Bench, made: Path, tmp_path: Path, write: Callable[[Path, Path], None], why: str
) -> None:
    write(tmp_path / "a.mp4", made)

    job = packhorse.run(analyse, Analyse(video=File(tmp_path / "a.mp4"), processors=["cut"]))

    assert job.error is not None
    assert (job.status, job.error.code, job.attempts_of(decode)) == ("failed", "INVALID_VIDEO", 1)
    assert why in job.error.message


def test_what_is_broken_in_the_middle_is_passed_over_and_counted(packhorse: Bench, made: Path, tmp_path: Path) -> None:
    data = made.read_bytes()
    middle = (data.index(b"mdat") + len(data)) // 2
    (tmp_path / "a.mp4").write_bytes(data[:middle] + bytes(20_000) + data[middle + 20_000 :])

    job = packhorse.run(analyse, Analyse(video=File(tmp_path / "a.mp4"), processors=["cut"]))

    assert job.status == "completed", job.error
    assert job.result.video.unreadable > 0
    assert job.result.partial
    assert "damaged" in job.result.notes["decode"]
    assert sample.CUTS[0] in [each.at for each in findings_of(job, "cut")]


def test_half_a_file_is_reported_as_partial(packhorse: Bench, made: Path, tmp_path: Path) -> None:
    data = made.read_bytes()
    (tmp_path / "a.mp4").write_bytes(data[: (data.index(b"mdat") + len(data)) // 2])

    job = packhorse.run(analyse, Analyse(video=File(tmp_path / "a.mp4"), processors=["cut"]))

    assert job.status == "completed", job.error
    about = job.result.video
    assert (job.result.partial, about.partial, joined(job).video.partial) == (True, True, True)
    assert about.declared == pytest.approx(sample.DURATION, abs=0.1)
    assert about.duration < sample.DURATION - 2
    assert f"only {about.duration:.1f} of 13.6 s" in job.result.notes["decode"]


def test_a_video_that_was_stored_lying_down_is_looked_at_upright(packhorse: Bench, made: Path, tmp_path: Path) -> None:
    data = bytearray(made.read_bytes())
    matrix = data.index(b"tkhd") + 44
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, sample.SIZE[1] << 16, 0, 1 << 30)
    (tmp_path / "a.mp4").write_bytes(data)

    job = packhorse.run(analyse, Analyse(video=File(tmp_path / "a.mp4"), processors=["cut"], sampling_rate=0.5))

    assert job.status == "completed", job.error
    assert (job.result.video.width, job.result.video.height) == (360, 640)
    seen = Frames(job.artifacts["decode/frames.zip"].path)[2].picture
    expected = list(sample.pictures())[100].rotate(-90, expand=True)
    assert np.abs(np.asarray(seen, np.int16) - np.asarray(expected, np.int16)).mean() < 5


def test_a_lost_processor_runs_again_and_the_others_do_not(packhorse: Bench, made: Path) -> None:
    packhorse.lose(yolo)

    job = packhorse.run(analyse, Analyse(video=File(made), processors=["cut", "face", "yolo"], sampling_rate=1))

    assert job.status == "completed", job.error
    assert (job.attempts_of(yolo), job.attempts_of(face), job.attempts_of(decode)) == (2, 1, 1)
    assert {each.label for each in findings_of(job, "yolo")} == {"person", "cup", "cat"}


def test_each_processor_says_how_far_it_is(packhorse: Bench, made: Path) -> None:
    job = packhorse.run(analyse, Analyse(video=File(made), sampling_rate=0.5))

    assert job.status == "completed", job.error
    last = {report.task.stage: (report.current, report.total) for report in job.reports}
    assert last["decode"] == (340, 340)
    assert last["cut"] == (340, 340)
    assert {last[name] for name in ("ocr", "face", "pose", "yolo", "join")} == {(7, 7)}
    assert {last[name] for name in ("hear", "asr", "asrx")} == {(14, 14)}


def test_a_processor_is_there_if_what_it_needs_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = processors.available()
    monkeypatch.setenv(weights.FOLDER, str(tmp_path))
    nothing = processors.available()
    (tmp_path / "face.tflite").touch()

    assert everything == list(processors.PROCESSORS)
    assert nothing == ["cut", "ocr"]
    assert processors.available() == ["cut", "ocr", "face"]


def test_what_is_missing_from_one_sample_was_there_all_the_same() -> None:
    entries = joined_of([0.0, 0.5, 1.5, 3.0, 3.5])

    assert [(entry.at, entry.until, entry.seen) for entry in entries] == [(0.0, 2.0, 3), (3.0, 4.0, 2)]


def joined_of(times: list[float]) -> list[Entry]:
    about = About(10.0, 25.0, 64, 64, 250, 20, False)
    seen = [Finding(at, "cat", score=0.5, box=(0, 0, 1, 1)) for at in times]
    return timeline.join(about, [findings.Report("yolo", "", 20, seen)], {}, every=0.5).entries

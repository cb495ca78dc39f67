"""Measures the processors on material that had no part in their development: ``python -m packhorse_video.evaluate``.

`heldout.toml` names it. Objects, faces and poses are counted per picture and kind: what is found is right up to the
number that is there. Times are those of a core, with the models loaded.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import av
import numpy as np
from PIL import Image

from packhorse_video import cuts, decoder, faces, models, objects, poses, preview, sample, sounds, texts, weights
from packhorse_video import transcript as speech
from packhorse_video.accuracy import word_errors
from packhorse_video.findings import Finding
from packhorse_video.frames import Frames
from packhorse_video.movies import Movie
from packhorse_video.sounds import RATE, Sound

HELD_OUT = Path(__file__).with_name("heldout.toml")
LONGEST = 960
NOISE = 10.0
"""Decibels between the speech and the noise of the noisy call."""


class Scene(NamedTuple):
    file: str
    frame: int | None
    """Of a video; none of a picture."""
    people: int
    faces: int
    things: Mapping[str, int] = MappingProxyType({})
    beside: Sequence[str] = ()
    """Kinds that are there too, partly hidden or in the background, and are not counted."""


SCENES = (
    Scene("group1.jpg", None, 3, 3, beside=("wine glass", "cup", "chair", "bottle")),
    Scene("group2.jpg", None, 3, 3, {"cell phone": 1}, ("couch", "chair")),
    Scene("group3.jpg", None, 3, 3, {"cup": 1}, ("couch", "chair", "wine glass", "clock")),
    Scene("group4.jpg", None, 4, 4, beside=("cell phone", "couch", "handbag", "dining table")),
    Scene("group5.jpg", None, 5, 5, beside=("couch", "chair")),
    Scene("group6.jpg", None, 4, 4, beside=("cell phone", "handbag", "couch", "chair")),
    Scene("jumpers.jpg", None, 3, 0),
    Scene("footballer.jpg", None, 1, 1, {"sports ball": 1}),
    Scene("street.avi", 0, 3, 0, {"car": 2}, ("truck", "bus")),
    Scene("street.avi", 100, 8, 0, {"car": 2}, ("truck", "bus")),
    Scene("bikes.mp4", 120, 1, 1, {"car": 1, "bicycle": 1, "motorcycle": 1}),
    Scene("bikes.mp4", 240, 0, 0, {"bicycle": 1}),
    Scene("passenger.mp4", 0, 1, 1, beside=("tie", "car")),
    Scene("pagoda.jpg", None, 0, 0, beside=("bench", "potted plant")),
    Scene("flower.jpg", None, 0, 0, beside=("potted plant", "vase")),
)


class Count:
    """Right, found and there."""

    def __init__(self) -> None:
        self.right = self.found = self.there = 0

    def add(self, found: Counter[str], there: Counter[str]) -> None:
        self.right += (found & there).total()
        self.found += found.total()
        self.there += there.total()

    def __str__(self) -> str:
        recall, precision = self.right / max(1, self.there), self.right / max(1, self.found)
        counts = f"{self.right} right, {self.found} found, {self.there} there"
        return f"recall {recall:.2f}, precision {precision:.2f} ({counts})"


def folder() -> Path:
    return weights.folder() / "heldout"


def picture(scene: Scene) -> Image.Image:
    path = folder() / scene.file
    if scene.frame is None:
        with Image.open(path) as opened:
            found = opened.convert("RGB")
    else:
        found = next(each for i, each in enumerate(_pictures(path)) if i == scene.frame)
    found.thumbnail((LONGEST, LONGEST))
    return found


def _pictures(path: Path) -> Iterator[Image.Image]:
    with av.open(str(path)) as file:
        for frame in file.decode(video=0):
            yield Image.fromarray(frame.to_ndarray(format="rgb24"))


def look(find: Callable[[Image.Image, float], list[Finding]], there: Callable[[Scene], Counter[str]]) -> Count:
    count = Count()
    for scene in SCENES:
        found = Counter(each.label for each in find(picture(scene), 0.0) if each.label not in scene.beside)
        if scene.file == "footballer.jpg":  # the crowd behind him is not counted
            found = Counter({kind: min(number, max(1, there(scene)[kind])) for kind, number in found.items()})
        count.add(found, there(scene))
    return count


def _changes() -> list[tuple[str, str, list[np.ndarray]]]:
    """Edited clips: where scenes change, how, and the thumbnails of all frames."""
    clips = [_thumbnails(name) for name in ("bikes.mp4", "passenger.mp4", "street.avi", "bunny.mp4")]
    made = []
    for before, after in [(0, 1), (1, 2), (2, 3), (3, 1)]:
        a, b = clips[before][-50:], clips[after][:50]
        made += [
            ("cut", "cut" if light == 1 else "dark cut", [each * light for each in [*a, *b]])
            for light in (1.0, 0.1, 0.05)
        ]
        for length in (12, 25):
            steps = [(i + 1) / (length + 1) for i in range(length)]
            mixed = [x * (1 - s) + y * s for s, x, y in zip(steps, a[-length:], b[:length], strict=True)]
            made.append(("dissolve", "dissolve", [*a[:-length], *mixed, *b[length:]]))
            out = [each * (1 - s) for s, each in zip(steps, a[-length:], strict=True)]
            into = [each * s for s, each in zip(steps, b[:length], strict=True)]
            made.append(("fade", "fade", [*a[:-length], *out, a[0] * 0, a[0] * 0, *into, *b[length:]]))
    return made


def _thumbnails(name: str) -> list[np.ndarray]:
    found = []
    for each in _pictures(folder() / name):
        found.append(np.asarray(each.resize(cuts.SIZE, Image.Resampling.BOX), np.float32))
        if len(found) == 130:
            break
    return found


def scene_changes() -> Iterator[str]:
    """One change in each clip; what is found within half a second of its middle is right."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    wrong = 0
    for label, name, frames in _changes():
        found = cuts.find(np.stack(frames).astype(np.uint8), [i / 25 for i in range(len(frames))])
        middle = len(frames) / 50 if label == "fade" else 2.0 - (0.5 if label == "dissolve" else 0.0)
        near = [
            each
            for each in found
            if each.label == label and abs((each.at + (each.until or each.at)) / 2 - middle) < 0.6
        ]
        total[name] += 1
        right[name] += bool(near)
        wrong += len(found) - bool(near)
    yield ", ".join(f"{name}: {right[name]} of {total[name]}" for name in total)
    yield f"{right.total() / total.total():.2f} of all found, {wrong} that are none"


def call(noise: float | None = None) -> Sound:
    sound = sample.recording(folder() / "call.wav")
    if noise is None:
        return sound
    hiss = np.random.default_rng(1).standard_normal(sound.size).astype(np.float32)
    voiced = sound[np.abs(sound) > 0.01]
    return sound + hiss * float(np.sqrt(np.mean(voiced**2)) / 10 ** (noise / 20))


def words_wrong(sound: Sound) -> str:
    lines = (folder() / "call.stm").read_text().splitlines()
    said = _plain(" ".join(line.split(maxsplit=5)[5] for line in lines))
    made = speech.transcribe(sound, lambda _: None)
    heard = _plain(" ".join(each.text for part in made.parts for each in part.words))
    return f"{word_errors(said, heard) / len(said):.0%} of {len(said)} words wrong {made.note}"


def _plain(text: str) -> list[str]:
    return re.sub(r"[^a-z' ]", " ", text.lower()).split()


def speakers_confused(sound: Sound) -> str:
    """Share of the speech, where one person speaks, that is given to another than the best match of that person."""
    made = speech.transcribe(sound, lambda _: None)
    turns = speech.turns_of(sound, made, lambda _: None)
    steps = np.arange(0, sound.size / RATE, 0.01)
    there: list[set[str]] = [set() for _ in steps]
    for line in (folder() / "call.rttm").read_text().splitlines():
        parts = line.split()
        for i in np.flatnonzero((steps >= float(parts[3])) & (steps < float(parts[3]) + float(parts[4]))):
            there[i].add(parts[7])
    pairs: Counter[tuple[str, str]] = Counter()
    for at, who in zip(steps, there, strict=True):
        told = next((each.speaker or "" for each in turns if each.at <= at < (each.until or 0)), None)
        if len(who) == 1 and told is not None:
            pairs[next(iter(who)), told] += 1
    best: dict[str, str] = {}
    for (person, label), _ in pairs.most_common():
        if person not in best and label not in best.values():
            best[person] = label
    right = sum(count for (person, label), count in pairs.items() if best.get(person) == label)
    return f"{1 - right / max(1, pairs.total()):.0%} confused, {len({label for _, label in pairs})} speakers of 2"


def core_seconds() -> Iterator[tuple[str, float]]:
    """Of each stage, for a minute of moving 720p with speech all through it."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        pictures = list(_pictures(folder() / "bunny.mp4"))
        sound = np.tile(sample.recording(weights.path("sample/reader.wav")), 2)[: 60 * RATE]
        with Movie(work / "minute.mp4", pictures[0].size, Fraction(25), sound) as movie:
            for i in range(60 * 25):
                movie.add(pictures[i % len(pictures)], i / 25)
        yield from _stages(work)


def _stages(work: Path) -> Iterator[tuple[str, float]]:
    def timed(do: Callable[[], object]) -> float:
        began = time.process_time()
        do()
        return time.process_time() - began

    source = work / "minute.mp4"
    yield (
        "decode",
        timed(lambda: decoder.decode(source, work, sampling_rate=2, longest=LONGEST, progress=lambda *_: None)),
    )
    frames, (sound, _) = Frames(work / "frames.zip"), sounds.read(work / "sound.wav")
    with np.load(work / "thumbnails.npz") as kept:
        thumbnails, times = kept["thumbnails"], kept["times"].tolist()
    yield "cut", timed(lambda: cuts.find(thumbnails, times))
    found: dict[str, list[Finding]] = {}
    for name, find in (
        ("ocr", texts.Reader().find),
        ("face", faces.find),
        ("pose", poses.find),
        ("yolo", objects.find),
    ):
        find(frames[0].picture, 0.0)  # load the model first

        def run(name: str = name, find: Callable[[Image.Image, float], list[Finding]] = find) -> None:
            found[name] = [each for at, one in frames for each in find(one, at)]

        yield name, timed(run)
    speech.transcribe(sound[:RATE], lambda _: None)
    heard: list[speech.Transcript] = []
    yield "hear", timed(lambda: heard.append(speech.transcribe(sound, lambda _: None)))
    yield "asrx", timed(lambda: speech.turns_of(sound, heard[0], lambda _: None))
    yield (
        "join",
        timed(lambda: preview.preview(frames, found, sound, work / "preview.mp4", 2, lambda *_: None)),
    )


def main() -> None:
    if missing := models.fetch(folder(), HELD_OUT):
        sys.exit("\n".join(["Cannot be fetched:", *missing]))
    _say("face", look(faces.find, lambda scene: Counter(face=scene.faces)))
    _say("pose", look(poses.find, lambda scene: Counter(person=scene.people)))
    _say("yolo", look(objects.find, lambda scene: Counter({"person": scene.people, **scene.things})))
    for line in scene_changes():
        _say("cut", line)
    _say("asr", f"call: {words_wrong(call())}")
    _say("asr", f"call with noise at {NOISE:g} dB: {words_wrong(call(NOISE))}")
    _say("asrx", speakers_confused(call()))
    total = 0.0
    for name, seconds in core_seconds():
        total += seconds
        _say(name, f"{seconds:.1f} core seconds per minute of moving 720p")
    _say("all", f"{total:.1f} core seconds per minute of moving 720p")


def _say(name: str, result: object) -> None:
    sys.stdout.write(f"{name:7} {result}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

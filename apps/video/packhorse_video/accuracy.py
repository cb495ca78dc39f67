"""Measures the accuracy and the speed of the processors on the sample: ``python -m packhorse_video.accuracy``.

Times are those of a core, with the models loaded: they add up to the work of a job, however many run side by side.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from packhorse_video import cuts, decoder, faces, objects, poses, preview, sample, sounds, texts, transcript
from packhorse_video.findings import Finding
from packhorse_video.frames import Frames

RATE = 2.0
SIZE = 960


class Sampled:
    """The sample, decoded."""

    def __init__(self, folder: Path) -> None:
        sample.write(folder / "sample.mp4")
        began = time.process_time()
        decoder.decode(folder / "sample.mp4", folder, sampling_rate=RATE, longest=SIZE, progress=lambda *_: None)
        self.decoding = time.process_time() - began
        self.found: dict[str, list[Finding]] = {}
        self.frames = Frames(folder / "frames.zip")
        self.sound, _ = sounds.read(folder / "sound.wav")
        with np.load(folder / "thumbnails.npz") as kept:
            self.thumbnails, self.times = kept["thumbnails"], kept["times"].tolist()

    def transcribed(self) -> transcript.Transcript:
        self.heard = transcript.transcribe(self.sound, lambda _: None)
        return self.heard

    def seen(self, look: Callable[..., Sequence[Finding]]) -> list[Finding]:
        return [each for at, picture in self.frames for each in look(picture, at)]

    def agreed(self, found: Iterable[Finding], expected: Callable[[sample.Scene], Sequence[str]]) -> str:
        """In how many frames exactly the expected labels were found."""
        here: dict[float, list[str]] = {at: [] for at in self.frames.times}
        for each in found:
            here[each.at].append(each.label.replace(" ", ""))
        right = [
            Counter(labels) == Counter(each.replace(" ", "") for each in expected(sample.scene_at(at)[0]))
            for at, labels in here.items()
        ]
        return f"{sum(right)} of {len(right)} frames exactly right"


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """The fewest words to be left out, put in or replaced."""
    costs = list(range(len(heard) + 1))
    for i, word in enumerate(said, start=1):
        before, costs = costs, [i]
        for j, other in enumerate(heard, start=1):
            costs.append(min(before[j] + 1, costs[-1] + 1, before[j - 1] + (word != other)))
    return costs[-1]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        video = Sampled(Path(folder))
        _say("decode", f"{len(video.times)} frames", video.decoding)
        for name, find, judged in _measures(video):
            find()  # load the model first
            began = time.process_time()
            video.found[name] = find()
            _say(name, judged(video.found[name]), time.process_time() - began)
        began = time.process_time()
        preview.preview(video.frames, video.found, video.sound, Path(folder) / "preview.mp4", RATE, lambda *_: None)
        _say("preview", f"{len(video.frames)} frames", time.process_time() - began)


def _measures(
    video: Sampled,
) -> list[tuple[str, Callable[[], list[Finding]], Callable[[list[Finding]], str]]]:
    def person(scene: sample.Scene, label: str) -> list[str]:
        return [label] if scene.face is not None else []

    return [
        ("cut", lambda: cuts.find(video.thumbnails, video.times), _cuts),
        ("ocr", lambda: video.seen(texts.Reader().find), lambda found: video.agreed(found, lambda s: s.texts)),
        ("face", lambda: video.seen(faces.find), lambda found: video.agreed(found, lambda s: person(s, "face"))),
        ("pose", lambda: video.seen(poses.find), lambda found: video.agreed(found, lambda s: person(s, "person"))),
        ("yolo", lambda: video.seen(objects.find), lambda found: video.agreed(found, lambda s: s.objects)),
        ("asr", lambda: transcript.words_of(video.transcribed()), _words),
        ("asrx", lambda: transcript.turns_of(video.sound, video.heard, lambda _: None), _speakers),
    ]


def _cuts(found: list[Finding]) -> str:
    right = [any(abs(each.at - cut) < 0.001 for each in found) for cut in sample.CUTS]
    return f"{sum(right)} of {len(right)} cuts to the frame, {len(found) - sum(right)} that are none"


def _words(found: list[Finding]) -> str:
    heard = {
        spoken.speaker: [
            each.label.lower() for each in found if -0.2 <= each.at - spoken.at <= spoken.end - spoken.start
        ]
        for spoken in sample.SPEECH
    }
    said = {spoken.speaker: " ".join(text for *_, text in spoken.phrases).split() for spoken in sample.SPEECH}
    errors = {who: word_errors(said[who], heard[who]) for who in said}
    return ", ".join(f"{who}: {errors[who]} of {len(said[who])} words wrong" for who in said)


def _speakers(found: list[Finding]) -> str:
    """Seconds of speech that are the right person's, where the first to speak is the first of them."""
    right = total = 0.0
    for number, spoken in enumerate(sample.SPEECH, start=1):
        for start, end, _ in spoken.phrases:
            at, until = start + spoken.at - spoken.start, end + spoken.at - spoken.start
            total += until - at
            right += sum(
                max(0.0, min(until, each.until or each.at) - max(at, each.at))
                for each in found
                if each.speaker == f"speaker {number}"
            )
    return f"{right:.1f} of {total:.1f} s of speech are the right speaker's"


def _say(name: str, result: str, seconds: float) -> None:
    sys.stdout.write(f"{name:7} {seconds / sample.DURATION * 60:6.1f} core seconds per minute of video   {result}\n")


if __name__ == "__main__":
    main()

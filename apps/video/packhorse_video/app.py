"""The pipeline: one decode, seven processors side by side, and all that they found joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from PIL import Image

from packhorse import (
    Accepts,
    App,
    Choices,
    Condition,
    Context,
    File,
    Params,
    Permanent,
    Skip,
    any_,
    contains,
    is_set,
    needs,
    not_,
)
from packhorse_video import cuts, decoder, findings, preview, processors, sounds, timeline
from packhorse_video.decoder import About, NotAVideo
from packhorse_video.findings import Finding, Report
from packhorse_video.frames import Frames

app = App("video", statuses={status: status for status in ("pending", "running", "completed", "failed", "cancelled")})

NOT_ASKED = "not selected"
SILENT = "the video has no sound"
ABSENT = "not available on this machine"
KINDS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".ogv", ".flv", ".wmv", "video/*")
MEMORY = "4GB"
"""Limit per stage, including the models that its process keeps, so that one video cannot exhaust the machine."""


class Analyse(Params):
    """Finds cuts, text, faces, poses, objects, words and speakers in a video."""

    video: Annotated[File, Accepts(*KINDS, size="4GB", content=False, path="video_path")]  # the stage probes it
    processors: Annotated[list[Annotated[str, Choices(processors.available)]], Meta(max_length=7)] = []  # noqa: RUF012
    """Processors to run. Empty: all that are available."""
    sampling_rate: Annotated[float, Meta(ge=0.1, le=30)] = 2.0
    """Frames per second to analyse. Cuts are found to the frame at any rate."""
    frame_size: Annotated[int, Meta(ge=160, le=1920)] = 960
    """Larger frames are scaled down so that their longer side has this many pixels."""


class Decoded(msgspec.Struct, frozen=True):
    about: About
    frames: File
    thumbnails: File
    sound: File | None


class Speech(msgspec.Struct, frozen=True):
    """What was said, for `asr` and `asrx`."""

    transcript: File
    note: str = ""
    """What is missing from it."""


class Found(msgspec.Struct, frozen=True):
    """Result of a processor."""

    count: int
    findings: File
    note: str = ""
    """What is missing from the findings."""


class Analysis(msgspec.Struct, frozen=True):
    timeline: File
    preview: File
    sheet: File
    video: About
    found: dict[str, int]
    """By processor that ran."""
    notes: dict[str, str]
    """What is missing from the result, and why."""
    partial: bool = False
    """Whether a part of the video could not be read; `notes` says which."""


def asked(*names: str) -> Condition:
    """Whether the job selects one of these processors, or all."""
    return any_(not_(is_set("processors")), *(contains("processors", name) for name in names))


analyse = app.pipeline("analyse", Analyse, keep="24h", deadline="6h")


@analyse.stage(queue="video", timeout="1h", memory=MEMORY)
def decode(ctx: Context, p: Analyse) -> Decoded:
    """All that the processors need, in one pass over the file."""
    try:
        about = decoder.decode(
            p.video.path,
            ctx.scratch,
            sampling_rate=p.sampling_rate,
            longest=p.frame_size,
            progress=lambda done, total: ctx.progress(done, total, f"frame {done}"),
        )
    except NotAVideo as error:
        raise Permanent(str(error), code="INVALID_VIDEO") from error
    ctx.log.info("%.1f s, %d frames, %d of them sampled", about.duration, about.frames, about.sampled)
    if about.partial:
        ctx.log.warning("%s", about.note)
    folder = ctx.scratch
    sound = File(folder / "sound.wav") if about.has_sound else None
    return Decoded(about, File(folder / "frames.zip"), File(folder / "thumbnails.npz"), sound)


@analyse.stage(queue="cut", when=asked("cut"), timeout="1h", memory=MEMORY)
def cut(ctx: Context, _p: Analyse, decoded: Decoded = needs(decode)) -> Found | Skip:
    if not _is_there("cut"):
        return Skip(ABSENT)
    with np.load(decoded.thumbnails.path) as kept:
        thumbnails, times = kept["thumbnails"], kept["times"].tolist()
    found = cuts.find(thumbnails, times)
    ctx.progress(len(times), len(times), "1 cut" if len(found) == 1 else f"{len(found)} cuts")
    return _save(ctx, "cut", cuts.MODEL, len(times), found)


@analyse.stage(queue="ocr", when=asked("ocr"), timeout="2h", weight=4, memory=MEMORY)
def ocr(ctx: Context, _p: Analyse, decoded: Decoded = needs(decode)) -> Found | Skip:
    if not _is_there("ocr"):
        return Skip(ABSENT)
    from packhorse_video import texts

    return _look(ctx, "ocr", texts.MODEL, decoded, texts.Reader().find)


@analyse.stage(queue="face", when=asked("face"), timeout="1h", memory=MEMORY)
def face(ctx: Context, _p: Analyse, decoded: Decoded = needs(decode)) -> Found | Skip:
    if not _is_there("face"):
        return Skip(ABSENT)
    from packhorse_video import faces

    return _look(ctx, "face", faces.MODEL, decoded, faces.find)


@analyse.stage(queue="pose", when=asked("pose"), timeout="1h", weight=2, memory=MEMORY)
def pose(ctx: Context, _p: Analyse, decoded: Decoded = needs(decode)) -> Found | Skip:
    if not _is_there("pose"):
        return Skip(ABSENT)
    from packhorse_video import poses

    return _look(ctx, "pose", poses.MODEL, decoded, poses.find)


@analyse.stage(queue="yolo", when=asked("yolo"), timeout="1h", weight=2, memory=MEMORY)
def yolo(ctx: Context, _p: Analyse, decoded: Decoded = needs(decode)) -> Found | Skip:
    if not _is_there("yolo"):
        return Skip(ABSENT)
    from packhorse_video import objects

    return _look(ctx, "yolo", objects.MODEL, decoded, objects.find)


@analyse.stage(queue="asr", when=asked("asr", "asrx"), timeout="3h", weight=4, memory=MEMORY)
def hear(ctx: Context, _p: Analyse, decoded: Decoded = needs(decode)) -> Speech | Skip:
    """Transcribe the sound once, for both processors that report it."""
    if not _is_there("asr"):
        return Skip(ABSENT)
    if decoded.sound is None:
        return Skip(SILENT)
    from packhorse_video import transcript

    sound, total = sounds.read(decoded.sound.path)[0], round(decoded.about.duration)
    ctx.progress(0, total, "listening")
    made = transcript.transcribe(sound, _listening(ctx, total))
    ctx.progress(total, total, f"{sum(len(part.words) for part in made.parts)} words")
    path = ctx.scratch / "transcript.json"
    transcript.write(made, path)
    if made.note:
        ctx.log.warning("%s", made.note)
    return Speech(File(path), made.note)


@analyse.stage(queue="asr", when=asked("asr"), timeout="1h", memory=MEMORY)
def asr(ctx: Context, _p: Analyse, decoded: Decoded = needs(decode), speech: Speech = needs(hear)) -> Found:
    from packhorse_video import transcript, words

    total = round(decoded.about.duration)
    found = transcript.words_of(transcript.read(speech.transcript.path))
    ctx.progress(total, total, f"{len(found)} found")
    return _save(ctx, "asr", words.MODEL, total, found, speech.note)


@analyse.stage(queue="asrx", when=asked("asrx"), timeout="3h", weight=2, memory=MEMORY)
def asrx(ctx: Context, _p: Analyse, decoded: Decoded = needs(decode), speech: Speech = needs(hear)) -> Found | Skip:
    if not _is_there("asrx"):
        return Skip(ABSENT)
    if decoded.sound is None:
        return Skip(SILENT)
    from packhorse_video import speakers, transcript, words

    sound, total = sounds.read(decoded.sound.path)[0], round(decoded.about.duration)
    ctx.progress(0, total, "telling voices apart")
    found = transcript.turns_of(sound, transcript.read(speech.transcript.path), _listening(ctx, total))
    ctx.progress(total, total, f"{len(found)} found")
    return _save(ctx, "asrx", f"{words.MODEL}; {speakers.MODEL}", total, found, speech.note)


@analyse.stage(queue="video", timeout="1h", weight=2, memory=MEMORY)
def join(
    ctx: Context,
    p: Analyse,
    decoded: Decoded = needs(decode),
    cut: Found | None = needs(cut, optional=True),
    ocr: Found | None = needs(ocr, optional=True),
    face: Found | None = needs(face, optional=True),
    pose: Found | None = needs(pose, optional=True),
    yolo: Found | None = needs(yolo, optional=True),
    asr: Found | None = needs(asr, optional=True),
    asrx: Found | None = needs(asrx, optional=True),
) -> Analysis:
    """One timeline, a preview with all of it drawn in, and a sheet with a picture of each scene."""
    left = {"cut": cut, "ocr": ocr, "face": face, "pose": pose, "yolo": yolo, "asr": asr, "asrx": asrx}
    reports = [findings.read(each.findings.path) for each in left.values() if each is not None]
    about, frames = decoded.about, Frames(decoded.frames.path)
    notes = {"decode": about.note} if about.partial else {}
    notes |= {name: each.note for name, each in left.items() if each is not None and each.note}
    notes |= {name: _why_skipped(name, p, decoded) for name, each in left.items() if each is None}
    made = timeline.join(about, reports, notes, every=max(1 / p.sampling_rate, 1 / about.frame_rate))
    out = ctx.scratch / "timeline.json"
    out.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1))
    found = {report.processor: report.findings for report in reports}
    sound = None if decoded.sound is None else sounds.read(decoded.sound.path)[0]
    preview.preview(
        frames, found, sound, ctx.scratch / "preview.mp4", p.sampling_rate, lambda i, n: ctx.progress(i, n, "drawing")
    )
    preview.sheet(frames, found, about.duration, ctx.scratch / "sheet.jpg")
    return Analysis(
        File(out),
        File(ctx.scratch / "preview.mp4"),
        File(ctx.scratch / "sheet.jpg"),
        about,
        {report.processor: len(report.findings) for report in reports},
        notes,
        about.partial,
    )


def _is_there(processor: str) -> bool:
    """Whether this machine has what the processor needs. Left out of `processors`, it is not required."""
    return processor in processors.available()


def _why_skipped(processor: str, p: Analyse, decoded: Decoded) -> str:
    if p.processors and processor not in p.processors:
        return NOT_ASKED
    return SILENT if processor in ("asr", "asrx") and decoded.sound is None else ABSENT


def _look(
    ctx: Context,
    processor: str,
    model: str,
    decoded: Decoded,
    found_in: Callable[[Image.Image, float], Sequence[Finding]],
) -> Found:
    """Run a processor of pictures, frame by frame."""
    frames = Frames(decoded.frames.path)
    found: list[Finding] = []
    for at, picture in ctx.track(
        frames, message=f"{processor} in {len(frames)} {'frame' if len(frames) == 1 else 'frames'}"
    ):
        found += found_in(picture, at)
    return _save(ctx, processor, model, len(frames), found)


def _listening(ctx: Context, total: int) -> Callable[[float], None]:
    return lambda until: ctx.progress(min(round(until), total), total, f"listened to {until:.0f} s")


def _save(ctx: Context, processor: str, model: str, looked_at: int, found: list[Finding], note: str = "") -> Found:
    path = ctx.scratch / f"{processor}.json"
    findings.write(Report(processor, model, looked_at, found), path)
    return Found(len(found), File(path), note)

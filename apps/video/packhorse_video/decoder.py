"""A video, decoded once: frames at the sampling rate, a thumbnail of every frame, and the sound."""

from __future__ import annotations

import math
import os
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
from av.error import FFmpegError
from PIL import Image

from packhorse_video import cuts
from packhorse_video.frames import Writer
from packhorse_video.sounds import RATE

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,ogg,flv,asf"
"""Those that are one file. Playlists and the like name further files and addresses, and would have them read."""
MOST_PIXELS = 8192 * 4320
MOST_FRAMES = 20_000
"""Sampled; what comes of them must fit into memory."""
MOST_DECODED = 500_000
"""Of each there is a thumbnail, and all of those are in memory at once: four hours at 30 a second have 432,000."""
ESTIMATED = ("mpegts", "mpeg", "ogg")
"""Formats that do not say how long they are: their length is a guess from the last packets."""
MOST_SECONDS = 4 * 3600
"""By what the file says of its times, which costs nothing to say: a silence of days is a few bytes of it."""
THREADS = 4
"""Each decodes a picture of its own, and one of the largest takes 100 MB: more of them would not fit into memory."""

Progress = Callable[[int, int | None], None]


class NotAVideo(ValueError):
    """What is wrong with the file, in a sentence."""


class About(msgspec.Struct, frozen=True):
    duration: float
    """Seconds, from the first frame to the end of the last."""
    frame_rate: float
    width: int
    height: int
    frames: int
    sampled: int
    has_sound: bool
    unreadable: int = 0
    """Packets that were broken, and passed over as a player would."""
    declared: float | None = None
    """Seconds that the file says it has, if it says so."""
    partial: bool = False
    """Whether a part of the video could not be read: the file is cut off or damaged."""

    @property
    def note(self) -> str:
        """What could not be read."""
        if not self.partial:
            return ""
        if self.declared is not None and self.declared - self.duration > _tolerance(self.declared):
            return f"partial: only {self.duration:.1f} of {self.declared:.1f} s could be read; the file is cut off"
        return f"partial: {self.unreadable} packets are damaged and were passed over"


def decode(source: Path, to: Path, *, sampling_rate: float, longest: int, progress: Progress) -> About:
    """Leaves frames.zip, thumbnails.npz and, if there is any sound, sound.wav in the folder."""
    try:
        with av.open(str(source), options={"format_whitelist": FORMATS, "protocol_whitelist": "file"}) as container:
            return _Decoding(container, to, sampling_rate, longest, progress).about()
    except FFmpegError as error:
        raise NotAVideo(f"It cannot be read as a video: {error.strerror or error}.") from error


class _Decoding:
    def __init__(self, container: Any, to: Path, sampling_rate: float, longest: int, progress: Progress) -> None:
        self._container, self._to, self._progress = container, to, progress
        self._every, self._longest = 1 / sampling_rate, longest
        pictures = [each for each in container.streams.video if not each.disposition & each.disposition.attached_pic]
        if not pictures:
            raise NotAVideo("It has no pictures.")
        self._video = pictures[0]
        self._video.thread_type = "AUTO"
        self._video.codec_context.thread_count = min(THREADS, os.cpu_count() or 1)
        self._start = (container.start_time or 0) / av.time_base
        self._size = self._scale(self._video.codec_context.width, self._video.codec_context.height)
        self._frames = Writer(to / "frames.zip")
        self._due = 0.0
        self._thumbnails: list[Any] = []
        self._times: list[float] = []
        self._unreadable = 0
        self._is_turned = False
        self._sound: _Sound | None = _Sound(to / "sound.wav") if container.streams.audio else None

    def _scale(self, width: int, height: int) -> tuple[int, int]:
        """Even, as encoders want it, and never larger than it was."""
        _require_small(width, height)
        scale = min(1.0, self._longest / max(width, height))
        return max(2, round(width * scale / 2) * 2), max(2, round(height * scale / 2) * 2)

    def about(self) -> About:
        streams = [self._video, *self._container.streams.audio[:1]]
        rate = float(self._video.average_rate or self._video.guessed_rate or 25)
        expected = self._video.frames or round((self._container.duration or 0) / av.time_base * rate) or None
        for packet in self._container.demux(streams):
            for frame in self._of(packet):
                if isinstance(frame, av.AudioFrame):
                    assert self._sound is not None
                    self._sound.add(frame, self._start)
                else:
                    self._see(frame, rate)
                    self._progress(len(self._times), expected)
        if not self._times:
            raise NotAVideo("It has no frame that can be decoded.")
        return self._finish(rate)

    def _of(self, packet: Any) -> list[Any]:
        try:
            return list(packet.decode())
        except FFmpegError:
            self._unreadable += 1
            return []

    def _see(self, frame: Any, rate: float) -> None:
        time = len(self._times) / rate if frame.time is None else frame.time - self._start
        at = max(0.0, round(time, 3))
        _require_short(at)
        _require_small(frame.width, frame.height)  # it may be another than at the beginning
        if len(self._times) == MOST_DECODED:
            raise NotAVideo(f"What has more than {MOST_DECODED} pictures is not looked at.")
        self._thumbnails.append(frame.to_ndarray(width=cuts.SIZE[0], height=cuts.SIZE[1], format="rgb24"))
        self._times.append(at)
        if self._is_due(at, rate):
            if len(self._frames.times) == MOST_FRAMES:
                raise NotAVideo(f"More than {MOST_FRAMES} frames would be looked at: a lower sampling_rate is needed.")
            self._frames.add(at, self._upright(frame))
            self._due = (math.floor((at + 0.5 / rate) / self._every) + 1) * self._every  # a jump leaves no debt

    def _is_due(self, at: float, rate: float) -> bool:
        """A frame with the time of the last one, or an earlier time, is left out: times in a film must increase."""
        sampled = self._frames.times
        return at + 0.5 / rate >= self._due and (not sampled or at > sampled[-1])

    def _upright(self, frame: Any) -> Image.Image:
        """Telephones store what they see lying down, and how to turn it. What is askew stays so: its sides are even."""
        width, height = self._size
        stored = Image.fromarray(frame.to_ndarray(width=width, height=height, format="rgb24"))
        turn = round(frame.rotation / 90) * 90
        self._is_turned = turn % 180 != 0
        return stored.rotate(turn, expand=True) if turn else stored

    def _finish(self, rate: float) -> About:
        self._frames.close()
        np.savez(self._to / "thumbnails.npz", thumbnails=np.stack(self._thumbnails), times=np.array(self._times))
        has_sound = self._sound is not None and self._sound.close()
        size = (self._video.codec_context.width, self._video.codec_context.height)
        width, height = reversed(size) if self._is_turned else size
        duration, declared = round(max(self._times) + 1 / rate, 3), self._declared()
        heard = self._sound.seconds if self._sound is not None else 0.0
        return About(
            duration=duration,
            frame_rate=round(rate, 3),
            width=width,
            height=height,
            frames=len(self._times),
            sampled=len(self._frames.times),
            has_sound=has_sound,
            unreadable=self._unreadable,
            declared=declared,
            partial=self._unreadable > 0 or _is_short(declared, duration, 0.0 if self._video.duration else heard),
        )

    def _declared(self) -> float | None:
        """Seconds of the pictures, as the file says, or of the whole file if it says nothing of the pictures."""
        if self._container.format.name in ESTIMATED:
            return None
        known = [self._container.duration / av.time_base] if self._container.duration else []
        if self._video.duration:
            known.append(float(self._video.duration * self._video.time_base))
        return round(min(known), 3) if known else None


def _tolerance(seconds: float) -> float:
    return 0.5 + 0.01 * seconds


def _is_short(declared: float | None, seen: float, heard: float) -> bool:
    return declared is not None and declared - max(seen, heard) > _tolerance(declared)


def _require_small(width: int, height: int) -> None:
    if not 0 < width * height <= MOST_PIXELS:
        raise NotAVideo(f"Pictures of {width} by {height} are not looked at.")


def _require_short(seconds: float) -> None:
    if seconds > MOST_SECONDS:
        raise NotAVideo(f"What is longer than {MOST_SECONDS / 3600:g} hours is not looked at.")


class _Sound:
    """One channel at `RATE`, beginning when the pictures do."""

    def __init__(self, path: Path) -> None:
        self._file = wave.open(str(path), "wb")  # noqa: SIM115 (open for as long as there are frames)
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(RATE)
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
        self._samples = 0
        self._silent = 0.0
        self._has_begun = False

    def add(self, frame: Any, start: float) -> None:
        if not self._has_begun and frame.time is not None and frame.time > start:
            self._be_silent(frame.time - start)
        self._has_begun = True
        self._write(self._resampler.resample(frame))

    def _be_silent(self, seconds: float) -> None:
        """Second by second: hours of it at once would not fit into memory."""
        _require_short(seconds)
        whole, rest = divmod(round(seconds * RATE), RATE)
        self._silent = seconds
        for _ in range(whole):
            self._file.writeframesraw(bytes(2 * RATE))
        self._file.writeframes(bytes(2 * rest))

    def _write(self, frames: list[Any]) -> None:
        for frame in frames:
            self._file.writeframes(frame.to_ndarray().astype("<i2").tobytes())
            self._samples += frame.samples
            _require_short(self._silent + self._samples / RATE)

    @property
    def seconds(self) -> float:
        return self._silent + self._samples / RATE

    def close(self) -> bool:
        """Whether anything was in it."""
        if self._samples:
            self._write(self._resampler.resample(None))
        self._file.close()
        return self._samples > 0

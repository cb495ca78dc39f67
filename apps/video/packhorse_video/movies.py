"""Pictures and sound written as an mp4."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
from PIL import Image

from packhorse_video.sounds import RATE, Sound

MOMENT = Fraction(1, 12_800)
"""Seconds; what times are counted in. Common frame rates have whole numbers of it."""
QUALITY = "23"


class Movie:
    """Written in order: each picture with the sound of its time."""

    def __init__(self, path: Path, size: tuple[int, int], rate: Fraction, sound: Sound | None = None) -> None:
        self._file: Any = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        self._video = self._file.add_stream("libx264", rate=rate, options={"crf": QUALITY, "preset": "veryfast"})
        self._video.width, self._video.height = size
        self._video.pix_fmt = "yuv420p"
        self._video.codec_context.time_base = MOMENT
        self._audio = None if sound is None else self._file.add_stream("aac", rate=RATE, layout="mono")
        self._left = np.zeros(0, np.float32) if sound is None else sound
        self._heard = 0

    def add(self, picture: Image.Image, at: float) -> None:
        self._listen(at)
        frame = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")
        frame.pts = round(at / MOMENT)
        frame.time_base = MOMENT
        self._file.mux(self._video.encode(frame))

    def _listen(self, until: float) -> None:
        """Up to that time."""
        count = min(self._left.size, max(0, round(until * RATE) - self._heard))
        if self._audio is None or not count:
            return
        frame = av.AudioFrame.from_ndarray(self._left[np.newaxis, :count], format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._heard, Fraction(1, RATE)
        self._file.mux(self._audio.encode(frame))
        self._left, self._heard = self._left[count:], self._heard + count

    def __enter__(self) -> Movie:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._listen(self._heard + self._left.size)
            self._file.mux(self._video.encode(None))
            if self._audio is not None:
                self._file.mux(self._audio.encode(None))
        self._file.close()

"""Words that are heard, with their times: PocketSphinx and the English model that comes with it."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from packhorse_video.sounds import RATE, Sound
from packhorse_video.voices import Stretch

MODEL = "PocketSphinx 5, en-us"
FRAME = 0.01
"""Seconds; what the decoder counts in."""
MOST = 6000
"""What may be thought of at a time. Of 30000, its own number, it took twice as long for the same words."""


class Word(NamedTuple):
    text: str
    at: float
    until: float
    score: float


@cache
def _decoder() -> Any:
    from pocketsphinx import Decoder

    return Decoder(samprate=RATE, loglevel="FATAL", maxhmmpf=MOST)


def recognise(sound: Sound, stretch: Stretch) -> list[Word]:
    """Those of one stretch of speech."""
    decoder = _decoder()
    samples = (np.clip(stretch.of(sound), -1, 1) * 32_767).astype("<i2")
    decoder.start_utt()
    decoder.process_raw(samples.tobytes(), no_search=False, full_utt=True)
    decoder.end_utt()
    if decoder.hyp() is None:
        return []
    return [
        Word(
            segment.word.partition("(")[0],
            round(stretch.at + segment.start_frame * FRAME, 2),
            round(stretch.at + (segment.end_frame + 1) * FRAME, 2),
            round(segment.prob, 3),
        )
        for segment in decoder.seg()
        if segment.word[0] not in "<[+"
    ]

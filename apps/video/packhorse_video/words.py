"""Spoken words, with their times: Moonshine tiny for English, decoded greedily.

The model gives no times. Words are placed into the voiced parts of their stretch: their lengths decide how long each
takes, and boundaries go where it is quiet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from packhorse_video import weights
from packhorse_video.sounds import RATE, Sound
from packhorse_video.voices import Stretch

MODEL = "Moonshine tiny, English (moonshine-voice 0.0.48)"
LEAST_CHANCE = 0.47
"""Certainty of a stretch. English speech has 0.75 or more, other languages have less than 0.4."""
MOST_TOKENS = 6.5
"""Per second of sound; a decoder that repeats itself is stopped there."""
START, END = 1, 2
SPACE = "▁"
FRAME = 320
"""Samples; 20 ms."""
QUIET = 2.0
"""Weight of a quiet boundary against a word of the expected length."""
PAUSE = 6.0
"""Weight of a boundary at a pause; twice that after a comma or a full stop."""


class Word(NamedTuple):
    text: str
    """As it is written in its sentence, with punctuation."""
    at: float
    until: float
    score: float

    @property
    def bare(self) -> str:
        """Without punctuation around it."""
        return self.text.strip(".,;:!?\"'()[]…-") or self.text


class Heard(NamedTuple):
    """The words of a stretch, and the mean chance of their tokens."""

    words: list[Word]
    chance: float

    @property
    def is_english(self) -> bool:
        return self.chance >= LEAST_CHANCE


class _Model(NamedTuple):
    encoder: Any
    decoder: Any
    tokens: list[bytes]


@cache
def _model() -> _Model:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # its neighbours have the other cores; and sums keep their order
    encoder, decoder = (
        onnxruntime.InferenceSession(str(weights.path(f"speech/{name}")), options, providers=["CPUExecutionProvider"])
        for name in ("encoder.ort", "decoder.ort")
    )
    return _Model(encoder, decoder, _tokens(weights.path("speech/tokens.bin").read_bytes()))


def _tokens(data: bytes) -> list[bytes]:
    """Each has its length before it: a byte, or two if the first is 128 or more."""
    found, at = [], 0
    while at < len(data):
        length, at = data[at], at + 1
        if length >= 128:
            length, at = length - 128 + 128 * data[at], at + 1
        found.append(data[at : at + length])
        at += length
    return found


def recognise(sound: Sound, voiced: Sequence[Stretch]) -> Heard:
    """What is said from the first stretch to the last. The same sound always gives the same words."""
    whole = Stretch(voiced[0].at, voiced[-1].until)
    pieces, chances = _decode(whole.of(sound))
    texts, scores = _words(pieces, chances)
    times = _place(texts, sound, voiced) if texts else []
    return Heard(
        [Word(text, at, until, score) for text, (at, until), score in zip(texts, times, scores, strict=True)],
        certainty(pieces, chances),
    )


def certainty(pieces: Sequence[bytes], chances: Sequence[float]) -> float:
    """Mean chance of the tokens. What repeats itself counts once: a decoder that loops is sure of itself."""
    seen: set[tuple[bytes, ...]] = set()
    new = []
    for i, chance in enumerate(chances):
        context = tuple(pieces[max(0, i - 2) : i + 1])
        if context not in seen:
            new.append(chance)
        seen.add(context)
    return float(np.exp(np.mean(np.log(new)))) if new else 0.0


def _decode(samples: Sound) -> tuple[list[bytes], list[float]]:
    """Tokens and the chance of each."""
    model = _model()
    given = samples[np.newaxis].astype(np.float32)
    mask = np.ones(given.shape, np.int64)
    [encoded] = model.encoder.run(None, {"input_values": given, "attention_mask": mask})
    known = {
        each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32)
        for each in model.decoder.get_inputs()
        if each.name.startswith("past_key_values")
    }
    names = [each.name.replace("present", "past_key_values") for each in model.decoder.get_outputs()[1:]]
    token, pieces, chances = START, [], []
    for i in range(max(2, int(given.size / RATE * MOST_TOKENS))):
        inputs = {
            "input_ids": np.array([[token]], np.int64),
            "encoder_hidden_states": encoded,
            "encoder_attention_mask": mask,
            "use_cache_branch": np.array([i > 0]),
        }
        logits, *present = model.decoder.run(None, inputs | known)
        known |= {name: value for name, value in zip(names, present, strict=True) if not i or ".decoder." in name}
        scores = logits[0, -1].astype(np.float64)
        token = int(scores.argmax())
        if token == END:
            break
        chances.append(float(1 / np.exp(scores - scores.max()).sum()))
        pieces.append(model.tokens[token])
    return pieces, chances


def _words(pieces: Sequence[bytes], chances: Sequence[float]) -> tuple[list[str], list[float]]:
    """Tokens joined to words; of each word the mean chance."""
    texts: list[bytes] = []
    scores: list[list[float]] = []
    for piece, chance in zip(pieces, chances, strict=True):
        if piece.startswith(SPACE.encode()) or not texts:
            texts.append(b"")
            scores.append([])
        texts[-1] += piece.removeprefix(SPACE.encode())
        scores[-1].append(chance)
    whole = [(text.decode(errors="replace"), each) for text, each in zip(texts, scores, strict=True) if text]
    return [text for text, _ in whole], [round(float(np.mean(each)), 3) for _, each in whole]


def _place(texts: Sequence[str], sound: Sound, voiced: Sequence[Stretch]) -> list[tuple[float, float]]:
    """From when to when each word is said: the cheapest of all ways to divide the voiced frames among them."""
    times = np.concatenate([np.arange(each.at, each.until, FRAME / RATE) for each in voiced])
    if len(times) < len(texts):
        times = np.linspace(voiced[0].at, voiced[-1].until, len(texts), endpoint=False)
    count = len(times)
    bounds = _boundary_costs(sound, times)
    pauses = np.zeros(count + 1)
    pauses[np.cumsum([len(np.arange(each.at, each.until, FRAME / RATE)) for each in voiced])[:-1].clip(max=count)] = 1
    letters = np.array([_length(text) for text in texts])
    expected = letters * (count / letters.sum())
    costs = np.full((len(texts) + 1, count + 1), np.inf)
    came = np.zeros((len(texts) + 1, count + 1), int)
    costs[0, 0] = 0
    for i, text in enumerate(texts):
        at_end = QUIET * bounds - PAUSE * pauses * (2 if text[-1] in ".,;:!?" else 1)
        for length in range(1, min(count, int(expected[i] * 3) + 12) + 1):
            cost = (length - expected[i]) ** 2 / (2 * expected[i] + 4)
            ways = costs[i, :-length] + cost + at_end[length:]
            better = ways < costs[i + 1, length:]
            costs[i + 1, length:][better] = ways[better]
            came[i + 1, length:][better] = length
    ends = [count]
    for i in range(len(texts), 0, -1):
        ends.append(ends[-1] - max(1, int(came[i, ends[-1]])))
    ends.reverse()
    step = FRAME / RATE
    return [
        (round(float(times[max(0, a)]), 2), round(float(times[min(count, b) - 1] + step), 2)) for a, b in pairwise(ends)
    ]


def _length(text: str) -> float:
    """Letters, and as many for what is read as several: a digit is a word."""
    return 1 + sum(4 if each.isdigit() else each.isalpha() for each in text)


def _boundary_costs(sound: Sound, times: Any) -> Any:
    """How loud it is at the beginning of each frame, from 0 to 1."""
    starts = (times * RATE).astype(int)
    loud = np.array([float(np.mean(sound[max(0, at - FRAME) : at + FRAME] ** 2)) for at in starts])
    level = np.log(loud + 1e-8)
    low, high = np.quantile(level, [0.05, 0.95])
    shares = np.clip((level - low) / max(1e-6, high - low), 0, 1)
    return np.append(shares, 0.0)

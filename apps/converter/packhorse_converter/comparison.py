"""How far two models agree on the same inputs: per output, by what the output means, with a verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from packhorse_converter import detections
from packhorse_converter.detections import Boxes
from packhorse_converter.toolchain import Feed, Runner

Flat = NDArray[np.float64]
Kind = Literal["classes", "detections", "pixels", "tokens", "values"]
Verdict = Literal["good", "degraded", "unusable"]
WORST: tuple[Verdict, ...] = ("unusable", "degraded", "good")

EXACT = 200.0
"""Reported instead of infinity, if both agree exactly."""
GOOD, DEGRADED = 0.95, 0.8
"""Share of equal answers that is needed for each verdict."""
GOOD_DB, DEGRADED_DB = 20.0, 10.0
"""Signal to noise ratio that is needed for each verdict, where there is no answer to compare."""
NOISE_DB = 3.0
"""Below this, an output is noise whatever it answers."""
STILL = 1e-3
"""An output whose values differ between samples by less than this part of their size does not depend on the input."""


class OutputAgreement(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    """What it means: classes (one score each), detections (boxes), pixels (a class each), tokens, or plain values."""
    cosine: float
    sqnr_db: float
    max_error: float
    verdict: Verdict
    same: float | None = None
    """Share of equal answers: classes, pixels or tokens; of detections, the F1 score against the expected boxes."""
    expected: int | None = None
    """Detections of the expected model."""
    found: int | None = None
    """How many of them the model finds: same class, overlap of at least half."""
    extra: int | None = None
    """Detections that are not expected."""


class Agreement(msgspec.Struct, frozen=True):
    """How well a model agrees with the one it was made from."""

    samples: int
    top1: float | None
    """Share of samples for which both models choose the same class; None if no output holds classes."""
    cosine: float
    sqnr_db: float
    """Signal to quantisation noise ratio: the lowest of all outputs."""
    max_error: float
    latency_ms: float
    """Median of one run on this machine."""
    verdict: Verdict
    """The worst of all outputs."""
    outputs: list[OutputAgreement] = []


class _Output:
    """What is summed up for one output: one sample at a time, so that memory does not grow with their number."""

    def __init__(self, name: str, kind: Kind) -> None:
        self.name, self.kind = name, kind
        self.noise = self.signal = self.max_error = 0.0
        self.cosines: list[float] = []
        self.same: list[float] = []
        self.expected = self.found = self.extra = 0
        self.first: tuple[Flat, Flat] | None = None
        self.moved = [0.0, 0.0]
        self.is_other_shape = False

    def add(self, got: NDArray[Any], wanted: NDArray[Any]) -> None:
        if got.shape != wanted.shape:
            self.is_other_shape = True
            return
        if not got.size:
            return
        a, b = (np.asarray(each, np.float64) for each in (got, wanted))
        difference = (b - a)[np.isfinite(b)]
        difference = np.where(np.isfinite(difference), difference, np.abs(b[np.isfinite(b)]))
        self.noise += float(np.sum(difference**2))
        self.signal += float(np.sum(b[np.isfinite(b)] ** 2))
        self.max_error = max(self.max_error, float(np.max(np.abs(difference), initial=0.0)))
        self.cosines.append(_cosine(b.ravel(), a.ravel()))
        if self.first is None:
            self.first = a, b
        for i, (now, before) in enumerate(zip((a, b), self.first, strict=True)):
            self.moved[i] = max(self.moved[i], float(np.max(np.abs(now - before), initial=0.0)))
        if (axis := _answer_axis(self.kind)) is not None:
            self.same.append(float(np.mean(np.argmax(a, axis) == np.argmax(b, axis))))

    def add_boxes(self, got: Boxes, wanted: Boxes) -> None:
        found, extra = detections.match(got, wanted)
        self.expected += len(wanted.scores)
        self.found += found
        self.extra += extra

    def agreement(self) -> OutputAgreement:
        sqnr = EXACT if self.noise == 0 else round(10 * math.log10(max(self.signal, 1e-30) / self.noise), 2)
        is_boxes = self.kind == "detections" and self.expected + self.extra > 0
        same = self._f1() if is_boxes else (float(np.mean(self.same)) if self.same else None)
        return OutputAgreement(
            name=self.name,
            kind=self.kind,
            cosine=float(np.mean(self.cosines)) if self.cosines else 0.0,
            sqnr_db=sqnr,
            max_error=self.max_error,
            verdict=self._verdict(sqnr, same),
            same=same,
            expected=self.expected if is_boxes else None,
            found=self.found if is_boxes else None,
            extra=self.extra if is_boxes else None,
        )

    def _f1(self) -> float:
        return 2 * self.found / (self.expected + self.found + self.extra)

    def _verdict(self, sqnr: float, same: float | None) -> Verdict:
        if self.is_other_shape and same is None:
            return "unusable"
        size = math.sqrt(max(self.signal, 1e-30) / max(len(self.cosines), 1))
        if self.moved[1] > STILL * size and self.moved[0] == 0:
            return "unusable"  # the same answer whatever the input, and the expected model has others
        if same is None:
            return "good" if sqnr >= GOOD_DB else "degraded" if sqnr >= DEGRADED_DB else "unusable"
        if sqnr < NOISE_DB and not self.is_other_shape:
            return "unusable"
        return "good" if same >= GOOD else "degraded" if same >= DEGRADED else "unusable"


def compare(
    run: Runner, expected: Runner, feeds: Sequence[Feed], names: Sequence[str], picture: tuple[int, int] | None
) -> Agreement:
    """``names``: of the outputs. ``picture``: height and width of what it looks at. Holds one sample at a time."""
    times: list[float] = []
    parts: list[_Output] = []
    boxes: detections.Layout | None = None
    run(feeds[0])  # warm up: the first run is slower
    for feed in feeds:
        began = time.perf_counter()
        got = run(feed)
        times.append((time.perf_counter() - began) * 1000)
        wanted = expected(feed)
        if not parts:
            boxes = detections.find(wanted, names, picture) if picture else None
            parts = [
                _Output(name, _kind(each, k, boxes, picture is not None))
                for k, (name, each) in enumerate(zip(names, wanted, strict=True))
            ]
        for part, a, b in zip(parts, got, wanted, strict=True):
            part.add(np.asarray(a), np.asarray(b))
        if boxes is not None:
            parts[boxes.scores].add_boxes(boxes.read(got), boxes.read(wanted))
    outputs = [part.agreement() for part in parts]
    classes = [each.same for each in outputs if each.kind == "classes" and each.same is not None]
    return Agreement(
        samples=len(feeds),
        top1=min(classes) if classes else None,
        cosine=min(each.cosine for each in outputs),
        sqnr_db=min(each.sqnr_db for each in outputs),
        max_error=max(each.max_error for each in outputs),
        latency_ms=round(median(times), 3),
        verdict=min((each.verdict for each in outputs), key=WORST.index),
        outputs=outputs,
    )


def _kind(wanted: NDArray[Any], at: int, boxes: detections.Layout | None, pictures: bool) -> Kind:
    if boxes is not None and at == boxes.scores:
        return "detections"
    sizes = [size for size in wanted.shape[1:] if size != 1]
    if wanted.dtype.kind != "f" or boxes is not None:
        return "values"
    if wanted.ndim == 4 and pictures and wanted.shape[1] in range(2, 257) and min(wanted.shape[2:]) > 1:
        return "pixels"
    if len(sizes) == 1 and wanted.ndim in (2, 4) and sizes[0] <= 100_000 and not _is_embedding(wanted):
        return "classes"
    if wanted.ndim == 3 and len(sizes) == 2 and sizes[1] > 1 and _is_distribution(wanted):
        return "tokens"
    return "values"


def _is_distribution(wanted: NDArray[Any]) -> bool:
    """Whether every position holds the probabilities of its classes."""
    return bool(wanted.min() >= -1e-4 and np.allclose(wanted.sum(axis=-1), 1, atol=1e-2))


def _is_embedding(wanted: NDArray[Any]) -> bool:
    """A vector of length one, with both signs: a direction, not scores."""
    lengths = np.linalg.norm(wanted.reshape(len(wanted), -1), axis=1)
    return bool(np.allclose(lengths, 1, atol=1e-3) and wanted.min() < 0)


def _answer_axis(kind: Kind) -> int | None:
    if kind in ("classes", "pixels"):
        return 1
    return -1 if kind == "tokens" else None


def _cosine(a: Flat, b: Flat) -> float:
    a, b = (np.nan_to_num(each, posinf=0.0, neginf=0.0) for each in (a, b))
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return 1.0 if size == 0 else float(a @ b) / size

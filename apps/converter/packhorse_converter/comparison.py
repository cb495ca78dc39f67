"""How far two models agree on the same inputs, and how long one takes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from packhorse_converter.toolchain import Feed, Outputs, Runner

Flat = NDArray[np.float64]

EXACT = 200.0
"""Reported instead of infinity, if both agree exactly."""


class Agreement(msgspec.Struct, frozen=True):
    """How well a model agrees with the one it was made from."""

    samples: int
    top1: float
    """Share of samples for which both models have the same largest output."""
    cosine: float
    sqnr_db: float
    """Signal to quantisation noise ratio."""
    max_error: float
    latency_ms: float
    """Median of one run on this machine."""


def compare(run: Runner, expected: Runner, feeds: Sequence[Feed]) -> Agreement:
    """Keeps the outputs of one sample at a time."""
    times: list[float] = []
    same: list[bool] = []
    cosines: list[float] = []
    noise = signal = max_error = 0.0
    run(feeds[0])  # warm up: the first run is slower
    for feed in feeds:
        began = time.perf_counter()
        outputs = run(feed)
        times.append((time.perf_counter() - began) * 1000)
        got, wanted = _flat(outputs), _flat(expected(feed))
        difference = wanted - got
        noise += float(np.sum(difference**2))
        signal += float(np.sum(wanted**2))
        same.append(bool(np.argmax(wanted) == np.argmax(got)))
        cosines.append(_cosine(wanted, got))
        max_error = max(max_error, float(np.max(np.abs(difference))))
    return Agreement(
        samples=len(feeds),
        top1=float(np.mean(same)),
        cosine=float(np.mean(cosines)),
        sqnr_db=EXACT if noise == 0 else round(10 * math.log10(max(signal, 1e-30) / noise), 2),
        max_error=max_error,
        latency_ms=round(median(times), 3),
    )


def _flat(outputs: Outputs) -> Flat:
    return np.concatenate([np.asarray(each, np.float64).ravel() for each in outputs])


def _cosine(a: Flat, b: Flat) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return 1.0 if size == 0 else float(a @ b) / size

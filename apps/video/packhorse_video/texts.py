"""Words that can be read: RapidOCR, with the models that come with it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from packhorse_video import findings
from packhorse_video.findings import Finding

MODEL = "PP-OCRv6 small (RapidOCR 3)"
AT_LEAST = 0.9
"""Below it, what is read are mostly things that look like a letter."""
LONGEST = 672
"""Pixels of the longer side in which text is looked for. It is read at full size."""
SAME = 16
"""Levels of grey. A picture that differs less from the last one anywhere has the same words, and is not read again."""
CELL = 4
"""Pixels of the squares that are compared: smaller than a digit of a clock that can be read."""


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR

    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.use_cls": False,
            "Det.limit_type": "max",  # by itself it makes small pictures large, which takes long and reads no better
            "Det.limit_side_len": LONGEST,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,  # its neighbours have the other cores
        }
    )


def find(picture: Image.Image, at: float) -> list[Finding]:
    read = _engine()(np.asarray(picture)[:, :, ::-1])
    if read.txts is None:
        return []
    size = np.array(picture.size, np.float32)
    corners = [np.asarray(each, np.float32) / size for each in read.boxes]
    return [
        Finding(at, text, score=round(float(score), 3), box=findings.box(*box.min(0), *box.max(0)))
        for text, score, box in zip(read.txts, read.scores, corners, strict=True)
        if score >= AT_LEAST
    ]


class Reader:
    """Reads picture after picture, and only those that changed."""

    def __init__(self) -> None:
        self._last: Any = None
        self._found: list[Finding] = []
        self.read = 0
        """So many were not like the one before."""

    def find(self, picture: Image.Image, at: float) -> list[Finding]:
        cells = np.asarray(picture.convert("L").reduce(CELL), np.int16)
        if self._last is None or cells.shape != self._last.shape or np.abs(cells - self._last).max() >= SAME:
            self._found, self._last = find(picture, at), cells
            self.read += 1
        return [_repeat(each, at) for each in self._found]


def _repeat(finding: Finding, at: float) -> Finding:
    return Finding(at, finding.label, score=finding.score, box=finding.box)

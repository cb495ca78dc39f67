"""The processors: what each needs to be there, and what is there on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from packhorse_video import weights


class Needs(NamedTuple):
    packages: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


SPEECH = ("voice.onnx", "speech/encoder.ort", "speech/decoder.ort", "speech/tokens.bin")
PROCESSORS = {
    "cut": Needs(),
    "ocr": Needs(("rapidocr",)),
    "face": Needs(("ai_edge_litert",), ("face.tflite",)),
    "pose": Needs(("ai_edge_litert", "onnxruntime"), ("person.tflite", "pose.tflite", "objects.onnx")),
    "yolo": Needs(("onnxruntime",), ("objects.onnx",)),
    "asr": Needs(("onnxruntime",), SPEECH),
    "asrx": Needs(("onnxruntime",), (*SPEECH, "speaker.ort")),
}


def available() -> list[str]:
    """Those that can run here, in the order above."""
    return [name for name, needs in PROCESSORS.items() if _is_there(needs)]


def _is_there(needs: Needs) -> bool:
    return all(find_spec(each) is not None for each in needs.packages) and weights.are_there(*needs.files)

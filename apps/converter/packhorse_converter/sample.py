"""A small real model and pictures for it, made here: it tells four shapes apart, and was trained to.

``python -m packhorse_converter.sample FOLDER`` writes them down.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle", "cross")
SIZE = 32
FEATURES = 48
STRIDE = 2
RIDGE = 30.0
"""The larger, the smaller the weights: less exact, and less spoiled by rounding."""

Picture = NDArray[np.float32]


def drawn(shape: str, chance: np.random.Generator) -> Image.Image:
    """The shape somewhere, in some size and colour, on some other colour."""
    back, front = _colours(chance)
    image = Image.new("RGB", (SIZE, SIZE), back)
    draw = ImageDraw.Draw(image)
    half = int(chance.integers(7, 11))
    x, y = (int(chance.integers(half + 1, SIZE - half - 1)) for _ in range(2))
    box = (x - half, y - half, x + half, y + half)
    match shape:
        case "circle":
            draw.ellipse(box, fill=front)
        case "square":
            draw.rectangle(box, fill=front)
        case "triangle":
            draw.polygon([(x, y - half), (x - half, y + half), (x + half, y + half)], fill=front)
        case _:
            draw.rectangle((x - half, y - half // 3, x + half, y + half // 3), fill=front)
            draw.rectangle((x - half // 3, y - half, x + half // 3, y + half), fill=front)
    return image


def pictures(count: int, seed: int) -> list[tuple[Image.Image, int]]:
    chance = np.random.default_rng(seed)
    return [(drawn(SHAPES[i % 4], chance), i % 4) for i in range(count)]


def model() -> onnx.ModelProto:
    """Edges and corners by random filters, and what they mean by least squares: training that takes a second."""
    chance = np.random.default_rng(7)
    filters = chance.standard_normal((FEATURES, 3, 5, 5)).astype(np.float32)
    filters -= filters.mean(axis=(2, 3), keepdims=True)
    seen = pictures(1200, seed=1)
    features = np.stack([_features(_values(image), filters) for image, _ in seen])
    spread = features.reshape(len(seen), FEATURES, -1).std(axis=(0, 2))  # taken into the filters: int8 has few steps
    filters /= spread[:, None, None, None]
    features /= np.repeat(spread, features.shape[1] // FEATURES)
    centre = features.mean(0)
    wanted = np.eye(4, dtype=np.float32)[[label for _, label in seen]] - 0.25
    moved = features - centre
    weights = np.linalg.solve(moved.T @ moved + RIDGE * np.eye(moved.shape[1]), moved.T @ wanted).astype(np.float32)
    bias = (0.25 - centre @ weights).astype(np.float32)
    return _graph(filters, weights, bias)


def _graph(filters: Picture, weights: Picture, bias: Picture) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Identity", ["image"], ["same"]),  # for the optimiser to find
        helper.make_node("Conv", ["same", "filters"], ["edges"], kernel_shape=[5, 5], strides=[STRIDE, STRIDE]),
        helper.make_node("Relu", ["edges"], ["found"]),
        helper.make_node("AveragePool", ["found"], ["pooled"], kernel_shape=[7, 7], strides=[7, 7]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "bias"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 4])],
        [
            numpy_helper.from_array(filters, "filters"),
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(bias, "bias"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="packhorse")
    made.ir_version = 9
    return made


def _features(picture: Picture, filters: Picture) -> Picture:
    windows = np.lib.stride_tricks.sliding_window_view(picture, (3, 5, 5))[0, ::STRIDE, ::STRIDE]
    edges = np.maximum(np.einsum("yxcij,fcij->fyx", windows, filters), 0)
    pooled: Picture = edges.reshape(FEATURES, 2, 7, 2, 7).mean(axis=(2, 4)).astype(np.float32)
    return pooled.ravel()


def _values(image: Image.Image) -> Picture:
    return np.asarray(image, np.float32).transpose(2, 0, 1) / np.float32(255)


def _colours(chance: np.random.Generator) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    dark = chance.integers(0, 90, 3)
    light = chance.integers(165, 256, 3)
    pair = (tuple(map(int, dark)), tuple(map(int, light)))
    return (pair[0], pair[1]) if chance.random() < 0.5 else (pair[1], pair[0])  # type: ignore[return-value]


def write(folder: Path, images: int = 24) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model(), folder / "shapes.onnx")
    for i, (image, label) in enumerate(pictures(images, seed=2)):
        image.save(folder / f"{i:02}-{SHAPES[label]}.png")


if __name__ == "__main__":
    write(Path(sys.argv[1]))

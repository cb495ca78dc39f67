"""Loads and runs a TensorFlow Lite model with LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from packhorse_video import weights

Array = NDArray[np.float32]


class Model:
    def __init__(self, name: str) -> None:
        self._interpreter: Any = Interpreter(str(weights.path(name)), num_threads=1)
        self._interpreter.allocate_tensors()
        (given,) = self._interpreter.get_input_details()
        self._input = given["index"]
        self.size = int(given["shape"][1])
        """Width and height of its input picture."""
        self._outputs = [each["index"] for each in self._interpreter.get_output_details()]

    def __call__(self, picture: Array) -> list[Array]:
        self._interpreter.set_tensor(self._input, picture[np.newaxis].astype(np.float32))
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(each)[0] for each in self._outputs]

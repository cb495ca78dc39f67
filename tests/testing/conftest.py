from __future__ import annotations

import pytest

from packhorse.testing import Bench
from tests.testing.pipelines import Convert


@pytest.fixture
def params(packhorse: Bench) -> Convert:
    return Convert(model=packhorse.file("m.onnx", b"model"))

"""What the stores' own tests share."""

from __future__ import annotations

import pytest

from tests.contract.stores import Clock

EPOCH = 1_800_000_000.0


@pytest.fixture
def clock() -> Clock:
    return Clock(EPOCH)

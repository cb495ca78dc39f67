from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from packhorse.factory import open_store
from packhorse.store.base import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await open_store(f"sqlite://{tmp_path / 'packhorse.db'}")
    yield store
    await store.close()

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.journey.site import Site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        await site.close()

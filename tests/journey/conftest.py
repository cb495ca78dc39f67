from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.journey.places import PLACES
from tests.journey.site import Site


@pytest.fixture(params=PLACES)
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    site = Site(tmp_path, **PLACES[request.param](tmp_path))
    try:
        yield site
    finally:
        await site.close()

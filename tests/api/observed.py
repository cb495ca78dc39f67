"""Places on each sort of store, for what is the same on all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.conftest import publish
from tests.api.processes import Place
from tests.contract.stores import STORES

SORTS = ["sqlite", "postgresql", "redis"]


def place_on(sort: str, folder: Path, **settings: Any) -> Place:
    """With the pipelines published, as if a worker had been there."""
    place = Place(folder, store=STORES[sort].fresh(folder), **settings)
    publish(place)
    return place

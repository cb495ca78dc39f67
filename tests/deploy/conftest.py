from __future__ import annotations

from tests.cli.conftest import house

__all__ = ["house"]

"""packhorse carries long jobs: from "a user pressed the button" to "here is your file"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packhorse.app import App
from packhorse.define import Choices, Context, File, JobHandle, Later, Params, Permanent, each, gather, needs
from packhorse.errors import PackhorseError
from packhorse.version import VERSION

if TYPE_CHECKING:
    from packhorse.client import AsyncClient, Client

__version__ = VERSION

__all__ = [
    "App",
    "AsyncClient",
    "Choices",
    "Client",
    "Context",
    "File",
    "JobHandle",
    "Later",
    "PackhorseError",
    "Params",
    "Permanent",
    "each",
    "gather",
    "needs",
]


def __getattr__(name: str) -> Any:
    """The clients are loaded when they are asked for: every stage's process imports this, and few of them ask."""
    if name in ("AsyncClient", "Client"):
        from packhorse import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

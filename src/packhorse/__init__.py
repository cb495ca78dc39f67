"""packhorse carries long jobs: from "a user pressed the button" to "here is your file"."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from packhorse.app import App
from packhorse.define import (
    Accepts,
    AlertRate,
    Choices,
    Condition,
    Context,
    Failed,
    File,
    JobHandle,
    Later,
    Limit,
    Params,
    Permanent,
    Revive,
    Secret,
    Skip,
    all_,
    any_,
    contains,
    each,
    equals,
    gather,
    is_set,
    needs,
    not_,
)
from packhorse.errors import OutboundFailed, PackhorseError
from packhorse.version import VERSION

if TYPE_CHECKING:
    from packhorse.client import AsyncClient, Client
    from packhorse.outbound.fetcher import Fetched, Fetcher
    from packhorse.web.app import asgi

__version__ = VERSION

__all__ = [
    "Accepts",
    "AlertRate",
    "App",
    "AsyncClient",
    "Choices",
    "Client",
    "Condition",
    "Context",
    "Failed",
    "Fetched",
    "Fetcher",
    "File",
    "JobHandle",
    "Later",
    "Limit",
    "OutboundFailed",
    "PackhorseError",
    "Params",
    "Permanent",
    "Revive",
    "Secret",
    "Skip",
    "all_",
    "any_",
    "asgi",
    "contains",
    "each",
    "equals",
    "gather",
    "is_set",
    "needs",
    "not_",
]


LATER = {
    "AsyncClient": "packhorse.client",
    "Client": "packhorse.client",
    "Fetched": "packhorse.outbound.fetcher",
    "Fetcher": "packhorse.outbound.fetcher",
    "asgi": "packhorse.web.app",
}
"""Loaded on first access: every stage's process imports this package, and few of them ask."""


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(import_module(LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

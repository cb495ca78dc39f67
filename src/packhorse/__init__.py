"""packhorse carries long jobs: from "a user pressed the button" to "here is your file"."""

from packhorse.app import App
from packhorse.define import Accepts, Choices, Context, File, JobHandle, Later, Params, Permanent, each, gather, needs
from packhorse.errors import PackhorseError
from packhorse.version import VERSION

__version__ = VERSION

__all__ = [
    "Accepts",
    "App",
    "Choices",
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

"""A server as a process of its own, that dies at a crash point if it is told to."""

from __future__ import annotations

import os

from packhorse.settings import load
from packhorse.web.app import serve
from tests.journey.worker_process import hang

if __name__ == "__main__":
    point, _, number = os.environ["JOURNEY_CRASH"].partition(":")
    hang(point, int(number))
    serve(load().settings)

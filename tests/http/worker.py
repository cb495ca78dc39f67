"""A worker as a process of its own, with the settings of the environment."""

from __future__ import annotations

import asyncio

from packhorse import log
from packhorse.cli.commands.processes import work
from packhorse.settings import load

if __name__ == "__main__":
    settings = load().settings
    log.write(settings.log_format, settings.log_level)
    asyncio.run(work(settings))

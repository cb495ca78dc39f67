"""A real browser for tests: the system's chromium, or playwright's own. `python -m` installs one if there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

PACKAGE = "chromium-headless-shell"
"""Chromium without windows: a page in it takes a fifth of the processor time."""
NAMES = (PACKAGE, "chromium", "chromium-browser", "google-chrome")

ARGUMENTS = ["--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb", "--hide-scrollbars"]


def found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    """Chromium's own sandbox needs a user who is not root."""
    arguments = ARGUMENTS + (["--no-sandbox"] if os.geteuid() == 0 else [])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def install() -> None:
    """From Debian's packages where they are to be had and may be installed; elsewhere by playwright's own download."""
    if found() is not None:
        return
    apt = shutil.which("apt-get")
    if apt is not None and os.geteuid() == 0:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run([apt, "update", "-qq"], env=quiet, check=False)
        subprocess.run(
            [apt, "install", "-y", "-qq", "--no-install-recommends", PACKAGE],
            env=quiet,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    else:
        subprocess.run([sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"], check=True)


if __name__ == "__main__":
    install()

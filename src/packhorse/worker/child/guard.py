"""Outlives a supervisor that was killed, for as long as it takes to end its process groups and remove its scratch.

Run as a script with nothing but the standard library: it must start in no time and need no memory. It reads lines
from its standard input, `+PGID`, `-PGID` and `/FOLDER`; the end of input means that the supervisor is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups: set[int] = set()
    folders: set[str] = set()
    for line in sys.stdin:
        word = line.rstrip("\n")
        if word.startswith("+"):
            groups.add(int(word[1:]))
        elif word.startswith("-"):
            groups.discard(int(word[1:]))
        elif word.startswith("/"):
            folders.add(word)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Ends what a killed process leaves behind: two requests to the Linux kernel, and a script that works everywhere.

The script outlives its supervisor for as long as it takes to end its process groups and remove its scratch. It uses
only the standard library: it must start in no time and need no memory. It reads lines from its standard input, `+PGID`,
`-PGID` and `/FOLDER`; the end of input means that the supervisor is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_CAPBSET_DROP = 24
CAPABILITIES = (19, 21, 38)
"""CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON: each lets root read the memory of any process."""
CAPABILITY_VERSION = 0x20080522


def adopt_orphans() -> None:
    """Make this process the parent of whatever its descendants leave behind, so that it can end and reap them."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when the thread that started it is gone, as it may be already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def give_up_tracing() -> None:
    """Take from this process and those it starts the rights of root to read the memory of any process.

    Without them root, too, cannot read what a supervisor hides.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for number in CAPABILITIES:
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same of numbers from 32
    if libc.capget(header, sets) == 0:
        for number in CAPABILITIES:
            for i in range(3):
                sets[i + 3 * (number // 32)] &= ~(1 << number % 32)
        libc.capset(header, sets)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes  # the script does not need it

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


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

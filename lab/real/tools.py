"""What the lab needs besides Python: faketime, pgbouncer and a C compiler, from Debian packages if missing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("disk.c")
SBIN = "/usr/sbin:/sbin"
"""Where Debian puts pgbouncer, and where an ordinary user does not look."""


def prepare() -> None:
    """Install what is missing, once for all the processes of a run."""
    missing = [name for name, is_there in _packages().items() if not is_there]
    if missing:
        _install(missing)
        missing = [name for name, is_there in _packages().items() if not is_there]
    if missing:
        raise SystemExit(f"The lab needs {' and '.join(missing)}. Install: apt-get install {' '.join(missing)}")
    disk()


def _packages() -> dict[str, bool]:
    return {
        "faketime": _faketime() is not None,
        "pgbouncer": _pgbouncer() is not None,
        "gcc libc6-dev": shutil.which("cc") is not None,
    }


def _install(names: Sequence[str]) -> None:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    words = [word for name in names for word in name.split()]
    subprocess.run([apt, "update", "-qq"], env=quiet, check=False)
    command = [apt, "install", "-y", "-qq", "--no-install-recommends", *words]
    subprocess.run(command, env=quiet, check=True, stdout=subprocess.DEVNULL)


def _faketime() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


def _pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:{SBIN}")


@cache
def faketime() -> Path:
    found = _faketime()
    assert found is not None
    return found


@cache
def pgbouncer() -> str:
    found = _pgbouncer()
    assert found is not None
    return found


@cache
def disk() -> Path:
    """The compiled `disk.c`, where any user can read it: PostgreSQL runs as another one than root."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"packhorse-lab-{os.getuid()}"
    folder.mkdir(mode=0o755, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SystemExit(f"{folder} belongs to another user. Remove it.")
    found = folder / f"disk-{digest}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            half = found.with_suffix(".half")
            command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(half), str(SOURCE)]
            subprocess.run([*command, "-ldl"], check=True)
            half.chmod(0o755)
            half.rename(found)
    return found

"""A page of the docs, run as a person would who pastes block after block into a terminal, from top to bottom.

Python, JavaScript and TOML blocks that begin with a name become files; other Python blocks are run; shell blocks are
run by one bash, so that what one exports the next one has. What goes on for ever in a terminal of its own (`packhorse
dev`, `serve` and `worker`, `uvicorn`) goes on behind the page, and the page goes on when it answers. Ports are others
than those written down, because tests run side by side.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.docs.blocks import ROOT, SHOWN, Block, blocks
from tests.servers.ports import free_port

LIMIT = 240.0
PORTS = ("3002", "3003", "8000")
"""As the docs say them: of `serve`, of `dev`, of an application of the reader's own."""

PRELUDE = r"""
set -euo pipefail
JQ='import json, re, sys
found = json.load(sys.stdin)
for part in re.findall(r"[^.\[\]]+", sys.argv[2]):
    found = found[int(part) if part.isdigit() else part]
print(found)'
export PACKHORSE_URL="http://127.0.0.1:$PORT_3003"
answers() {  # URL: whether something good comes of it within a while
  for _ in $(seq 600); do curl --silent --fail "$1" --output /dev/null && return; sleep 0.1; done
  echo "nobody answers at $1" >&2; cat "$BEHIND" >&2; exit 70
}
behind() { command "$@" >>"$BEHIND" 2>&1 </dev/null & echo $! >>"$PIDS"; }
packhorse() {
  case "${1:-}" in
    dev) if [ -n "${DEV:-}" ]; then kill -INT "$DEV"; wait "$DEV"; fi  # as a person would, with Ctrl-C
      PACKHORSE_PORT=$PORT_3003 behind packhorse "$@"; DEV=$!; answers "http://127.0.0.1:$PORT_3003/readyz"
      for _ in $(seq 300); do
        curl --silent --fail "http://127.0.0.1:$PORT_3003/api/v1/pipelines" | grep --quiet '"name"' && return; sleep 0.1
      done; exit 71 ;;
    serve) PACKHORSE_PORT=$PORT_3002 behind packhorse "$@"; answers "http://127.0.0.1:$PORT_3002/readyz" ;;
    worker) local port; port=$(command python -c 'from packhorse.host import free_port; print(free_port())')
      PACKHORSE_METRICS_PORT=$port behind packhorse "$@"; answers "http://127.0.0.1:$port/readyz" ;;
    *) command packhorse "$@" ;;
  esac
}
command -v jq >/dev/null ||  # where there is none: as much of it as the docs use
  jq() { python -c "$JQ" "$@"; }
uvicorn() {
  if [ -n "${UVICORN:-}" ]; then kill -INT "$UVICORN"; wait "$UVICORN" || true; fi  # as a person would, with Ctrl-C
  behind uvicorn "$@" --port "$PORT_8000"; UVICORN=$!; answers "http://127.0.0.1:$PORT_8000/openapi.json"
}
"""


class Ran(NamedTuple):
    folder: Path
    code: int
    out: str
    err: str
    behind: str
    """What went on behind the page has said."""


def run(
    *pages: str,
    folder: Path,
    env: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
    sections: Sequence[str] = (),
    at_last: Callable[[str], None] | None = None,
) -> Ran:
    """A page, or one that goes on where another ended, in a folder of its own. It must end well.

    ``instead`` is what stands in the tests for names of servers that only the reader has; ``sections`` are the headings
    of what is run of a page that says how to do a thing in several ways; ``at_last`` is told the address of the
    reader's application while all of it still runs.
    """
    taken = {f"PORT_{port}": str(free_port()) for port in PORTS}
    pids, behind, home = folder / ".pids", folder / ".behind", folder / "home"
    pids.touch()
    behind.touch()
    home.mkdir()
    found = [each for page in pages for each in blocks(ROOT / page) if each.reason is None]
    run_here = [each for each in found if not sections or each.section in sections]
    script = "\n".join([PRELUDE, *(written(each, taken) for each in run_here)])
    for name, real in (instead or {}).items():
        assert name in script, f"{name} is not on the page"
        script = script.replace(name, real)
    (home / "script.sh").write_text(script)
    whole = dict(env or newcomer()) | taken | {"BEHIND": str(behind), "PIDS": str(pids), "HOME": str(home)}
    process = subprocess.Popen(
        ["bash", str(home / "script.sh")],
        cwd=folder,
        env=whole,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
        if at_last is not None and process.returncode == 0:
            at_last(f"http://127.0.0.1:{taken['PORT_8000']}")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{pages} do not end:\n{out[-2000:]}\n{err[-2000:]}\n{behind.read_text()}") from None
    finally:
        end_all(pids, process.pid)
    said = behind.read_text()
    assert process.returncode == 0, f"{pages} ended with {process.returncode}:\n{out}\n{err[-4000:]}\n{said[-4000:]}"
    return Ran(folder, process.returncode, out, err, said)


def written(block: Block, taken: Mapping[str, str]) -> str:
    """The block as bash has to be told it."""
    code = block.code
    for port in PORTS:
        code = re.sub(rf"(?<=:){port}\b", taken[f"PORT_{port}"], code)
    where = f"echo {shlex.quote(f'== {block.page}:{block.line}')} >&2\n"
    if block.file is not None:
        return f"{where}mkdir -p $(dirname {block.file}); cat >{block.file} <<'EOF_OF_BLOCK'\n{code}EOF_OF_BLOCK"
    if block.language == "python":
        return f"{where}python - <<'EOF_OF_BLOCK'\n{code}EOF_OF_BLOCK"
    assert block.language == "sh" or block.language in SHOWN, f"{block.page}:{block.line}: {block.language}?"
    return where + (code if block.language == "sh" else "")


def newcomer() -> dict[str, str]:
    """The environment of the tests without anything of packhorse's in it, and with its commands."""
    own = ("PACKHORSE_", "PYTEST_", "PYTHON", "AWS_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return clean | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}


def end_all(pids: Path, session: int) -> None:
    """By pid, and only what the page has started: what ended long ago may have left its number to another process."""
    running = [pid for pid in map(int, pids.read_text().split()) if _session_of(pid) == session]
    for pid in running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    for pid in running:
        gone(pid)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def gone(pid: int) -> None:
    try:
        psutil.Process(pid).wait(60)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        os.kill(pid, signal.SIGKILL)

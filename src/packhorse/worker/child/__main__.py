"""`python -m packhorse.worker.child FD MODE APP` serves stages over a socket; `describe APP` prints its definitions."""

from __future__ import annotations

import os
import socket
import sys

from packhorse.core import json
from packhorse.define.registry import load
from packhorse.errors import PackhorseError
from packhorse.worker.child.guard import die_with_parent, give_up_tracing
from packhorse.worker.child.messages import Broken, to_frame, to_text
from packhorse.worker.child.serve import Single


def main() -> None:
    parent = os.environ.pop("PACKHORSE_CHILD_OF", None)
    if parent is not None:
        die_with_parent(int(parent))
    give_up_tracing()
    if sys.argv[1] == "describe":
        _describe(sys.argv[2])
        return
    link, mode, app = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3]
    os.set_inheritable(link.fileno(), False)  # what a stage starts must not speak for it
    os.register_at_fork(after_in_child=lambda: _close(link))  # nor what it forks
    try:
        code = load(app)
    except PackhorseError as error:
        link.sendall(to_frame(Broken(error.message)))
        return
    if mode == "shared":
        import asyncio  # takes a fifth of the start of a process, and one at a time needs none

        from packhorse.worker.child.serve_async import Shared

        asyncio.run(Shared(code, link).serve())
    else:
        Single(code, link).serve()


def _close(link: socket.socket) -> None:
    """Also called in a fork of a fork, where it is closed already."""
    if link.fileno() >= 0:
        os.close(link.detach())


def _describe(app: str) -> None:
    """On the standard output alone: what the app and its processes print meanwhile goes to the standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        code = load(app)
        found = {"definitions": code.definitions(), "schedules": code.schedules, "files": _loaded_files()}
        answer = json.encode(found | {"postgres": code.postgres})
    except PackhorseError as error:
        answer = json.encode({"error": error.message})
    with open(out, "wb") as stream:
        stream.write(answer)


def _loaded_files() -> list[str]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [to_text(file) for file in files if isinstance(file, str)]


if __name__ == "__main__":
    main()

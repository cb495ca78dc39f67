"""Many threads that decode a type for the first time at once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
import msgspec
from packhorse.core import json

sys.setswitchinterval(1e-6)
for _ in range(50):
    inner = msgspec.defstruct("Inner", [(f"f{i}", "int | None", None) for i in range(20)])
    outer = msgspec.defstruct("Outer", [(f"g{i}", inner | None, None) for i in range(20)])
    gate = threading.Barrier(4)

    def read():
        gate.wait()
        assert json.decode(b'{"g1": {"f1": 1}}', outer).g1.f1 == 1

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_a_new_type_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stderr) == (0, "")

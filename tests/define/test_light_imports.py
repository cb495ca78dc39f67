"""Every child process imports this package before anything else, so it brings nothing heavy along."""

from __future__ import annotations

import subprocess
import sys

ALLOWED = {"core", "define", "errors"}
HEAVY = {"apsw", "asyncio", "litestar", "httpx2", "obstore", "pydantic", "psutil", "rich"}

SCRIPT = """
import sys, types
house = types.ModuleType("packhorse")  # the package itself may bring more along; this is about what define needs
house.__path__ = [sys.argv[1]]
sys.modules["packhorse"] = house
import packhorse.define
print("\\n".join(sys.modules))
"""


def test_the_package_imports_only_core_and_errors() -> None:
    import packhorse

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, packhorse.__path__[0]], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())

    assert {name.split(".")[1] for name in loaded if name.startswith("packhorse.")} == ALLOWED
    assert not {name.split(".")[0] for name in loaded} & HEAVY

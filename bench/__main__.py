"""`python -m bench [store engine crash scale limits failures estimates pages http peers mission] [--rounds N]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec
from msgspec.structs import replace

from bench.book import Book
from bench.crash import CrashSection
from bench.engine import EngineSection
from bench.estimates import EstimatesSection
from bench.failures import FailuresSection
from bench.http import HttpSection
from bench.limits import LimitsSection
from bench.loops import LOOP, LOOPS
from bench.mission.section import MissionSection
from bench.pages import PagesSection
from bench.peers.contenders import CONTENDERS
from bench.peers.section import PeersSection
from bench.scale import ScaleSection
from bench.servers import STORES
from bench.sizes import FULL, QUICK, Sizes
from bench.store import StoreSection
from bench.table import printed


class Section(Protocol):
    def __init__(self, folder: Path, sizes: Sizes) -> None: ...

    async def round(self, book: Book) -> None:
        """Measure everything once."""

    async def close(self) -> None: ...


SECTIONS: dict[str, type[Section]] = {
    "store": StoreSection,
    "engine": EngineSection,
    "crash": CrashSection,
    "scale": ScaleSection,
    "limits": LimitsSection,
    "failures": FailuresSection,
    "estimates": EstimatesSection,
    "pages": PagesSection,
    "http": HttpSection,
    "peers": PeersSection,
    "mission": MissionSection,
}


def main() -> None:
    asked = _arguments()
    folder = _folder(asked.folder)
    before = os.getloadavg()
    print(_machine(before, folder, asked.loop), flush=True)
    try:
        os.environ[LOOP] = asked.loop
        with asyncio.Runner(loop_factory=LOOPS[asked.loop]) as runner:
            sizes = replace(QUICK if asked.quick else FULL, peers_only=tuple(asked.only), store=asked.store)
            book = runner.run(measure(asked.sections or list(SECTIONS), folder, asked.rounds, sizes))
    finally:
        if asked.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(printed(book.rows, book.remarks))
    print(f"\nload average {_load(before)} before, {_load(os.getloadavg())} after")
    if asked.json is not None:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(_told(book, before, asked))))


async def measure(names: list[str], folder: Path, rounds: int, sizes: Sizes) -> Book:
    """Every section once, then every section again: what slows the machine down for a while slows all of them."""
    book = Book()
    sections = {name: SECTIONS[name](_made(folder / name), sizes) for name in names}
    try:
        for number in range(1, rounds + 1):
            for name, section in sections.items():
                began = time.monotonic()
                await section.round(book)
                load, taken = os.getloadavg()[0], time.monotonic() - began
                print(
                    f"round {number} of {rounds}: {name}, {taken:.0f} s, load {load:.2f}", file=sys.stderr, flush=True
                )
    finally:
        for section in sections.values():
            await section.close()
    return book


def _arguments() -> Any:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures packhorse on this machine.")
    names = ", ".join(SECTIONS)
    parser.add_argument("sections", nargs="*", type=_section, metavar="SECTION", help=f"of {names}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="of everything, in turn; medians are printed (default 3)")
    parser.add_argument("--quick", action="store_true", help="small numbers: shows that it works, not how fast")
    parser.add_argument("--only", action="append", default=[], type=_contender, metavar="NAME", help="of the peers")
    parser.add_argument("--store", choices=STORES, default="sqlite", help="of the sections store and engine")
    parser.add_argument("--loop", choices=LOOPS, default="uvloop", help="of benchmark and workers (default uvloop)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value of every round there too")
    parser.add_argument("--folder", type=Path, help="keep stores, ledgers and logs there (default: removed afterwards)")
    return parser.parse_args()


def _section(name: str) -> str:
    if name not in SECTIONS:
        raise argparse.ArgumentTypeError(f"there is no section {name!r}; there is {', '.join(SECTIONS)}")
    return name


def _contender(name: str) -> str:
    names = dict.fromkeys(each.name for each in CONTENDERS)
    if name not in names:
        raise argparse.ArgumentTypeError(f"there is no contender {name!r}; there is {', '.join(names)}")
    return name


def _folder(asked: Path | None) -> Path:
    """Below the current folder unless told otherwise: a temporary folder may be memory, where a sync costs nothing."""
    if asked is not None:
        return _made(asked.absolute())
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=_made(Path.cwd() / ".packhorse")))
    folder.chmod(0o755)  # PostgreSQL refuses to be run by root, and whoever it is run by instead has to get in
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _machine(load: tuple[float, float, float], folder: Path, loop: str) -> str:
    system = f"{platform.system()} {platform.release()}"
    versions = f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, {system}"
    return f"{os.cpu_count()} cores, {versions}, {loop}, in {folder}\nload average {_load(load)}\n"


def _load(load: tuple[float, float, float]) -> str:
    return " ".join(f"{each:.2f}" for each in load)


def _told(book: Book, before: tuple[float, float, float], asked: Any) -> dict[str, Any]:
    rows = [{**msgspec.to_builtins(row), "verdict": row.verdict} for row in book.rows]
    return {
        "at": time.time(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "load_before": before,
        "load_after": os.getloadavg(),
        "is_quick": asked.quick,
        "loop": asked.loop,
        "store": asked.store,
        "rows": rows,
        "remarks": book.remarks,
    }


if __name__ == "__main__":
    main()

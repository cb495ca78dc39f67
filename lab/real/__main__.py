"""`python -m lab.real`: strike deployments of real processes with faults, and print the table.

python -m lab.real --seconds 600                            every fault on every store, again and again
python -m lab.real --faults disk.stall --stores postgresql  only these
python -m lab.real --round '{"fault": …}'                   one round again
python -m lab.real --table FILE                             the table of what --save FILE has kept
python -m lab.real --bug late-claim-forgotten               with a bug of tests/seeded put back
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from lab.real import tools
from lab.real.faults import FAULTS
from lab.real.places import PLACES
from lab.real.report import Table
from lab.real.rounds import LONGEST, Outcome, Round, run

STORES = ("sqlite", "postgresql", "redis")
FIRST = ("power.cut", "store.emptied", "disk.stall", "clock.glitch", "clock.ahead")
"""Faults that have found bugs: each store begins with them."""


def main() -> int:
    args = _arguments()
    if args.round:
        print(msgspec.json.encode(run(msgspec.json.decode(args.round, type=Round))).decode())
        return 0
    if args.table:
        print(_read_table(Path(args.table)))
        return 0
    tools.prepare()
    if args.bug:
        return _with_bug(args)
    return _strike(args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.real", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to begin rounds, per store (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="decides the order and the length of faults")
    parser.add_argument("--stores", default=",".join(STORES), help=f"separated by commas (default: {','.join(STORES)})")
    parser.add_argument("--faults", default="", help=f"only these, separated by commas: {', '.join(FAULTS)}")
    parser.add_argument("--lanes", type=int, default=2, help="rounds side by side, per store (default: 2)")
    parser.add_argument("--round", default="", help="run one round, as it was printed, and print its outcome")
    parser.add_argument("--bug", default="", help="a patch of tests/seeded/bugs to put back, in a copy of the tree")
    parser.add_argument("--findings", type=int, default=1, help="stop after so many rounds that failed (default: 1)")
    parser.add_argument(
        "--table", default="", help="print the table of what was saved in this file, and strike nothing"
    )
    parser.add_argument("--save", default="", help="append the outcomes to this file, as lines of JSON")
    return parser.parse_args()


def _strike(args: argparse.Namespace) -> int:
    seed = args.seed if args.seed is not None else int(time.time())
    stores = [store.strip() for store in args.stores.split(",")]
    names = [name.strip() for name in args.faults.split(",") if name.strip()]
    if unknown := set(names) - set(FAULTS) | (set(stores) - set(STORES)):
        raise SystemExit(f"Unknown: {', '.join(sorted(unknown))}. Run with --help to see all of them.")
    print(f"Seed {seed}", flush=True)
    until = time.monotonic() + args.seconds
    table, numbers = Table(), itertools.count()

    def lane(store: str, number: int) -> None:
        lane_number = next(numbers)
        for drawn in next_rounds(store, names, seed, number, args.lanes):
            if time.monotonic() > until or table.red >= args.findings:
                return
            outcome = _in_process(drawn, lane_number)
            table.add(store, outcome)
            _print(outcome)
            if args.save:
                with Path(args.save).open("ab") as file:
                    file.write(msgspec.json.encode(outcome) + b"\n")

    with ThreadPoolExecutor(len(stores) * args.lanes) as pool:
        for future in [pool.submit(lane, store, n) for store in stores for n in range(args.lanes)]:
            future.result()
    print(f"\n{table}")
    return 1 if table.red else 0


def next_rounds(store: str, names: list[str], seed: int, lane: int, lanes: int) -> Iterator[Round]:
    """Every fault once, those that have found bugs first, then again. Each lane takes its share of the sequence."""
    chance = random.Random(f"{seed} {store}")
    pairs = [
        (fault.name, place)
        for fault in FAULTS.values()
        for place in fault.places
        if PLACES[place].store == store and (not names or fault.name in names)
    ]
    number = 0
    while pairs:
        order = chance.sample(pairs, len(pairs))
        if number == 0:
            order.sort(key=lambda pair: FIRST.index(pair[0]) if pair[0] in FIRST else len(FIRST))
        for name, place in order:
            drawn = Round(name, place, chance.randrange(1 << 31))
            if number % lanes == lane:
                yield drawn
            number += 1


def _in_process(drawn: Round, lane: int) -> Outcome:
    """In a process of its own, whose servers have ports of their own."""
    command = [sys.executable, "-m", "lab.real", "--round", msgspec.json.encode(drawn).decode()]
    env = {**os.environ, "PYTEST_XDIST_WORKER": f"gw{lane}"}
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, wrong = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the server and the workers that it started
        process.communicate()
        return Outcome(drawn, violations=[f"LAB: the round took longer than {LONGEST:.0f} s"])
    try:
        return msgspec.json.decode(printed.splitlines()[-1], type=Outcome)
    except (IndexError, msgspec.DecodeError):
        return Outcome(drawn, violations=[f"LAB: the round ended with {process.returncode}: {wrong[-2000:]}"])


def _print(outcome: Outcome) -> None:
    name = f"{outcome.round.fault} on {outcome.round.place}"
    if not outcome.violations:
        times = (
            f"struck {outcome.struck:4.1f} s, recovered {outcome.recovered:4.1f} s, settled {outcome.settled:4.1f} s"
        )
        print(f"ok      {name:38} {outcome.jobs:4} jobs, {times}, took {outcome.took:4.0f} s", flush=True)
        return
    print(f"FAILED  {name}", *(f"  {each}" for each in outcome.violations), sep="\n")
    print(f"Again: .venv/bin/python -m lab.real --round '{msgspec.json.encode(outcome.round).decode()}'", flush=True)


def _read_table(path: Path) -> Table:
    table = Table()
    for line in path.read_bytes().splitlines():
        outcome = msgspec.json.decode(line, type=Outcome)
        table.add(PLACES[outcome.round.place].store, outcome)
    return table


def _with_bug(args: argparse.Namespace) -> int:
    from tests.seeded import FOLDER, apply, read
    from tests.seeded.__main__ import copied_tree, interpreter

    bug = read(FOLDER / f"{args.bug}.patch")
    with copied_tree() as tree:
        if problem := apply(bug, tree):
            raise SystemExit(f"{bug.patch.name} does not apply: {problem}")
        rest = [word for word in sys.argv[1:] if word not in ("--bug", args.bug) and not word.startswith("--bug=")]
        print(f"With the bug: {bug.title}", flush=True)
        return subprocess.run([interpreter(tree), "-m", "lab.real", *rest], cwd=tree, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

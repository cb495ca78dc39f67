"""`python -m lab`: simulate for some seconds with fresh seeds, print what failed, how to replay it, and what it takes.

python -m lab --seconds 60                  fresh seeds for a minute, on every core
python -m lab --seed 46 --count 1           this seed again
python -m lab --replay '{"seed": 46, …}'    a scenario that was made smaller
python -m lab --bug NAME                    with a bug put back, to see that it is found
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from lab import clock

HASHES = "PYTHONHASHSEED"


def main() -> int:
    if os.environ.get(HASHES) != "0":  # the order of a set of texts decides what happens next
        os.execve(sys.executable, [sys.executable, "-m", "lab", *sys.argv[1:]], {**os.environ, HASHES: "0"})
    clock.install()
    return _main(_arguments())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to begin new simulations (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: a fresh one)")
    parser.add_argument("--count", type=int, default=None, help="how many seeds, instead of --seconds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="simulations side by side")
    parser.add_argument("--kinds", default="", help="only these faults, separated by commas: see lab/faults.py")
    parser.add_argument(
        "--shrink", type=float, default=30.0, help="seconds to make a failing run smaller (default: 30)"
    )
    parser.add_argument("--findings", type=int, default=3, help="stop after so many failing seeds (default: 3)")
    parser.add_argument("--replay", default="", help="a scenario as it was printed")
    parser.add_argument("--bug", default="", help="a bug to put back: see lab/bugs.py")
    parser.add_argument("--traces", action="store_true", help="print the trace of every simulation")
    return parser.parse_args()


def _main(args: argparse.Namespace) -> int:
    from lab import runner  # after the clock: see there
    from lab.bugs import BUGS
    from lab.simulation import Outcome, Scenario, scenario_of

    if args.bug:
        BUGS[args.bug]()
    first = args.seed if args.seed is not None else int(time.time())
    kinds = [kind.strip() for kind in args.kinds.split(",") if kind.strip()]
    began = clock.real_time()
    failing: list[Outcome] = []

    def scenarios() -> Iterator[Scenario]:
        if args.replay:
            yield runner.decode(args.replay)
            return
        number = 0
        while len(failing) < args.findings and (
            clock.real_time() - began < args.seconds if args.count is None else number < args.count
        ):
            yield scenario_of(first + number, kinds)
            number += 1

    runs = steps = 0
    struck: Counter[str] = Counter()
    for outcome in runner.run_all(scenarios(), args.processes):
        runs, steps = runs + 1, steps + outcome.steps
        struck.update(each.kind for each in outcome.struck)
        if args.traces:
            print(f"seed {outcome.scenario.seed}  trace {outcome.trace}  steps {outcome.steps}", flush=True)
        if outcome.violations:
            failing.append(outcome)
            print(f"\nFAILED after {clock.real_time() - began:.1f} s: seed {outcome.scenario.seed}")
            print(*(f"  {each}" for each in outcome.violations), sep="\n", flush=True)
    took = clock.real_time() - began
    print(f"\n{runs} simulations, {steps:,} steps in {took:.1f} s ({60 * steps / max(took, 0.001):,.0f} per minute)")
    print("faults:", ", ".join(f"{count} {kind}" for kind, count in sorted(struck.items())) or "none")
    for outcome in failing[:1] if args.shrink > 0 else ():
        _print_smaller(outcome, runner.shrink(outcome, args.shrink, args.processes), args.kinds)
    return 1 if failing else 0


def _print_smaller(outcome: object, small: object, kinds: str) -> None:
    from lab.runner import encode
    from lab.simulation import Outcome

    assert isinstance(outcome, Outcome)
    assert isinstance(small, Outcome)
    print(f"\nSeed {outcome.scenario.seed}: {len(outcome.struck)} faults, {len(outcome.scenario.jobs)} jobs, ", end="")
    print(f"{outcome.steps:,} steps; made smaller:")
    print(f"  {len(small.struck)} faults, {len(small.scenario.jobs)} jobs, {small.scenario.workers} workers, ", end="")
    print(f"{small.steps:,} steps, trace {small.trace}")
    print(*(f"  {each}" for each in (*small.struck, *small.violations)), sep="\n")
    again = f"make lab LAB_SEED={outcome.scenario.seed} LAB_COUNT=1"
    if kinds:
        again = f".venv/bin/python -m lab --seed {outcome.scenario.seed} --count 1 --kinds '{kinds}'"
    print(f"Replay the seed:      {again}")
    print(f"Replay the small one: .venv/bin/python -m lab --replay '{encode(small.scenario)}'")


if __name__ == "__main__":
    sys.exit(main())

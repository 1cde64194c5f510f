"""Replay one seed, or look for a bad one: `.venv/bin/python -P tests/sim/__main__.py --seed 7`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path


def main() -> int:
    """0 when every invariant held."""
    parser = argparse.ArgumentParser(prog="tests/sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--count", type=int, default=1, help="how many; more than one prints failures only"
    )
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from sim.runs import run_seed, tell_story

    if options.count == 1:
        trace, verdict = tell_story(options.seed)
        sys.stdout.write("\n".join([*trace, verdict, ""]))
        return 0 if verdict.endswith("held") else 1
    failures, started = 0, time.process_time()
    for seed in range(options.seed, options.seed + options.count):
        try:
            run_seed(seed)
        except AssertionError as error:
            failures += 1
            sys.stdout.write(f"{error}\n")
    spent = time.process_time() - started
    sys.stdout.write(f"{options.count} seeds, {failures} failed, {spent:.1f} s of processor time\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Has actors write their flight recorders to files that nothing overwrites.

The recorder of an actor holds its last messages and decisions (`system.recorder`); after failures
every actor pins by itself. `milepost trace` and `milepost replay` read what is pinned. Read-only
for the run.
"""

from __future__ import annotations

import argparse
import sys

from milepost.configs.problem import ConfigError, Problem
from milepost.launch.attach import (
    add_actor_words,
    add_run_arguments,
    ask_once,
    attached,
    find_run,
    print_json,
    take_run,
)
from milepost.launch.exits import Exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[RUN] [ACTOR], --reason, --run and --json."""
    add_actor_words(parser)
    parser.add_argument("--reason", default="milepost pin", help="written into the file")
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask the supervisor, which asks the actors."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from milepost.messages.supervisor import Pinned, PinRequested

    actors = take_run(arguments, arguments.words)
    if len(actors) > 1:
        what = f"{len(actors)} names: {', '.join(actors)}"
        raise ConfigError([Problem(what, "ACTOR", "name one of them, or none for all actors")])
    wanted = PinRequested(reason=arguments.reason, actor="".join(actors))
    pinned = ask_once(find_run(arguments.run), wanted, Pinned)
    if arguments.json:
        print_json(pinned)
    else:
        print("\n".join(pinned.files))
        for refused in pinned.refused:
            print(f"not pinned: {refused}", file=sys.stderr)
    return Exit.FAILED if pinned.refused else Exit.DONE

"""Holds actors of a running job, so that somebody can look: nothing is decided until they thaw.

Without names, every actor. A frozen actor takes its messages and lets them wait; its clock stands
still, so no lease or deadline of its own runs out; work that it has ordered goes on, and its result
waits. Nothing is lost. It thaws by itself after --seconds, at most after half of the shorter one of
`system.timeouts.ask_s` and `tell_s`: a question that was asked meanwhile has its answer in time.

Changes the run: it stands still. `milepost thaw` ends it.
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
    """[RUN] [ACTOR ...], --seconds, --run and --json."""
    add_actor_words(parser)
    parser.add_argument(
        "--seconds", type=int, default=None, metavar="N", help="default: as long as may be"
    )
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask the supervisor, which asks the actors."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from milepost.messages.supervisor import FreezeRequested, Frozen

    if arguments.seconds is not None and arguments.seconds < 1:
        what = f"--seconds = {arguments.seconds}"
        raise ConfigError([Problem(what, "command line", "set 1 or more, or leave it out")])
    actors = take_run(arguments, arguments.words)
    wanted = FreezeRequested(actors=tuple(actors), seconds=arguments.seconds or 0)
    frozen = ask_once(find_run(arguments.run), wanted, Frozen)
    if arguments.json:
        print_json(frozen)
    else:
        print(f"frozen for {frozen.seconds:g} s: {', '.join(frozen.actors)}")
        for refused in frozen.refused:
            print(f"not frozen: {refused}", file=sys.stderr)
    return Exit.FAILED if frozen.refused else Exit.DONE

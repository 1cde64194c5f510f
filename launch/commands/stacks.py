"""Prints the Python stacks of all threads and tasks of one actor.

The actor is asked; one whose event loop is stuck is made to write them by a signal. Changes
nothing.
"""

from __future__ import annotations

import argparse
from typing import Final

from milepost.launch.attach import add_run_arguments, ask_once, attached, find_run, print_json
from milepost.launch.exits import Exit

STACKS_S: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """ACTOR, --run and --json."""
    parser.add_argument("actor", metavar="ACTOR", help="process name, such as engine-0")
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask the supervisor, which asks the actor."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from milepost.messages.supervisor import ActorStacksRequested, Stacks

    wanted = ActorStacksRequested(actor=arguments.actor)
    text = ask_once(find_run(arguments.run), wanted, Stacks, STACKS_S).text
    if arguments.json:
        print_json({"actor": arguments.actor, "stacks": text})
    else:
        print(text)
    return Exit.DONE

"""Lets actors that `milepost freeze` holds go on; without names, all of them.

Changes the run: it goes on.
"""

from __future__ import annotations

import argparse

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
    """[RUN] [ACTOR ...], --run and --json."""
    add_actor_words(parser)
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask the supervisor, which asks the actors."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from milepost.messages.supervisor import Thawed, ThawRequested

    actors = take_run(arguments, arguments.words)
    thawed = ask_once(find_run(arguments.run), ThawRequested(actors=tuple(actors)), Thawed)
    if arguments.json:
        print_json(thawed)
    else:
        print(f"thawed: {', '.join(thawed.actors) or 'nobody was frozen'}")
    return Exit.DONE

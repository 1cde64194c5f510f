"""The arguments by which every command that takes a topology gets it."""

from __future__ import annotations

import argparse

from milepost.configs.load import load_topology
from milepost.configs.topology import Topology


def add_topology_arguments(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """TOPOLOGY, --set and --seed; with `optional`, TOPOLOGY is None when it is left out."""
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY",
        nargs="?" if optional else None,
        help="a recipe's name, or the path of a TOML file (it has a slash or ends in .toml)",
    )
    parser.add_argument(
        "--set",
        metavar="A.B=C",
        dest="overrides",
        action="append",
        default=[],
        help="override one value; C is TOML, or a string where it is not; the later one wins",
    )
    parser.add_argument("--seed", type=int, help="the same as --set run.seed=SEED")


def topology_of(arguments: argparse.Namespace) -> Topology:
    """The topology that the user asked for.

    Raises:
        ConfigError: with every problem that can be found at once.
    """
    return load_topology(arguments.topology, overrides_of(arguments))


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """`--set` in the user's order, then `--seed`."""
    seed = [] if arguments.seed is None else [f"run.seed={arguments.seed}"]
    return [*arguments.overrides, *seed]

"""The arguments by which every command that takes a topology gets it."""

from __future__ import annotations

import argparse
from pathlib import Path

from milepost.configs.load import load_topology
from milepost.configs.problem import ConfigError, Problem
from milepost.configs.topology import Topology


def add_topology_arguments(parser: argparse.ArgumentParser) -> None:
    """TOPOLOGY, --set and --seed; TOPOLOGY is None when it is left out, see `source_of`."""
    parser.add_argument(
        "topology",
        metavar="TOPOLOGY",
        nargs="?",
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
    """The topology that the user asked for; `arguments.resume` is there, too.

    Raises:
        ConfigError: with every problem that can be found at once.
    """
    return load_topology(source_of(arguments), overrides_of(arguments))


def source_of(arguments: argparse.Namespace) -> str:
    """TOPOLOGY; where it is left out, the one that the run of --resume was started with.

    Raises:
        ConfigError: neither is given.
    """
    source: str | None = arguments.topology
    resume: Path | None = arguments.resume
    if source is not None:
        return source
    if resume is None:
        what, remedy = "no topology", "name a recipe, a file, or --resume RUN"
        raise ConfigError([Problem(what, "command line", remedy)])
    return str(resume.absolute() / "topology.toml")


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """`--set` in the user's order, then `--seed`."""
    seed = [] if arguments.seed is None else [f"run.seed={arguments.seed}"]
    return [*arguments.overrides, *seed]

"""`--option NAME=VALUE`: keyword arguments of the user's own classes, as TOML values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from milepost.configs.problem import ConfigError, Problem
from milepost.configs.read import parse_value


def seconds_above_0(text: str) -> float:
    """A type of arguments: more than no time, less than for ever.

    Raises:
        ArgumentTypeError: it is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def possible_path(text: str) -> Path:
    """A type of arguments: a path at which something is, or could be.

    Raises:
        ArgumentTypeError: the system does not even look there: a name that is too long, a loop.
    """
    path = Path(text)
    try:
        path.stat()  # `exists` answers a loop as if nothing were there
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: {error.strerror}") from error
    return path


def read_options(words: Sequence[str]) -> dict[str, Any]:
    """Name -> value; what is no TOML value is a string, as with `--set`.

    Raises:
        ConfigError: a word has no `=`, or begins as TOML and is none.
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError([Problem(f"`{word}` is no NAME=VALUE", "--option", "add the =")])
        options[name] = parse_value(value, "--option")
    return options

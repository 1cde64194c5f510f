"""A checkpoint's `config.json`: read by all who want something of it, and refused in one way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

CONFIG: Final = "config.json"
SIZE_MAX: Final = 1 << 31
"""Larger sizes of a model are none."""


class SettingsDamaged(ValueError):
    """It is no JSON object, or a value in it is none of its kind; says which, and why."""


def read_settings(folder: Path) -> dict[str, Any]:
    """What `config.json` of this folder says.

    Raises:
        FileNotFoundError: there is none.
        SettingsDamaged: it is not text, not JSON, nested deeper than Python reads, or no object.
    """
    path = folder / CONFIG
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise SettingsDamaged(f"{path} is nested too deep to be read") from error
    except ValueError as error:
        raise SettingsDamaged(f"{path} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise SettingsDamaged(f"{path} holds a {type(settings).__name__} and no JSON object")
    return settings


def size_of(
    settings: dict[str, Any], name: str, default: int | None = None, *, most: int = SIZE_MAX
) -> int:
    """A number of things, at least one.

    Args:
        settings: a table of `config.json`.
        name: of the value.
        default: where the value is not there or null; None: it must be there. With 0 it may be 0.
        most: that there can be.

    Raises:
        SettingsDamaged: it is not there, or no such number.
    """
    value = settings.get(name)
    if value is None:
        if default is None:
            raise SettingsDamaged(f"{name} is missing")
        return default
    if type(value) is int and value == default == 0:
        return 0
    if type(value) is not int or not 0 < value <= most:
        raise SettingsDamaged(f"{name} is {_shown(value)}, not a whole number from 1 to {most}")
    return value


def number_of(settings: dict[str, Any], name: str, default: float) -> float:
    """A number above 0.

    Args:
        settings: a table of `config.json`.
        name: of the value.
        default: where the value is not there or null.

    Raises:
        SettingsDamaged: it is no such number.
    """
    value = settings.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not (0 < value < math.inf):
        raise SettingsDamaged(f"{name} is {_shown(value)}, not a number above 0")
    return float(value)


def table_of(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """A table within; empty where it is not there or null.

    Raises:
        SettingsDamaged: it is no table.
    """
    value = settings.get(name)
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise SettingsDamaged(f"{name} is {_shown(value)}, not a table")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""TOML files, recipes by name, inheritance and `--set`: everything up to one plain document.

A file may begin with `base = "other"`: then it holds only what differs from that recipe or file.
Tables are merged key by key, everything else replaces. `false` in the place of a table removes it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from milepost.configs.problem import ConfigError, Problem
from milepost.configs.suggest import did_you_mean

Document: TypeAlias = dict[str, Any]

RECIPES: Final = Path(__file__).parent / "recipes"
NESTING_MAX: Final = 32
"""Levels of tables and lists. Deeper ones are no topology, and overflow who walks through them."""
WHERE_CHARS_MAX: Final = 200
"""Of an override that is shown."""


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that come with milepost."""
    return tuple(sorted(path.stem for path in RECIPES.glob("*.toml")))


def locate(source: str, beside: Path | None = None) -> Path:
    """The file that `source` means: a path (it has a slash or ends in .toml), else a recipe.

    Args:
        source: what the user wrote.
        beside: folder that a relative path starts from; the working folder when None.

    Raises:
        ConfigError: no such file or recipe.
    """
    if "/" in source or source.endswith(".toml"):
        path = (beside or Path()) / home_of(source)
        try:
            is_there = path.is_file()
        except OSError as error:  # a name that is too long, a folder that may not be entered
            what = f"no topology file `{source}`: {error.strerror}"
            raise ConfigError([Problem(what, str(path.absolute()))]) from error
        if not is_there:
            raise ConfigError([Problem(f"no topology file `{source}`", str(path.absolute()))])
        return path
    if source not in recipe_names():
        remedy = did_you_mean(source, recipe_names()) + "; a path needs a slash or .toml"
        raise ConfigError([Problem(f"no recipe `{source}`", str(RECIPES), remedy)])
    return RECIPES / f"{source}.toml"


def home_of(source: str) -> str:
    """A path with the home folder in the place of its `~`; as it is, when nobody has that name."""
    return os.path.expanduser(source)  # noqa: PTH111 - Path's own raises then


def read_document(source: str, overrides: Sequence[str] = ()) -> Document:
    """The file with everything it inherits, and the overrides in order on top.

    Raises:
        ConfigError: a file is missing or not TOML, bases form a circle, an override is malformed.
    """
    document = _read_file(locate(source), ())
    problems: list[Problem] = []
    for override in overrides:
        try:
            document = merge(document, parse_override(override))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return document


def merge(under: Document, over: Document) -> Document:
    """`under` with `over` on top; neither is changed. Tables are merged, all else replaces.

    Raises:
        ConfigError: `over` has a table where `under` has a value.
    """
    return _merge(under, over, "$")


def parse_override(text: str) -> Document:
    """`a.b=c` as the document `{a: {b: c}}`; c is TOML, or a string where it is not.

    >>> parse_override("actors.trainer.lr=1e-3")
    {'actors': {'trainer': {'lr': 0.001}}}
    >>> parse_override("data.prompts=my.jsonl")
    {'data': {'prompts': 'my.jsonl'}}

    Raises:
        ConfigError: no `=`, a malformed path, or a value that begins as TOML and is not.
    """
    path, equals, value = (part.strip() for part in text.partition("="))
    text, told = (each.encode(errors="backslashreplace").decode() for each in (text, path))
    shown = text if len(text) <= WHERE_CHARS_MAX else f"{text[:WHERE_CHARS_MAX]}..."
    where = f"--set {shown}"
    if not equals or not path:
        raise ConfigError([Problem("an override without `=`", where, "write --set a.b=value")])
    try:
        nested = _parse(f"{path} = 0", where)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Problem(f"`{told}` is not a dotted path", where, str(error))]) from error
    if "\n" in path:
        raise ConfigError([Problem("a path of several lines", where, "use one --set for each")])
    _set_leaf(nested, parse_value(value, where))
    return nested


def parse_value(value: str, where: str) -> object:
    """A word of a command line: a TOML value, or else a string.

    Raises:
        ConfigError: it begins as TOML and is none.
    """
    try:
        parsed = _parse(f"value = {value}", where)
    except tomllib.TOMLDecodeError as error:
        if value[:1] in {"[", "{", '"', "'"}:
            remedy = f"it begins as TOML and is not: {error}".replace("\n", " ")
            raise ConfigError([Problem(f"the value `{value}`", where, remedy)]) from error
        return value
    # A value with a line break could smuggle in further keys.
    return parsed["value"] if len(parsed) == 1 else value


def _set_leaf(nested: Document, value: object) -> None:
    key = next(iter(nested))
    if isinstance(nested[key], dict):
        _set_leaf(nested[key], value)
    else:
        nested[key] = value


def _parse(text: str, where: str) -> Document:
    """TOML as a document.

    Raises:
        tomllib.TOMLDecodeError: it is none.
        ConfigError: it is nested deeper than any topology.
    """
    try:
        document = tomllib.loads(text)
        is_deep = _is_deep(document)
    except RecursionError:
        is_deep = True
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise tomllib.TOMLDecodeError(str(error)) from error
    if is_deep:
        remedy = f"nest at most {NESTING_MAX} of them"
        raise ConfigError([Problem("tables or lists that are nested too deep", where, remedy)])
    return document


def _is_deep(document: Document) -> bool:
    level: list[Any] = [document]
    for _ in range(NESTING_MAX + 1):
        tables = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for inner in tables for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def _read_file(path: Path, below: tuple[Path, ...]) -> Document:
    path = path.resolve()
    if path in below:
        circle = " -> ".join(each.name for each in (*below[below.index(path) :], path))
        raise ConfigError([Problem(f"bases form a circle: {circle}", f"$.base of {path}")])
    try:
        document = _parse(path.read_text(encoding="utf-8"), str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(f"not a TOML file: {error}", str(path))]) from error
    except OSError as error:
        raise ConfigError([Problem(f"cannot be read: {error.strerror}", str(path))]) from error
    base = document.pop("base", None)
    if base is None:
        return document
    if not isinstance(base, str):
        raise ConfigError([Problem(f"base = {base!r} is not a string", f"$.base of {path}")])
    return merge(_read_file(locate(base, beside=path.parent), (*below, path)), document)


def _merge(under: Document, over: Document, where: str) -> Document:
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merged[key] = _merge(old, value, f"{where}.{key}")
        elif isinstance(value, dict) and old is not None and old is not False:
            what = f"`{key}` is {old!r}, not a table, so nothing can be set in it"
            raise ConfigError([Problem(what, f"{where}.{key}")])
        else:
            merged[key] = value
    return merged

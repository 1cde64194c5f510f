"""TOML files, recipes by name, inheritance and `--set`: everything up to one plain document.

A file may begin with `base = "other"`: then it holds only what differs from that recipe or file.
Tables are merged key by key, everything else replaces. `false` in the place of a table removes it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from milepost.configs.problem import ConfigError, Problem
from milepost.configs.suggest import did_you_mean

Document: TypeAlias = dict[str, Any]

RECIPES: Final = Path(__file__).parent / "recipes"


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
        path = (beside or Path()) / Path(source).expanduser()
        if not path.is_file():
            raise ConfigError([Problem(f"no topology file `{source}`", str(path.absolute()))])
        return path
    path = RECIPES / f"{source}.toml"
    if not path.is_file():
        remedy = did_you_mean(source, recipe_names()) + "; a path needs a slash or .toml"
        raise ConfigError([Problem(f"no recipe `{source}`", str(RECIPES), remedy)])
    return path


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
    where = f"--set {text}"
    if not equals or not path:
        raise ConfigError([Problem("an override without `=`", where, "write --set a.b=value")])
    try:
        nested = tomllib.loads(f"{path} = 0")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Problem(f"`{path}` is not a dotted path", where, str(error))]) from error
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
        parsed = tomllib.loads(f"value = {value}")
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


def _read_file(path: Path, below: tuple[Path, ...]) -> Document:
    path = path.resolve()
    if path in below:
        circle = " -> ".join(each.name for each in (*below[below.index(path) :], path))
        raise ConfigError([Problem(f"bases form a circle: {circle}", f"$.base of {path}")])
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(f"not a TOML file: {error}", str(path))]) from error
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

"""Calls code of the user's own in the middle of ours: whatever it raises is an answer, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class ForeignFault(ValueError):
    """Code of the user's own raised; says whose and what."""


def called(told: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the user's own returns.

    Args:
        told: what it is, for people.
        function: the user's.
        arguments: of it.

    Raises:
        ForeignFault: it raised.
    """
    try:
        return function(*arguments)
    except Exception as error:
        raise ForeignFault(f"{told} raised {_worded(error)}") from error


def _worded(error: Exception) -> str:
    """Its name and words; the name alone where the words themselves raise."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001 - as above: the user's code again
        return name

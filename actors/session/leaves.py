"""Which branches of a finished session become rows, and which of their replies each row trains.

Two hooks, built in or of the user's own. The picker chooses among the leaves; the post-processor
says which turns each kept leaf trains. Whatever they do, a reply is trained by one row at most, so
that what branches share is no second gradient.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from milepost.actors.session.foreign import ForeignFault, called

if TYPE_CHECKING:
    from milepost.actors.session.record import Branch
    from milepost.messages.shared import ChatMessage


class LeafFault(ValueError):
    """A hook broke its contract; says which hook and how."""


class Leaf(Struct, frozen=True, kw_only=True):
    """One branch, as hooks see it. Only `trained` and `metadata` may be changed."""

    number: int
    """Of its last turn; leaves come in this order."""
    path: tuple[int, ...]
    """Numbers of its turns, first to last."""
    trained: tuple[int, ...]
    """Turns whose replies carry loss in this row: all of them, until a post-processor says."""
    retried: bool
    """A later generation continues the same reply as its last turn, whatever it was asked; or it
    answers an equal first prompt."""
    truncated: bool
    """A token bound cut its last reply off, its client's own among them."""
    num_tokens: int
    messages: list[ChatMessage]
    metadata: dict[str, Any] = {}
    """JSON values, added to the row's own."""


_CHANGEABLE: Final[dict[str, Any]] = {"trained": tuple[int, ...], "metadata": dict[str, Any]}
LeafHook: TypeAlias = Callable[[list[Leaf]], Sequence[Leaf]]


def leaf_of(branch: Branch) -> Leaf:
    """The leaf of a branch, before any hook."""
    return Leaf(
        number=branch.path[-1],
        path=branch.path,
        trained=branch.path,
        retried=branch.retried,
        truncated=branch.is_cut,
        num_tokens=branch.row.length,
        messages=branch.messages,
    )


def drop_retries(leaves: list[Leaf]) -> list[Leaf]:
    """Every leaf that no later generation took the place of."""
    return [leaf for leaf in leaves if not leaf.retried]


def keep_all(leaves: list[Leaf]) -> list[Leaf]:
    """Every leaf, retries too."""
    return leaves


def train_once(leaves: list[Leaf]) -> list[Leaf]:
    """A reply that several leaves share is trained in the earliest of them."""
    owned: set[int] = set()
    kept = []
    for leaf in sorted(leaves, key=lambda leaf: leaf.number):
        kept.append(replace(leaf, trained=tuple(n for n in leaf.path if n not in owned)))
        owned.update(leaf.path)
    return kept


PICKERS: Final[dict[str, LeafHook]] = {"drop_retries": drop_retries, "keep_all": keep_all}
POST_PROCESSORS: Final[dict[str, LeafHook]] = {"train_once": train_once}


class LeafRules:
    """The two hooks of a run.

    Args:
        picker: name of a built-in one, or `module:function`.
        post_processor: the same.

    Raises:
        ValueError: no such hook, or it is no synchronous function.
    """

    def __init__(self, picker: str = "drop_retries", post_processor: str = "train_once") -> None:
        self._picker, self._post_processor = picker, post_processor
        self._pick = _resolve(picker, PICKERS)
        self._process = _resolve(post_processor, POST_PROCESSORS)

    @property
    def is_foreign(self) -> bool:
        """Whether a hook is user code."""
        return self._picker not in PICKERS or self._post_processor not in POST_PROCESSORS

    def choose(self, leaves: Sequence[Leaf]) -> list[Leaf]:
        """The leaves that become rows, in the order of their numbers.

        Raises:
            LeafFault: a hook raised, returned leaves that are none of these, or one twice, or
                trains a reply twice, or nothing at all.
        """
        if len(leaves) == 1 and not leaves[0].retried and not self.is_foreign:
            # Whatever is built in keeps it as it is.
            return [leaves[0]]
        picked = self._called(f"leaf_picker {self._picker}", self._pick, list(leaves))
        known = {leaf.number: leaf for leaf in leaves}
        numbers = [leaf.number for leaf in picked]
        strange = any(known.get(leaf.number) is not leaf for leaf in picked)
        if strange or len(set(numbers)) != len(numbers):
            raise LeafFault(
                f"leaf_picker {self._picker} returned leaves {numbers} of {sorted(known)}: each of "
                "those it was given, at most once and unchanged"
            )
        told = f"leaf_post_processor {self._post_processor}"
        kept = self._called(told, self._process, picked)
        kept.sort(key=lambda leaf: leaf.number)
        if [leaf.number for leaf in kept] != sorted(numbers):
            raise LeafFault(
                f"{told} returned leaves {[leaf.number for leaf in kept]} of {sorted(numbers)}: it "
                "may change what they train, not which there are"
            )
        self._check(kept, known, told)
        if not any(leaf.trained for leaf in kept):
            raise LeafFault(
                f"leaf_picker {self._picker} and {told} left nothing to train of "
                f"{len(known)} leaves"
            )
        return kept

    def _called(self, told: str, hook: LeafHook, leaves: list[Leaf]) -> list[Leaf]:
        try:
            chosen = called(told, lambda: list(hook(leaves)))
        except ForeignFault as fault:
            raise LeafFault(str(fault)) from fault
        if strange := [leaf for leaf in chosen if not isinstance(leaf, Leaf)]:
            raise LeafFault(f"{told} returned {reprlib.repr(strange[0])}, leaves are needed")
        return list(chosen)

    def _check(self, kept: list[Leaf], known: dict[int, Leaf], told: str) -> None:
        owner: dict[int, int] = {}
        for leaf in kept:
            _check_types(leaf, told)
            plain = replace(leaf, trained=leaf.path, metadata={})
            if plain != known[leaf.number] or not set(leaf.trained) <= set(leaf.path):
                raise LeafFault(
                    f"{told} changed leaf {leaf.number} in more than `trained` and `metadata`, or "
                    f"trains {leaf.trained} on path {leaf.path}"
                )
            for number in leaf.trained:
                if number in owner:
                    raise LeafFault(
                        f"{told} trains turn {number} in leaf {owner[number]} and in leaf "
                        f"{leaf.number}: once is a gradient, twice is a mistake"
                    )
                owner[number] = leaf.number


def _check_types(leaf: Leaf, told: str) -> None:
    """Nothing holds a hook to the types of what it may change; a row with others cannot leave."""
    for name, kind in _CHANGEABLE.items():
        value = getattr(leaf, name)
        try:
            msgspec.msgpack.encode(msgspec.convert(value, kind))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            shown = reprlib.repr(value)
            raise LeafFault(
                f"{told} set {name} of leaf {leaf.number} to {shown}: {error}"
            ) from error


def _resolve(name: str, built_in: dict[str, LeafHook]) -> LeafHook:
    if name in built_in:
        return built_in[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"unknown leaf hook {name!r}: known are {', '.join(built_in)}, or module:function"
        )
    function = getattr(import_module(module), attribute, None)
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ValueError(f"leaf hook {name!r} is no synchronous function of (leaves)")
    hook: LeafHook = function
    return hook

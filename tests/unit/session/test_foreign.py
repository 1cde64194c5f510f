"""Code of the user's own may raise anything: it ends what asked for it, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from unit.session.kit import QUESTION, play, refused, renderer

from milepost.actors.session.http.branches import copies_of
from milepost.actors.session.http.samples import NoSamples, encode_samples
from milepost.actors.session.leaves import LeafFault, LeafRules
from milepost.configs.actors import TreeConfig

if TYPE_CHECKING:
    from milepost.actors.session.leaves import Leaf

USER = {"role": "user", "content": "and now?"}


def broken(stored: dict[str, Any], replayed: dict[str, Any]) -> bool:
    """A matcher that looks for a field that is not there."""
    return bool(stored["name"] == replayed["name"])


def undecided(stored: dict[str, Any], replayed: dict[str, Any]) -> None:
    """A matcher that forgot its answer."""


class Mute:
    """Nothing can be said of it."""

    def __repr__(self) -> str:
        raise RuntimeError


class MuteFault(Exception):
    """As from a library whose object is gone when somebody asks for the words."""

    def __str__(self) -> str:
        raise RuntimeError


def mute(stored: dict[str, Any], replayed: dict[str, Any]) -> bool:
    """A matcher whose exception raises when it is to be told."""
    del stored, replayed
    raise MuteFault


def unsayable(stored: dict[str, Any], replayed: dict[str, Any]) -> Any:
    """A matcher that returns what cannot be told."""
    del stored, replayed
    return Mute()


def lost(leaves: list[Leaf]) -> list[Leaf]:
    """A hook that counts on more leaves than there are."""
    return [leaves[7]]


def unsayable_leaf(leaves: list[Leaf]) -> Any:
    """A hook that returns what cannot be told."""
    del leaves
    return [Mute()]


def strange(leaves: list[Leaf]) -> Any:
    """A hook that returns numbers."""
    return [leaf.number for leaf in leaves]


def numbered(leaves: list[Leaf]) -> Any:
    """A post-processor that says how many turns are trained, not which."""
    return [replace(leaf, trained=len(leaf.trained)) for leaf in leaves]


def named(leaves: list[Leaf]) -> Any:
    """A post-processor that names turns as text."""
    return [replace(leaf, trained=["0"]) for leaf in leaves]


def unsendable(leaves: list[Leaf]) -> Any:
    """A post-processor that adds what no message can carry."""
    return [replace(leaf, metadata={"who": Mute()}) for leaf in leaves]


@pytest.mark.parametrize("tree", [None, TreeConfig()], ids=["linear", "tree"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broken", "raised KeyError: 'name'"),
        ("undecided", "returned None"),
        ("mute", "raised MuteFault"),
        ("unsayable", "returned <Mute instance"),
    ],
)
def test_a_matcher_that_fails_refuses_its_turn_and_the_session_goes_on(
    name: str, told: str, tree: TreeConfig | None
) -> None:
    """Another conversation of this actor has nothing to do with it."""
    game = play(matcher=f"{__name__}:{name}", tree=tree)
    game.open()
    game.open("g.1")
    said = game.turn([QUESTION], "cat")
    reason = refused(game, game.chat([dict(QUESTION), dict(said), USER]), "internal")
    assert reason.startswith(f"matcher {__name__}:{name} {told}")
    assert game.core.statistics()["turns"] == 1
    game.chat([QUESTION], "g.1")
    game.sample("dog")
    assert game.core.statistics()["turns"] == 2


@pytest.mark.parametrize("place", ["leaf_picker", "leaf_post_processor"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lost", "raised IndexError: list index"),
        ("strange", "returned 1"),
        ("unsayable_leaf", "returned <Mute instance"),
    ],
)
def test_a_hook_that_fails_is_named(place: str, name: str, told: str) -> None:
    """Where rows are delivered the trajectory is lost by it; where they are fetched it is a 422."""
    game = play(tree=TreeConfig())
    game.open()
    game.turn([QUESTION], "cat")
    hook = f"{__name__}:{name}"
    rules = LeafRules(hook) if place == "leaf_picker" else LeafRules(post_processor=hook)
    branches = copies_of(game.core._sessions["g.0"].record.branches())
    with pytest.raises(LeafFault, match=f"{place} {hook} {told}"):
        rules.choose([branch.leaf for branch in branches])
    with pytest.raises(NoSamples, match=f"{place} {hook} {told}"):
        encode_samples(branches, renderer(), rules=rules, length_max=None, metadata={})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("numbered", r"set trained of leaf 1 to 1: Expected"),
        ("named", r"set trained of leaf 1 to \['0'\]: Expected `int`, got `str`"),
        ("unsendable", r"set metadata of leaf 1 to \{'who': .*\}: Encoding objects"),
    ],
)
def test_a_post_processor_that_sets_a_wrong_type_is_named(name: str, told: str) -> None:
    """Not the row that is made of it, nor whoever encodes that."""
    game = play(tree=TreeConfig())
    game.open()
    game.turn([QUESTION], "cat")
    rules = LeafRules(post_processor=f"{__name__}:{name}")
    branches = copies_of(game.core._sessions["g.0"].record.branches())
    with pytest.raises(LeafFault, match=told):
        rules.choose([branch.leaf for branch in branches])

"""Each recipe that comes with milepost: it reads, holds against checks, and says what it is."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import pytest

from milepost.configs.load import load_topology
from milepost.configs.read import RECIPES, recipe_names
from milepost.messages.shared import Prompt
from milepost.supervisor.checks import CHECKS, Machine, Stage, Subject


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine.look(Path())


def test_the_quick_start_has_its_recipes() -> None:
    assert {"lookup", "lookup_sync", "lookup_warmup", "hunt", "hunt_warmup"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_begins_with_what_it_trains_how_long_and_what_to_expect(name: str) -> None:
    """A person chooses a recipe by reading its first lines."""
    text = (RECIPES / f"{name}.toml").read_text()
    comment = text[: text.index("\n\n[" if "\nbase =" not in text else "\nbase =")]
    lines = comment.splitlines()
    assert all(line.startswith("#") for line in lines if line)
    words = " ".join(line.lstrip("# ") for line in lines)
    assert len(words) > 150
    assert " s " in words or "time" in words, "how long it takes"
    assert "xpect" in words, "what number to expect"


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_holds_against_every_check_that_only_reads(name: str, machine: Machine) -> None:
    subject = Subject(load_topology(name), machine)
    found = {
        check.sentence: [str(each) for each in check.find(subject)]
        for check in CHECKS
        if check.stage is Stage.READING
    }
    notes = {sentence: notes for sentence, notes in found.items() if notes}
    assert all("not set" in note or "not there yet" in note for n in notes.values() for note in n)


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_named_after_its_file(name: str) -> None:
    """Run folders and the cache carry the name: two recipes must not share one."""
    assert load_topology(name).run.name == name


@pytest.mark.parametrize("name", ["lookup", "lookup_warmup", "hunt", "hunt_warmup"])
def test_a_recipe_names_code_that_exists_and_yields_prompts(name: str) -> None:
    topology = load_topology(name)
    assert topology.data is not None
    source = resolve_name(topology.data.prompts)
    first = next(iter(source("train", 0, topology.data.options)))
    assert isinstance(first, Prompt)
    assert first.tools
    assert topology.model is not None
    if topology.model.create:
        assert callable(resolve_name(topology.model.create))
    else:
        assert topology.model.made_by in recipe_names()


def test_a_conversation_fits_the_limits_of_its_recipe() -> None:
    """An episode cut off by a limit would be trained as if the model had chosen to stop there."""
    for name in ("lookup", "hunt"):
        limits = load_topology(name).limits
        assert limits.turns_max > 6, "the environment ends an episode, not the limit"
        assert limits.reply_tokens_max >= 3 * 8, "three times the longest sensible reply"

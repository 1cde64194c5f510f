"""A run goes on with the prompts that it began with, or not at all: a name does not tell."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from milepost.actors.context import ActorContext
from milepost.actors.evaluator.run import note_prompts
from milepost.actors.journal import JournalDamaged
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.prompts import PromptError
from milepost.actors.rollout.promptset import PromptsChanged, PromptSet, hold_to, note, noted
from milepost.actors.rollout.run import run
from milepost.configs.load import decode
from milepost.configs.spec import ActorSpec
from milepost.messages.shared import Prompt

if TYPE_CHECKING:
    from milepost.messages.bus import Bus


def prompts(*names: str) -> list[Prompt]:
    return [Prompt(prompt_id=name, messages=[{"role": "user", "content": name}]) for name in names]


def made(**fields: Any) -> PromptSet:
    given: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    return PromptSet.of("a:b", [Prompt(prompt_id="p", **given | fields)])


def test_one_line_more_gives_every_position_another_prompt() -> None:
    """What the note is for: some prompts of the epoch would be issued twice, others never."""
    before, after = prompts(*map(str, range(1000))), prompts(*map(str, range(1001)))
    first = [PromptOrder(before, 0, shuffle=True).at(at).prompt_id for at in range(500)]
    rest = [PromptOrder(after, 0, shuffle=True).at(at).prompt_id for at in range(500, 1001)]
    assert set(first) & set(rest)
    assert PromptSet.of("a:b", after).differs_from(PromptSet.of("a:b", before))


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [{"role": "user", "content": "y"}]},
        {"label": 1},
        {"metadata": {"level": 1}},
        {"tools": [{"type": "function"}]},
    ],
)
def test_every_part_of_a_prompt_counts(other: dict[str, Any]) -> None:
    assert made(**other).differs_from(made())


def test_order_counts_among_prompts_and_not_among_keys() -> None:
    """A function may build its objects from what has no order; the list of prompts has one."""
    assert PromptSet.of("a:b", prompts("a", "b")).differs_from(
        PromptSet.of("a:b", prompts("b", "a"))
    )
    one, other = {"x": 1, "y": 2}, {"y": 2, "x": 1}
    assert made(metadata=one).differs_from(made(metadata=other)) == ""
    assert made(label={1: "keys that are no strings"}).num_prompts == 1


@pytest.mark.parametrize("label", [2**70, "\ud800", object()])
def test_a_prompt_that_cannot_be_sent_is_told_by_its_name(label: object) -> None:
    with pytest.raises(PromptError, match="prompt 'p' cannot be sent to anybody: "):
        made(label=label)


def test_the_first_life_notes_and_a_later_one_is_held_to_it(tmp_path: Path) -> None:
    """Also of a run that was begun before prompts were noted: from its next life on."""
    before = PromptSet.of("my.jsonl@[:7]", prompts("a", "b"))
    assert noted(tmp_path, "train") is None
    hold_to(tmp_path, "train", before)
    assert noted(tmp_path, "train") == before
    assert before.source == str(Path("my.jsonl@[:7]").absolute())
    hold_to(tmp_path, "train", PromptSet.of("elsewhere.jsonl", prompts("a", "b")))
    other = PromptSet.of("my.jsonl", prompts("a"))
    with pytest.raises(PromptsChanged) as raised:
        hold_to(tmp_path, "train", other)
    said = f"they were 2 with digest {before.digest} from {before.source}, are 1 with digest "
    assert f"{said}{other.digest} from {other.source} at $.data.prompts, put them" in str(
        raised.value
    )
    path = tmp_path / "journal" / "prompts_train"
    data = bytearray(path.read_bytes() * 2)
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged):
        noted(tmp_path, "train")


def spec(folder: Path, incarnation: int, **data: str) -> ActorSpec:
    run_table = {"name": "tiny", "steps": 1}
    actors: dict[str, Any] = {"rollout": {}, "buffer": {}, "agent": {"agent": "a:b"}}
    document = {"run": run_table, "data": data, "actors": actors}
    return ActorSpec(
        actor="rollout",
        kind="rollout",
        index=0,
        incarnation=incarnation,
        run_id="r",
        run_folder=str(folder),
        addresses={},
        topology=decode(document),
        topology_hash="",
    )


@pytest.mark.parametrize("incarnation", [0, 1])
def test_the_rollout_actor_refuses_others_before_it_says_or_writes_anything(
    tmp_path: Path, incarnation: int
) -> None:
    """In a run that is resumed, and where it is started again in the middle of one."""
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "x"}]}), encoding="utf-8")
    note(tmp_path, "train", PromptSet.of("my:prompts", prompts("a", "b")))
    context = ActorContext(spec(tmp_path, incarnation, prompts=str(path)), cast("Bus", None))
    with pytest.raises(PromptsChanged, match=r"they were 2 with digest \w+ from my:prompts, are 1"):
        asyncio.run(run(context))
    assert not (tmp_path / "journal" / "rollout").exists()


def test_other_held_out_prompts_are_told_and_asked(tmp_path: Path) -> None:
    """Scores of both lives stand side by side, so a person should know."""
    own = spec(tmp_path, 0, prompts="a:b")
    assert note_prompts(own, prompts("a", "b")) == ""
    assert note_prompts(own, prompts("a", "b")) == ""
    assert "they were 2 with digest" in note_prompts(own, prompts("a"))
    assert note_prompts(own, ()) == "", "an evaluation by a class of the user's has none"
    assert note_prompts(own, prompts("a")) == ""

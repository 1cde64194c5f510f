"""reasoning-gym as it comes: its questions, its scores, and a run of the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from connectors.conftest import milepost
from unit.agent.kit import ScriptedLine, order, reply

from milepost.actors.agent import Episode
from milepost.actors.agent.connectors.reasoning_gym import (
    ReasoningGymAgent,
    demonstrations,
    prompts,
)

pytestmark = pytest.mark.timeout(500)
OPTIONS: dict[str, Any] = {
    "task": "chain_sum",
    "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "train": 64,
    "held_out": 32,
}


def test_questions_are_the_same_for_a_seed_and_others_in_the_held_out_part() -> None:
    train = list(prompts("train", 7, OPTIONS))
    assert train == list(prompts("train", 7, OPTIONS))
    assert (len(train), len(list(prompts("held_out", 7, OPTIONS)))) == (64, 32)
    first = [prompt.messages for prompt in train[:32]]
    assert first != [prompt.messages for prompt in prompts("held_out", 7, OPTIONS)]
    assert msgspec.json.decode(msgspec.json.encode(train[0].metadata)) == train[0].metadata
    with pytest.raises(ValueError, match="split 'test' does not exist"):
        list(prompts("test", 7, OPTIONS))
    with pytest.raises(msgspec.ValidationError, match="unknown field `tusk`"):
        list(prompts("train", 7, {**OPTIONS, "tusk": 1}))


async def test_the_task_itself_scores_the_answer() -> None:
    agent = ReasoningGymAgent()
    agent.data_options = OPTIONS
    await agent.start()
    [prompt, *_] = prompts("train", 7, OPTIONS)
    for said, solved in ((str(prompt.label), 1.0), ("no idea", 0.0)):
        episode = Episode(order(prompt=prompt), ScriptedLine(reply(said)))
        await agent.run(episode)
        record = episode.record
        assert record.metrics == {"solved": solved}
        assert (record.reward == 1.0) == bool(solved)


def test_demonstrations_teach_the_form_and_as_many_right_answers_as_asked() -> None:
    rows = list(demonstrations("train", 7, {**OPTIONS, "train": 400, "right": 0.5}))
    right = sum(row.messages[-1]["content"] == row.label for row in rows)
    assert 160 < right < 280


def test_the_recipe_s_agent_passes_the_conformance_kit(tmp_path: Path) -> None:
    done = milepost("agent-check", "arithmetic", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recipe_trains(train: Any) -> None:
    create = "milepost.configs.recipes.arithmetic.model:create"
    summary, steps = train("arithmetic", create=create, options="vocabulary = 300")
    assert (summary["status"], len(steps)) == ("done", 2)
    assert summary["scores"]["after"]["sampled"]["num_episodes"] == 2
    assert all("rollout/solved" in step for step in steps)

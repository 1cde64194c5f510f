"""A person's own prompts, agent and reward function, and what goes wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from proc.system.conftest import Launch
from proc.system.harness import GROUPS, Start, check_balance, check_metrics

pytestmark = pytest.mark.timeout(400)
STEPS = 2
BAD = {1: "raise", 2: "nan", 5: "hang", 6: "text"}
"""Number of a prompt -> what its reward does."""
CODE = '''
from milepost.actors.agent import Agent, RewardInput


class Asker(Agent):
    """Asks once and leaves the judging to the reward function."""

    def __init__(self, polite: bool) -> None:
        assert polite

    async def run(self, episode):
        await episode.chat(episode.prompt.messages)


def judge(given: RewardInput):
    match given.label:
        case "raise":
            raise ValueError("cannot parse this")
        case "nan":
            return float("nan")
        case "hang":
            while True:
                pass
        case "text":
            return "1.0"
    return float(len(given.text) % 3), {"solved": 1.0, "chars": len(given.text)}
'''


def own(folder: Path, checkpoint: Path, more_lines: str = "") -> Start:
    """A folder with a module and a prompt file, as a person keeps them."""
    (folder / "my_task.py").write_text(CODE)
    people = ("kai", "amy", "bob", "eva", "gus", "ivy", "joe", "liv", "max", "ned", "mia", "leo")
    lines = [
        {
            "messages": [{"role": "user", "content": f"What is the pet of {name}?"}],
            "label": BAD.get(number, "cat"),
            "metadata": {"category": "pets"},
        }
        for number, name in enumerate(people)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + more_lines
    (folder / "pets.jsonl").write_text(text)
    settings = (
        "data.prompts=pets.jsonl@[:10]",
        "data.held_out_prompts=pets.jsonl@[-2:]",
        "data.reward=my_task:judge",
        "data.reward_deadline_s=0.5",
        "actors.rollout.episode_retries_max=1",
    )
    return Start(
        folder, checkpoint, steps=STEPS, agent="my_task:Asker", options={"polite": True},
        words=tuple(word for setting in settings for word in ("--set", setting)),
    )  # fmt: skip


def test_own_prompts_agent_and_reward_are_trained_on_and_faults_are_no_zeros(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    """A reward that raises, hangs, or is no number fails its trajectory, with the cause named."""
    run = launch(own(tmp_path, checkpoint))
    assert run.end() == 0, run.text
    check_metrics(run, STEPS)
    ledger = check_balance(run, STEPS)
    assert ledger.dropped.keys() == {"episode_failed"}
    trained = run.meta(STEPS)["trained_group_ids"]
    bad = {f"g{number:07d}" for number in BAD}
    assert not set(trained) & bad
    assert len(trained) == STEPS * GROUPS
    for line in run.steps():
        assert line["rollout/solved"] == 1.0, "every trained trajectory has a reward of its own"
    causes = " ".join(event["text"] for event in run.events("episode_failed"))
    assert "ValueError: cannot parse this" in causes
    log = (run.folder / "logs" / "agent-0.log").read_text()
    for cause in (
        "ValueError: cannot parse this",
        "reward is nan",
        "it took longer than its deadline of 0.5 s",
        "reward is '1.0'",
    ):
        assert cause in log, log
    assert run.summary["scores"]["after"]["sampled"]["num_episodes"] == 2


def test_a_bad_line_of_the_prompt_file_is_named_before_anything_starts(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    run = launch(own(tmp_path, checkpoint, '{"messages": [{"role": "usr", "content": "?"}]}\n'))
    assert run.end() == 2, run.text
    assert "pets.jsonl, line 13: unknown role 'usr' at $.messages[0]" in run.text
    assert not run.folder.exists()


def test_code_that_is_not_found_is_named_before_anything_starts(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    start = own(tmp_path, checkpoint)
    words = (*start.words, "--set", "data.reward=my_task:jugde")
    run = launch(replace(start, agent="my_tusk:Asker", words=words))
    assert run.end() == 2, run.text
    assert "no module called `my_tusk`" in run.text
    assert "module my_task has no `jugde`" in run.text
    assert "did you mean `judge`" in run.text


def test_a_reward_that_never_works_ends_the_run_with_its_words(
    tmp_path: Path, checkpoint: Path, launch: Launch
) -> None:
    start = own(tmp_path, checkpoint)
    code = (tmp_path / "my_task.py").read_text().replace("match given.label:", 'match "raise":')
    (tmp_path / "my_task.py").write_text(code)
    run = launch(replace(start, words=(*start.words, "--set", "actors.evaluator.at_start=false")))
    assert run.end() == 1, run.text
    assert run.summary["cause"]["actor"] == "rollout"
    assert "ValueError: cannot parse this" in run.summary["cause"]["text"]

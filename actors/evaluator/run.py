"""The evaluator's hands: reads the held-out prompts, writes transcripts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from milepost.actors.context import ActorContext
from milepost.actors.effects import Work
from milepost.actors.evaluator.core import Evaluator, SaveTranscripts
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.rollout.prompts import load_held_out_prompts
from milepost.configs.spec import ActorSpec


async def run(context: ActorContext) -> None:
    """Serve until stopped.

    Raises:
        PromptError: the held-out prompts cannot be read.
    """
    core, prompts = make_core(context.spec)
    path = context.run_folder / "transcripts.jsonl"

    async def perform(work: Work) -> object:
        assert isinstance(work, SaveTranscripts), work
        return await asyncio.to_thread(append_transcripts, path, work)

    await context.serve(core, facts={"held_out_prompts": prompts}, perform=perform)


def make_core(spec: ActorSpec) -> tuple[Evaluator, int]:
    """The core in its first state, and how many prompts it has.

    Raises:
        PromptError: the held-out prompts cannot be read.
    """
    topology = spec.topology
    assert topology.data is not None, "the topology has no [data]"
    assert topology.actors.evaluator is not None, "the topology has no evaluator"
    settings = EvaluatorSettings.of(topology, spec.resume_step, spec.incarnation)
    prompts = load_held_out_prompts(topology.data, topology.run.seed)
    prompts = prompts[: topology.actors.evaluator.prompts_max]
    return Evaluator(settings, prompts), len(prompts)


def append_transcripts(path: Path, work: SaveTranscripts) -> None:
    """One JSON object a line."""
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in work.transcripts)
    with path.open("ab") as file:
        file.write(lines)

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


async def run(context: ActorContext) -> None:
    """Serve until stopped.

    Raises:
        PromptError: the held-out prompts cannot be read.
    """
    topology = context.topology
    assert topology.data is not None, "the topology has no [data]"
    assert topology.actors.evaluator is not None
    settings = EvaluatorSettings.of(topology, context.spec.resume_step, context.spec.incarnation)
    prompts = load_held_out_prompts(topology.data, topology.run.seed)
    prompts = prompts[: topology.actors.evaluator.prompts_max]
    path = context.run_folder / "transcripts.jsonl"

    async def perform(work: Work) -> object:
        assert isinstance(work, SaveTranscripts), work
        return await asyncio.to_thread(append_transcripts, path, work)

    await context.serve(
        Evaluator(settings, prompts), facts={"held_out_prompts": len(prompts)}, perform=perform
    )


def append_transcripts(path: Path, work: SaveTranscripts) -> None:
    """One JSON object a line."""
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in work.transcripts)
    with path.open("ab") as file:
        file.write(lines)

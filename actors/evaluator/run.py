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
    settings = EvaluatorSettings.of(topology, context.spec.resume_step)
    prompts = load_held_out_prompts(topology.data, topology.run.seed)
    prompts = prompts[: topology.actors.evaluator.prompts_max]
    folder = context.run_folder / "transcripts"

    async def perform(work: Work) -> object:
        assert isinstance(work, SaveTranscripts), work
        return await asyncio.to_thread(save_transcripts, folder, work)

    await context.serve(
        Evaluator(settings, prompts), facts={"held_out_prompts": len(prompts)}, perform=perform
    )


def save_transcripts(folder: Path, work: SaveTranscripts) -> str:
    """Write one JSON list; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / work.name
    path.write_bytes(msgspec.json.format(msgspec.json.encode(work.transcripts), indent=2))
    return str(path)

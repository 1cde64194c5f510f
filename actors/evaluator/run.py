"""The evaluator's hands: reads the held-out prompts, writes transcripts, measures checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from milepost.actors.context import ActorContext
from milepost.actors.effects import Work
from milepost.actors.evaluator.core import Evaluator
from milepost.actors.evaluator.examiner import Examiner
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.evaluator.works import KeepCheckpoint, MeasureCheckpoint, SaveTranscripts
from milepost.actors.rollout.prompts import load_held_out_prompts
from milepost.configs.spec import ActorSpec
from milepost.messages.shared import Prompt


async def run(context: ActorContext) -> None:
    """Serve until stopped.

    Raises:
        PromptError: the held-out prompts cannot be read.
    """
    core, prompts = make_core(context.spec)
    config = context.topology.actors.evaluator
    assert config is not None, "the topology has no evaluator"
    path = context.run_folder / "transcripts.jsonl"
    folder = context.run_folder / "evaluation"
    examiner = Examiner(config.external, config.external_options, folder)

    async def perform(work: Work) -> object:
        match work:
            case SaveTranscripts():
                return await asyncio.to_thread(append_transcripts, path, work)
            case KeepCheckpoint():
                return await examiner.keep(work)
            case MeasureCheckpoint():
                return await examiner.measure(work)
            case _:
                raise TypeError(f"the evaluator cannot carry out {type(work).__name__}")

    await context.serve(core, facts={"held_out_prompts": prompts}, perform=perform)


def make_core(spec: ActorSpec) -> tuple[Evaluator, int]:
    """The core in its first state, and how many prompts it has.

    Raises:
        PromptError: the held-out prompts cannot be read.
    """
    topology, config = spec.topology, spec.topology.actors.evaluator
    assert topology.data is not None, "the topology has no [data]"
    assert config is not None, "the topology has no evaluator"
    settings = EvaluatorSettings.of(topology, spec.resume_step, spec.incarnation)
    prompts: Sequence[Prompt] = ()
    if not config.external:
        prompts = load_held_out_prompts(topology.data, topology.run.seed)[: config.prompts_max]
    return Evaluator(settings, prompts), len(prompts)


def append_transcripts(path: Path, work: SaveTranscripts) -> None:
    """One JSON object a line."""
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in work.transcripts)
    with path.open("ab") as file:
        file.write(lines)

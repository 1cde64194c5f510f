"""The evaluator's hands: prompts, journal and transcripts; checkpoints are the examiner's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from milepost.actors.context import ActorContext
from milepost.actors.effects import Work
from milepost.actors.evaluator.core import Evaluator
from milepost.actors.evaluator.examiner import Examiner
from milepost.actors.evaluator.records import Past, Record, WentOn, decode_record, encode_record
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.evaluator.works import (
    KeepCheckpoint,
    MeasureCheckpoint,
    RemoveCheckpoint,
    SaveTranscripts,
    WriteRecord,
)
from milepost.actors.journal import JournalFile, read_records
from milepost.actors.rollout.prompts import load_held_out_prompts
from milepost.actors.rollout.promptset import PromptSet, note, noted
from milepost.configs.spec import ActorSpec
from milepost.messages.shared import Prompt


async def run(context: ActorContext) -> None:
    """Serve until stopped.

    Raises:
        PromptError: the held-out prompts cannot be read.
        JournalDamaged: what former lives of this evaluator left cannot be trusted.
    """
    spec, config = context.spec, context.topology.actors.evaluator
    assert config is not None, "the topology has no evaluator"
    journal = Journal(context.run_folder / "journal" / "evaluator")
    past = journal.recover()
    if spec.incarnation == 0:
        record = WentOn(version=spec.resume_step or 0)
        journal.write(record)
        past.apply(record)
    core, prompts = make_core(spec, past)
    changed = note_prompts(spec, core.prompts)
    path = context.run_folder / "transcripts.jsonl"
    folder = context.run_folder / "evaluation"
    examiner = Examiner(config.external, config.external_options, folder)
    examiner.sweep(past.due)

    async def perform(work: Work) -> object:
        match work:
            case WriteRecord():
                await journal.perform(work)
            case SaveTranscripts():
                return await asyncio.to_thread(append_transcripts, path, work)
            case KeepCheckpoint():
                return await examiner.keep(work)
            case MeasureCheckpoint():
                return await examiner.measure(work)
            case RemoveCheckpoint():
                await examiner.remove(work)
            case _:
                raise TypeError(f"the evaluator cannot carry out {type(work).__name__}")
        return None

    facts: dict[str, object] = {"held_out_prompts": prompts, "left": sorted(past.due)}
    if changed:
        facts["held_out_prompts_changed"] = changed
    try:
        await context.serve(core, facts=facts, perform=perform)
    finally:
        journal.close()


def make_core(spec: ActorSpec, past: Past) -> tuple[Evaluator, int]:
    """The core in the state that the journal tells, and how many prompts it has.

    Raises:
        PromptError: the held-out prompts cannot be read.
    """
    topology, config = spec.topology, spec.topology.actors.evaluator
    assert topology.data is not None, "the topology has no [data]"
    assert config is not None, "the topology has no evaluator"
    checkpoints = Path(spec.run_folder) / "checkpoints"

    def folder(version: int) -> str:
        return str(checkpoints / f"step_{version:06d}")

    settings = EvaluatorSettings.of(topology, spec.resume_step, spec.incarnation, folder)
    prompts: Sequence[Prompt] = ()
    if not config.external:
        prompts = load_held_out_prompts(topology.data, topology.run.seed)[: config.prompts_max]
    return Evaluator(settings, prompts, past), len(prompts)


def note_prompts(spec: ActorSpec, prompts: Sequence[Prompt]) -> str:
    """Note which prompts are asked; says what is other than in the life before, if anything is.

    Scores of both lives are shown side by side, and are of different questions then.

    Raises:
        PromptError: one of them cannot be sent to anybody.
    """
    data, folder = spec.topology.data, Path(spec.run_folder)
    if not prompts or data is None:
        return ""
    now = PromptSet.of(data.held_out_prompts or data.prompts, prompts)
    before = noted(folder, "held_out")
    note(folder, "held_out", now)
    return now.differs_from(before) if before is not None else ""


class Journal:
    """RUN/journal/evaluator; written on one thread, so in the order of the core's effects.

    Raises:
        JournalDamaged: see `read_records`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = JournalFile(path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def recover(self) -> Past:
        """What is written."""
        return Past.of(map(decode_record, read_records(self._path)))

    def write(self, record: Record) -> None:
        """Append on the caller's thread; returns when it would survive a power cut."""
        self._file.append((encode_record(record),))
        self._file.sync()

    async def perform(self, work: WriteRecord) -> None:
        """Append beside the event loop."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self.write, work.record)

    def close(self) -> None:
        """Finish what was ordered, then close."""
        self._thread.shutdown(wait=True)
        self._file.close()


def append_transcripts(path: Path, work: SaveTranscripts) -> None:
    """One JSON object a line."""
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in work.transcripts)
    with path.open("ab") as file:
        file.write(lines)

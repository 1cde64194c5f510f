"""Checks that a resumed run has the prompts that it began with, whatever their source is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from milepost.actors.journal import JournalDamaged
from milepost.actors.rollout.prompts import is_file
from milepost.actors.rollout.promptset import FUNCTION_PROMPTS_MAX, KEEP, PromptSet, noted
from milepost.configs.problem import Problem
from milepost.messages.shared import Prompt
from milepost.supervisor.checks.check import Finding, Note, Subject
from milepost.supervisor.checks.code import LENGTHS, LENGTHS_S, probe
from milepost.supervisor.probe import Target

UNREADABLE: Final = (JournalDamaged, msgspec.MsgspecError, OSError)


def prompts_are_noted(subject: Subject) -> Iterator[Finding]:
    """Prompts that nobody can compare with those that the run began with."""
    folder = subject.run_folder
    if not subject.resuming or folder is None or not (folder / "journal" / "rollout").exists():
        return
    try:
        if noted(folder, "train") is None:
            what = "the run did not note its prompts: whether they are the same is not known"
            yield Note(what, "$.data.prompts")
    except UNREADABLE as error:
        what = f"which prompts the run began with cannot be read: {error}"
        remedy = "remove it if you know that they are the same"
        yield Problem(what, str(folder / "journal" / "prompts_train"), remedy)


def others(
    subject: Subject, split: str, where: str, source: str, prompts: Sequence[Prompt]
) -> Iterator[Finding]:
    """What is other about prompts that were read from a file, where a run is resumed."""
    before = _before(subject, split)
    if before is not None and (what := PromptSet.of(source, prompts).differs_from(before)):
        yield _told(split, what, where, KEEP)


def functions_yield_the_same(subject: Subject) -> Iterator[Finding]:
    """A function whose code has changed: prompts that are skipped, and others trained twice.

    Of one that yields more than a thousand, the rollout actor finds out, before it issues any.
    """
    for target, fault in probe(tuple(_functions(subject)), LENGTHS_S, LENGTHS):
        yield _told(target.options["split"], fault.what, target.where, fault.remedy)


def _functions(subject: Subject) -> Iterator[Target]:
    data, evaluator = subject.topology.data, subject.topology.actors.evaluator
    if data is None:
        return
    asked = [("train", data.prompts, "$.data.prompts", FUNCTION_PROMPTS_MAX + 1)]
    if evaluator is not None and not evaluator.external:
        source = data.held_out_prompts or data.prompts
        asked.append(("held_out", source, "$.data.held_out_prompts", evaluator.prompts_max))
    for split, source, where, prompts_max in asked:
        before = _before(subject, split)
        if before is None or is_file(source) or before.num_prompts > FUNCTION_PROMPTS_MAX:
            continue
        options = {
            "split": split,
            "seed": subject.topology.run.seed,
            "options": data.options,
            "before": before,
            "prompts_max": prompts_max,
        }
        yield Target("kept", source, where, options)


def _before(subject: Subject, split: str) -> PromptSet | None:
    if not subject.resuming or subject.run_folder is None:
        return None
    try:
        return noted(subject.run_folder, split)
    except UNREADABLE:
        return None  # named by a check of its own


def _told(split: str, what: str, where: str, remedy: str) -> Finding:
    """Nothing is trained on the held-out ones, so others of them are for a person to judge."""
    if split == "train":
        return Problem(what, where, remedy)
    return Note(f"{what}; scores from now on are of other questions than those before", where)

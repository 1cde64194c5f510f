"""Which prompts a run has, in few bytes: noted at its beginning, compared in every later life.

A position of the run means a prompt only as long as the prompts are the same: with one more of them
every epoch has another order, so some would be trained twice and others never.

The note lies in RUN/journal/prompts_SPLIT. Nothing is in it of what the prompts say but a digest,
and it takes a microsecond for each prompt to make.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from milepost.actors.journal import read_records, replace_file
from milepost.actors.rollout.prompts import PromptError, is_file, resolve
from milepost.configs.read import home_of
from milepost.messages.shared import Prompt

OTHERS: Final = "the prompts are not those that the run began with"
KEEP: Final = (
    "put them back as they were (a function must yield the same for the same split, seed and "
    "options), or start a run of its own from the hf folder of its checkpoint"
)
"""What to do about others."""
FUNCTION_PROMPTS_MAX: Final = 1000
"""That a check asks a function for, which may take its time for each."""


class PromptsChanged(PromptError):
    """The run would go on with other prompts than those that it began with."""


class PromptSet(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of one split."""

    num_prompts: int
    digest: str
    """xxh3-64 hex of all of them in their source's order."""
    source: str
    """Where they were read from; a file with its whole path."""

    @classmethod
    def of(cls, source: str, prompts: Iterable[Prompt]) -> PromptSet:
        """Of these prompts.

        Raises:
            PromptError: one of them cannot be sent to anybody.
        """
        digest, packed, count = xxhash.xxh3_64(), bytearray(), 0
        for prompt in prompts:
            _pack(prompt, packed)
            digest.update(packed)
            count += 1
        place = str(Path(home_of(source)).absolute()) if is_file(source) else source
        return cls(num_prompts=count, digest=digest.hexdigest(), source=place)

    def __str__(self) -> str:
        """For people."""
        return f"{self.num_prompts} with digest {self.digest} from {self.source}"

    def differs_from(self, before: PromptSet) -> str:
        """What is other than before, in words; empty when they are the same prompts."""
        if (self.num_prompts, self.digest) == (before.num_prompts, before.digest):
            return ""
        return f"{OTHERS}: they were {before}, are {self}"


def noted(run_folder: Path, split: str) -> PromptSet | None:
    """What a run noted; None in a folder where nobody has, as runs of before do not.

    Raises:
        JournalDamaged, msgspec.MsgspecError, OSError: it cannot be read.
    """
    note = next(read_records(_path(run_folder, split)), None)
    return msgspec.json.decode(note, type=PromptSet) if note is not None else None


def note(run_folder: Path, split: str, prompts: PromptSet) -> None:
    """Write it down, in the place of what was noted; on disk when this returns."""
    replace_file(_path(run_folder, split), (msgspec.json.encode(prompts),))


def hold_to(run_folder: Path, split: str, prompts: PromptSet) -> None:
    """Note the prompts in the first life of a run, and refuse others in a later one.

    Raises:
        PromptsChanged: they are not those that the run began with.
        JournalDamaged, msgspec.MsgspecError, OSError: see `noted`.
    """
    before = noted(run_folder, split)
    if before is None:
        note(run_folder, split, prompts)
    elif what := prompts.differs_from(before):
        raise PromptsChanged(f"{what} at $.data.prompts, {KEEP}")


def function_differs(source: str, options: dict[str, Any]) -> str:
    """As `differs_from`, for a function that yielded `FUNCTION_PROMPTS_MAX` prompts at most.

    Args:
        source: the function.
        options: `split`, `seed` and `options` that it is called with; `before`, what was noted;
            `prompts_max`: more of them are not used.

    Raises:
        PromptError: no such function, or a prompt that cannot be sent.
    """
    before = msgspec.convert(options["before"], PromptSet)
    read = resolve(source)(options["split"], options["seed"], options["options"])
    count_max = min(options["prompts_max"], FUNCTION_PROMPTS_MAX + 1)
    now = PromptSet.of(source, islice(read, count_max))
    if now.num_prompts > FUNCTION_PROMPTS_MAX:
        return f"{OTHERS}: they were {before}, are more than {FUNCTION_PROMPTS_MAX} from {source}"
    return now.differs_from(before)


def _path(run_folder: Path, split: str) -> Path:
    return run_folder / "journal" / f"prompts_{split}"


# Keys in any order are the same object: a function may have made it of what has none.
_sorted: Final = msgspec.msgpack.Encoder(order="sorted")
_plain: Final = msgspec.msgpack.Encoder()


def _pack(prompt: Prompt, packed: bytearray) -> None:
    # Field by field: one that a later version adds changes nothing here.
    fields = (prompt.prompt_id, prompt.messages, prompt.label, prompt.metadata, prompt.tools)
    try:
        try:
            _sorted.encode_into(fields, packed)
        except TypeError:  # keys that are no strings have no order, and travel all the same
            _plain.encode_into(fields, packed)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        what = f"prompt {prompt.prompt_id!r} cannot be sent to anybody: {error}"
        raise PromptError(what) from error

"""The hidden directory, and the questions asked about it.

A directory holds 40 people. Each has three links to other people and three plain facts. A question
such as "What is the pet of the friend of kai?" takes one look-up for each link. Every directory is
drawn afresh from the prompt's seed, and ten of the people are never the subject of a training
question, so no answer can be learned by heart: only the way to find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Any

from msgspec import Struct, convert

from milepost.configs.seeds import derive_seed
from milepost.messages.shared import Prompt

# fmt: off
TRAINING_SUBJECTS = (
    "abe", "amy", "ava", "ben", "bob", "dan", "eli", "eva", "fay", "gus", "hal", "ian", "ida",
    "ivy", "jay", "jim", "joe", "joy", "kai", "kim", "leo", "liv", "lou", "lucy", "max", "meg",
    "mia", "ned", "nia", "noah",
)
# fmt: on
HELD_OUT_SUBJECTS = ("oli", "pam", "quin", "ray", "roy", "sue", "ted", "uma", "vic", "zoe")
PEOPLE = TRAINING_SUBJECTS + HELD_OUT_SUBJECTS
LINKS = ("friend", "boss", "neighbor")
FACTS = {
    "pet": ("cat", "dog", "owl", "fox", "hen", "bee", "yak", "emu"),
    "city": ("rome", "oslo", "lima", "bonn", "cairo", "delhi", "paris", "kyoto"),
    "color": ("red", "blue", "green", "pink", "gold", "gray", "black", "white"),
}
FIELDS = (*LINKS, *FACTS)
UNKNOWN = "unknown"
"""What the directory says to a name that is nobody's."""
VALUES = (*PEOPLE, *FIELDS, *(fact for facts in FACTS.values() for fact in facts), UNKNOWN)
HOPS_MAX = 3
DIRECTORIES_KEPT = 64
"""As many groups may be under way in one process."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look up one field of one person.",
            "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "field": {"type": "string", "enum": list(FIELDS)},
                },
                "required": ["name", "field"],
            },
        },
    }
]


class Sizes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many questions there are; every one has a directory of its own."""

    train: int = 1024
    held_out: int = 256


class Question(Struct, frozen=True, kw_only=True):
    """Metadata of a prompt: everything an episode needs to build its world."""

    directory_seed: int
    subject: str
    path: tuple[str, ...]
    """Fields to follow, in order: links, then one fact."""

    @property
    def text(self) -> str:
        """The question in words."""
        return f"What is the {' of the '.join(reversed(self.path))} of {self.subject}?"


class Directory:
    """The records that episodes look things up in; nothing of them changes."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self._records = {
            name: {link: _other(random, name) for link in LINKS}
            | {field: random.choice(facts) for field, facts in FACTS.items()}
            for name in PEOPLE
        }

    def lookup(self, name: str, field: str) -> str:
        """The value of a person's field, or `UNKNOWN` when there is no such person.

        Raises:
            KeyError: there is no such field.
        """
        if field not in FIELDS:
            raise KeyError(field)
        return self._records[name][field] if name in self._records else UNKNOWN

    def follow(self, question: Question) -> list[str]:
        """The values along the question's path; the last one is the answer."""
        values = [question.subject]
        for field in question.path:
            values.append(self.lookup(values[-1], field))
        return values[1:]


@lru_cache(maxsize=DIRECTORIES_KEPT)
def directory_of(seed: int) -> Directory:
    """The directory of this seed; the episodes of one group look things up in the same one."""
    return Directory(seed)


def _other(random: Random, name: str) -> str:
    while (other := random.choice(PEOPLE)) == name:
        pass
    return other


def draw_question(random: Random, subjects: tuple[str, ...], hops: int) -> Question:
    """A question of `hops` look-ups about a random subject, with a directory of its own."""
    path = (*(random.choice(LINKS) for _ in range(hops - 1)), random.choice(tuple(FACTS)))
    return Question(
        directory_seed=random.getrandbits(48), subject=random.choice(subjects), path=path
    )


def prompt_of(prompt_id: str, question: Question) -> Prompt:
    """The question as a prompt; its label is the right answer."""
    answer = Directory(question.directory_seed).follow(question)[-1]
    return Prompt(
        prompt_id=prompt_id,
        messages=[{"role": "user", "content": question.text}],
        label=answer,
        metadata={
            "directory_seed": question.directory_seed,
            "subject": question.subject,
            "path": list(question.path),
            "hops": len(question.path),
            "category": f"{len(question.path)} hop{'s' * (len(question.path) > 1)}",
        },
        tools=TOOLS,
    )


def question_of(prompt: Prompt) -> Question:
    """The question behind a prompt made by `prompt_of`.

    Raises:
        msgspec.ValidationError: the metadata are not a question's.
    """
    return convert(prompt.metadata, Question)


def prompts(split: str, seed: int, options: dict[str, Any]) -> Iterator[Prompt]:
    """The data source: questions about the split's people, one, two and three hops in turn.

    The held-out questions are the same for every seed, so that runs can be compared.

    Args:
        split: `train` or `held_out`.
        seed: of the training questions.
        options: `train` and `held_out`: how many questions each split has (1024, 256).

    Raises:
        ValueError: another split.
        msgspec.ValidationError: another option.
    """
    sizes = convert(options, Sizes)
    match split:
        case "train":
            return _prompts(split, seed, TRAINING_SUBJECTS, sizes.train)
        case "held_out":
            return _prompts(split, 0, HELD_OUT_SUBJECTS, sizes.held_out)
        case _:
            raise ValueError(f"split {split!r} does not exist: use train or held_out")


def _prompts(split: str, seed: int, subjects: tuple[str, ...], size: int) -> Iterator[Prompt]:
    random = Random(derive_seed(seed, "lookup", split))
    for number in range(size):
        question = draw_question(random, subjects, 1 + number % HOPS_MAX)
        yield prompt_of(f"{split}-{number}", question)

"""What happened to stored groups, as records of the buffer's second journal (RUN/journal/marks)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from milepost.messages.rollout import GroupDropped, GroupsTrained

GONE_MAX = 65_536
TRAINED = "trained"
LOST_AT_RESUME = "lost_at_resume"
"""Account of what was sampled after the checkpoint that a run went on from."""


class _Mark(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Handed(_Mark, frozen=True, kw_only=True):
    """These groups are the batch of `step`, trained on top of `version`."""

    step: int
    version: int
    groups: tuple[str, ...]
    tokens: int = 0
    """With loss, of all of them."""


class Spent(_Mark, frozen=True, kw_only=True):
    """These groups were trained; `version` came out of it."""

    step: int
    version: int
    groups: tuple[str, ...]
    tokens: int = 0
    """With loss, of all of them; 0 when the same is said again."""


class Gone(_Mark, frozen=True, kw_only=True):
    """The group will not be trained; see `GroupDropped` for what it says."""

    group: str
    reason: str
    retry: bool = False
    consumed: bool = False

    def word(self) -> GroupDropped:
        """What the rollout actor is told of it."""
        return GroupDropped(
            group_id=self.group, reason=self.reason, retry=self.retry, consumed=self.consumed
        )


class Accounted(_Mark, frozen=True, kw_only=True):
    """Sampled tokens ended in these accounts, since the last such mark; none of them is trained."""

    tokens: dict[str, int]


class Covered(_Mark, frozen=True, kw_only=True):
    """A checkpoint of `version` is complete."""

    version: int


class WentOn(_Mark, frozen=True, kw_only=True):
    """The run went on from the checkpoint of `version`: what was trained after it is void."""

    version: int


class Whole(_Mark, frozen=True, kw_only=True):
    """Everything that earlier marks said and that still matters."""

    num_spent_before: int
    trained: dict[str, int]
    gone: tuple[Gone, ...]
    handed: tuple[Handed, ...]
    checkpoints: tuple[int, ...]
    version: int
    tokens: dict[str, int] = {}
    trained_tokens: dict[int, int] = {}


Mark: TypeAlias = Handed | Spent | Gone | Accounted | Covered | WentOn | Whole

encode_mark = msgspec.json.encode
_decoder = msgspec.json.Decoder(Mark)


def decode_mark(data: bytes) -> Mark:
    """The inverse of `encode_mark`.

    Raises:
        msgspec.DecodeError: not a mark of this version.
    """
    return _decoder.decode(data)


@dataclass(slots=True)
class Fates:
    """What became of groups, by name; the sum of all marks so far."""

    checkpoints_named: int = 2
    num_spent_before: int = 0
    """Spent groups whose names are forgotten."""
    trained: dict[str, int] = field(default_factory=dict)
    """Group -> version that came out of it."""
    gone: dict[str, Gone] = field(default_factory=dict)
    """Group -> why it is; about the newest `GONE_MAX`."""
    handed: dict[int, Handed] = field(default_factory=dict)
    """Batches not trained yet, by step."""
    checkpoints: tuple[int, ...] = ()
    version: int = 0
    """Batches trained since the run began."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Account -> sampled tokens that ended there since the run began."""
    trained_tokens: dict[int, int] = field(default_factory=dict)
    """Version -> tokens trained for it, where a resume may still make them untrained."""

    @property
    def num_spent(self) -> int:
        """Groups trained, or refused at the trainer's door, since the run began."""
        return self.num_spent_before + len(self.trained)

    @property
    def accounts(self) -> dict[str, int]:
        """Account -> sampled tokens since the run began, `trained` among them."""
        pending = sum(self.trained_tokens.values())
        whole = self.tokens + Counter({TRAINED: pending} if pending else {})
        return {name: count for name, count in whole.items() if count}

    @property
    def oldest_checkpoint(self) -> int:
        """Version below which nothing will be asked for again; -1 without enough checkpoints."""
        full = len(self.checkpoints) >= self.checkpoints_named
        return self.checkpoints[0] if full else -1

    def knows(self, name: str) -> bool:
        """True for a group that has its fate."""
        return name in self.trained or name in self.gone

    def trained_word(self, name: str) -> GroupsTrained | None:
        """What the rollout actor is to be told of a trained group; None: it is not known as one."""
        if (version := self.trained.get(name)) is None:
            return None
        return GroupsTrained(group_ids=(name,), step=max(0, version - 1), version=version)

    def apply_all(self, marks: Iterable[Mark]) -> None:
        """Apply marks in order."""
        for mark in marks:
            self.apply(mark)

    def apply(self, mark: Mark) -> None:
        """One more mark."""
        match mark:
            case Handed():
                self.handed[mark.step] = mark
            case Spent():
                self.handed.pop(mark.step, None)
                self.trained.update(dict.fromkeys(mark.groups, mark.version))
                self.version = max(self.version, mark.version)
                if mark.tokens:
                    self.trained_tokens[mark.version] = mark.tokens
            case Accounted():
                self.tokens.update(mark.tokens)
            case Gone():
                # Who cannot know that it was heard says it again: the first word is the one told.
                if mark.group not in self.gone:
                    self.num_spent_before += mark.consumed
                    self.gone[mark.group] = mark
            case Covered():
                if mark.version not in self.checkpoints:
                    self.checkpoints = (*self.checkpoints, mark.version)[-self.checkpoints_named :]
            case WentOn():
                self.trained = {k: v for k, v in self.trained.items() if v <= mark.version}
                # The checkpoint of version v is there, so every batch on top of an older one was
                # trained, whether or not word of it was written down here.
                for each in self.handed.values():
                    if each.version < mark.version:
                        self.trained.update(dict.fromkeys(each.groups, each.version + 1))
                        self.trained_tokens[each.version + 1] = each.tokens
                self.checkpoints = tuple(at for at in self.checkpoints if at <= mark.version)
                self.handed.clear()
                self.version = mark.version
                # What was trained after it waits in the journal once more.
                kept = {at: n for at, n in self.trained_tokens.items() if at <= mark.version}
                self.trained_tokens = kept
            case Whole():
                self.num_spent_before = mark.num_spent_before
                self.trained = dict(mark.trained)
                self.gone = {each.group: each for each in mark.gone}
                self.handed = {each.step: each for each in mark.handed}
                self.checkpoints = mark.checkpoints
                self.version = mark.version
                self.tokens = Counter(mark.tokens)
                self.trained_tokens = dict(mark.trained_tokens)

    def forget(self, keep: Collection[str] = ()) -> None:
        """Drop the names that no resume can ask for, but for those in `keep`.

        A journal keeps a name for as long as the group itself is in one of its files: a group
        without a fate is one that waits to be trained.
        """
        oldest = self.oldest_checkpoint
        forgotten = [n for n, at in self.trained.items() if at <= oldest and n not in keep]
        for name in forgotten:
            del self.trained[name]
        self.num_spent_before += len(forgotten)
        for version in [at for at in self.trained_tokens if at <= oldest]:
            self.tokens[TRAINED] += self.trained_tokens.pop(version)
        excess = len(self.gone) - GONE_MAX
        for name in [name for name in self.gone if name not in keep][: max(0, excess)]:
            del self.gone[name]

    def anew(self, num_held: int) -> Whole:
        """The mark of a run that begins again: nothing has a fate, and what was trained is lost.

        Args:
            num_held: tokens of the groups that waited to be trained; they are lost, too.
        """
        tokens = Counter(self.accounts)
        tokens[LOST_AT_RESUME] += tokens.pop(TRAINED, 0) + num_held
        told = {name: count for name, count in tokens.items() if count}
        return Fates(self.checkpoints_named, tokens=Counter(told)).whole()

    def whole(self) -> Whole:
        """All of it as one mark."""
        return Whole(
            num_spent_before=self.num_spent_before,
            trained=dict(self.trained),
            gone=tuple(self.gone.values()),
            handed=tuple(self.handed.values()),
            checkpoints=self.checkpoints,
            version=self.version,
            tokens=dict(self.tokens),
            trained_tokens=dict(self.trained_tokens),
        )

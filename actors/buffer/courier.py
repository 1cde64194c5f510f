"""What the buffer tells the rollout actor, and how it makes sure that it was heard.

Single words (credits, fates of groups) are told once. When one of them is not taken, the whole
state is told again (`StoreRecovered`), from which every fate follows; the names of trained groups
are kept until word of them was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from milepost.actors.buffer.marks import Fates
from milepost.actors.buffer.writing import Writing
from milepost.actors.effects import Effect, Tell
from milepost.messages.rollout import GroupDropped, GroupsTrained, StoreRecovered

INTRODUCTION = "introduction"


@dataclass(slots=True)
class Courier:
    """See the module.

    Attributes:
        recovered: makes the whole state as one message.
    """

    recovered: Callable[[], StoreRecovered]
    _unheard: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Key of an untaken message -> trained groups it tells of."""
    _spent: set[str] = field(default_factory=set)
    """Groups dropped with their credit since the state was last told: its count has them not."""
    _is_introducing: bool = False
    _missed: bool = False
    _serial: int = 0

    def introduce(self) -> list[Effect]:
        """Tell the whole state."""
        message = self.recovered()
        self._is_introducing, self._missed = True, False
        self._serial += 1
        key = f"{INTRODUCTION}/{self._serial}"
        self._unheard = {key: tuple(message.trained)}
        self._spent.clear()
        return [Tell("rollout", message, key, confirm=True)]

    def trained(self, message: GroupsTrained) -> Effect:
        """Tell which groups were trained."""
        self._serial += 1
        key = f"trained/{self._serial}"
        self._unheard[key] = message.group_ids
        return Tell("rollout", message, key, confirm=True)

    def spent(self, name: str) -> None:
        """This group was dropped just now, with its credit."""
        self._spent.add(name)

    def fate(self, name: str, fates: Fates, writing: Writing) -> list[Effect]:
        """Say again what became of a group, to who may have missed it.

        Nothing while the journal does not know it: its first word is on the way.
        """
        if writing.is_unwritten(name):
            return []
        if trained := fates.trained_word(name):
            return [self.trained(trained)]
        gone = fates.gone.get(name)
        return self.settled([Tell("rollout", gone.word())]) if gone else []

    def settled(self, effects: list[Effect]) -> list[Effect]:
        """The same, without credits that the last `StoreRecovered` counted as spent already."""
        return [self._settled(effect) for effect in effects]

    def _settled(self, effect: Effect) -> Effect:
        match effect:
            case Tell(_, GroupDropped(group_id=name, consumed=True) as message):
                counted = name not in self._spent
                return replace(effect, message=replace(message, consumed=not counted))
            case _:
                return effect

    def forget(self, gone: Container[str]) -> None:
        """Drop names that are forgotten elsewhere: nobody asks for them any more."""
        self._spent = {name for name in self._spent if name in gone}

    def taken(self, key: str) -> bool:
        """The rollout actor has this. True when it missed something since: introduce again."""
        if key not in self._unheard:
            return False
        del self._unheard[key]
        if not key.startswith(INTRODUCTION):
            return False
        self._is_introducing = False
        return self._missed

    def missed(self, key: str) -> bool:
        """Something was not taken. True: introduce again now."""
        is_introduction = key.startswith(INTRODUCTION) and key in self._unheard
        if self._is_introducing and not is_introduction:
            self._missed = True
            return False
        return True

    def unheard(self) -> Iterable[str]:
        """Trained groups that the rollout actor may not know of yet."""
        return (name for names in self._unheard.values() for name in names)

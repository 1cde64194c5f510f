"""Versions that are written to a disk before engines hear of them: works that take long."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unit.publisher.kit import Play

from milepost.actors.effects import Effect, Work, WorkDone
from milepost.actors.publisher.settings import PublisherSettings
from milepost.actors.publisher.works import VersionWritten, WriteVersion
from milepost.messages.engine import EpochAnswer, PullVersion
from milepost.messages.shared import Message
from milepost.messages.trainer import VersionFailed

WRITTEN = VersionWritten(density=0.1, file_bytes=10, cpu_s=0.1)


@dataclass
class DiskPlay(Play):
    """What is to be written waits."""

    works: list[Work] = field(default_factory=list)

    @property
    def settings(self) -> PublisherSettings:
        return replace(super().settings, transport="disk-delta")

    def carry_out(self, effects: list[Effect]) -> None:
        works = [each for each in effects if isinstance(each, Work)]
        known = [each.key for each in self.works]
        assert not [each for each in works if each.key in known], f"being done already: {works}"
        self.works += works
        super().carry_out([each for each in effects if not isinstance(each, Work)])

    def written(self) -> None:
        """The oldest work ends."""
        work = self.works.pop(0)
        self.feed(WorkDone(work.key, WRITTEN if isinstance(work, WriteVersion) else None))

    def _good(self, engine: str, message: Message) -> Message:
        if isinstance(message, PullVersion):
            return EpochAnswer(version=message.version, ok=True)
        return super()._good(engine, message)


def test_a_version_that_comes_again_while_it_is_still_written_is_written_once_more() -> None:
    """The disk is slower than every try: the same work ordered twice would end the publisher, and
    word of the first write is none of the second."""
    play = DiskPlay()
    play.announce(0)
    play.written()
    play.answer_all()
    play.announce(1)
    for _ in range(3):
        play.answer_all()
        play.wake("deadline/1")
        if "begin" in play.wakes:
            play.wake("begin")
    assert [each.version for each in play.take(VersionFailed)] == [1]
    play.announce(1)
    play.answer_all()
    assert [type(each) for each in play.works[-2:]] == [WriteVersion, WriteVersion]
    while len(play.works) > 1:
        play.written()
    play.answer_all()
    assert play.published() == [0], "what is on the disk now is not known"
    play.written()
    play.answer_all()
    assert play.published() == [1]

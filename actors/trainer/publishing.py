"""Which version is on its way to the engines, and which one they serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from milepost.actors.effects import Effect, Fail, Reply, Request, Tell, Wake, WorkDone
from milepost.actors.trainer.lineage import MadeVersions
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.ranks import Ranks
from milepost.actors.trainer.works import (
    Exported,
    ExportVersion,
    KeepMemory,
    ReadBack,
    SendBuckets,
)
from milepost.messages.trainer import (
    KeepVersions,
    RankOrder,
    SendBytes,
    SendVersion,
    VersionFailed,
    VersionPublished,
    VersionSent,
)

FAILURES_MAX: Final = 3
"""Publications that may fail in a row; the publisher has tried each of them several times."""
PublisherWord: TypeAlias = VersionPublished | VersionFailed | SendVersion | SendBytes | KeepVersions
KEEP: Final = "keep/"
"""Keys of works that let go of memory begin with it; a second may be ordered while one goes on."""


@dataclass(slots=True)
class Publishing:
    """At most one version is on its way.

    A version that becomes due meanwhile waits, and a later one takes its place: engines want the
    newest, not every one. Without a publisher nothing is ever owed.

    Attributes:
        made: versions that were exported or published, for the door.
        pending: exported, or being exported, and not confirmed.
        published: newest version all engines confirmed; None before the first.
        owed: the present version is due as soon as the pending one has ended.
    """

    plan: TrainerPlan
    ranks: Ranks
    made: MadeVersions
    pending: int | None = None
    published: int | None = None
    published_final: bool = False
    owed: bool = False
    failures: int = 0
    last_reason: str = ""
    _exporting: set[int] = field(default_factory=set)
    """Versions of which the export goes on: nobody has heard of these exports yet."""
    _since_s: float = 0.0
    _tells: int = 0
    _sends: dict[str, tuple[Request, int]] = field(default_factory=dict)
    """Versions being sent once more: who asked for it, and which."""
    _keeps: int = 0

    @property
    def settled(self) -> bool:
        """Nothing is on its way, and nothing is due."""
        return self.pending is None and not (self.owed and self.plan.publisher)

    def begin_owed(self, version: int, *, final: bool, now_s: float) -> list[Effect]:
        """Export the present version, if one is owed and none is on its way."""
        if not self.plan.publisher or not self.owed or self.pending is not None:
            return []
        if version in self._exporting:
            return []  # as soon as that has ended
        if self.failures >= FAILURES_MAX:
            return [Fail(f"{self.failures} publications failed, the last: {self.last_reason}")]
        self.pending, self.owed, self._since_s = version, False, now_s
        self._exporting.add(version)
        self._tells += 1
        work = ExportVersion(f"export/{version}", version, final, self.published)
        return [
            *self.ranks.order(RankOrder.EXPORT, version, final=final, work=work),
            Wake("publish-late", now_s + self.plan.publish_s),
        ]

    def send(self, exported: Exported) -> list[Effect]:
        """The export is done: the publisher gets it."""
        ready = exported.ready
        assert ready is not None, "rank 0 exports whole versions"
        self._exporting.discard(ready.version)
        self.made.learn(ready.version, ready.digest)
        messages = (ready, *exported.buckets)
        return [Tell(self.plan.publisher, message, self._key) for message in messages]

    def heard(self, message: PublisherWord, request: Request | None) -> list[Effect]:
        """A word of the publisher's."""
        match message:
            case VersionPublished():
                self.made.learn(message.version, message.digest)
                self.confirmed(message.version, final=message.final)
            case VersionFailed():
                self.failed(message.version, message.reason)
            case SendVersion(version=version, group=group):
                assert request is not None
                key = f"send/{group}"
                self._sends[key] = (request, version)
                return [SendBuckets(key, version, group, message.world_size, message.deadline_s)]
            case SendBytes(version=version):
                assert request is not None
                key = f"read/{version}/{request.message_id}"
                self._sends[key] = (request, version)
                return [ReadBack(key, version)]
            case KeepVersions(versions=versions, announced=announced):
                self._keeps += 1
                return [KeepMemory(f"{KEEP}{self._keeps}", versions, announced)]
        return []

    def owns(self, key: str) -> bool:
        """The key is of something that the publisher asked for."""
        return key.startswith(KEEP) or key in self._sends

    def sent(self, event: WorkDone) -> list[Effect]:
        """It has ended, well or not; that a version was not sent is the publisher's to judge."""
        if event.key.startswith(KEEP):
            return [Fail(f"memory of old versions is lost: {event.error}")] if event.error else []
        request, version = self._sends.pop(event.key)
        buckets = event.result if isinstance(event.result, tuple) else ()
        word = VersionSent(version=version, ok=not event.error, reason=event.error)
        return [*(Tell(self.plan.publisher, bucket) for bucket in buckets), Reply(request, word)]

    @property
    def _key(self) -> str:
        return f"publish/{self._tells}"

    def not_taken(self, key: str, reason: str) -> None:
        """The publisher did not take a part of what was sent last."""
        if key == self._key and self.pending is not None:
            self.failed(self.pending, reason)

    def confirmed(self, version: int, *, final: bool) -> None:
        """All engines serve `version`."""
        if self.published is None or version > self.published:
            self.published = version
        self.published_final = self.published_final or final
        if self.pending is not None and version >= self.pending:
            self.pending = None
            self.failures = 0

    def failed(self, version: int, reason: str) -> None:
        """The publication of `version` came to nothing; the present one is due instead."""
        if version != self.pending or version in self._exporting:
            return
        self.pending, self.owed = None, True
        self.failures += 1
        self.last_reason = reason

    def lost(self) -> None:
        """The publisher restarted and has forgotten what it was told.

        A version that is being exported it was not told: its next life gets it when it is made.
        """
        if self.pending not in self._exporting:
            self.pending, self.owed = None, True

    def late(self, now_s: float) -> list[Effect]:
        """The deadline of a publication has come; is it over?"""
        if self.pending is None or now_s < self._since_s + self.plan.publish_s:
            return []
        return [Fail(self.waits())]

    def say_final(self, version: int) -> list[Effect]:
        """The work ended early on a version published before: say that none will follow."""
        if self.published != version or self.published_final or not self.settled:
            return []
        self.published_final = True
        return [word for name in self.plan.final_listeners for word in self.say_final_to(name)]

    def say_final_to(self, name: str) -> list[Effect]:
        """Say it to this one, perhaps once more: the publisher may know of no last version."""
        if self.published is None or not self.published_final:
            return []
        return [Tell(name, VersionPublished(version=self.published, final=True))]

    def waits(self) -> str:
        """The wait for the publication, with its deadline."""
        return (
            f"waits for {self.plan.publisher} to publish version {self.pending} since "
            f"{self._since_s:.1f}, deadline {self.plan.publish_s:.0f} s"
        )

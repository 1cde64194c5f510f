"""Versions that lie on the trainer's GPU: who copies them there, who gets bytes, what is kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unit.publisher.kit import BUCKETS, FleetPlay, Play

from milepost.actors.effects import Answered, Ask, Received, Unanswered
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.settings import PublisherSettings
from milepost.messages.bulk import Bulk
from milepost.messages.engine import (
    ActivateEpoch,
    CopyBucket,
    DeviceMemory,
    EpochAnswer,
    PrepareEpoch,
    TensorSpec,
    WeightBucket,
)
from milepost.messages.publisher import BucketReady, EngineReady, ReleaseVersion, VersionReady
from milepost.messages.shared import Message
from milepost.messages.supervisor import PeerRestarted, StepRecorded
from milepost.messages.trainer import (
    KeepVersions,
    SendBytes,
    VersionFailed,
    VersionPublished,
    VersionSent,
)

HERE, THERE = "GPU-0", "GPU-1"
TENSORS = tuple(TensorSpec(name=name, dtype="uint8", shape=(4,)) for name in "ab")
TRAINER = "trainer-0"


def memory_of(version: int) -> DeviceMemory:
    """Two allocations that take turns."""
    return DeviceMemory(device=HERE, handle=bytes([version % 2]) * 64, num_bytes=512)


@dataclass
class Handles(Play):
    """Each engine says on which GPU it copies; empty: it takes bytes only."""

    gpus: dict[str, str] = field(default_factory=dict)
    cuda_ipc: str = "auto"

    @property
    def settings(self) -> PublisherSettings:
        return replace(super().settings, cuda_ipc=self.cuda_ipc)

    def announce(self, version: int, *, final: bool = False, buckets: int = BUCKETS) -> None:
        self.hear(ready(version, final=final))
        for index in range(buckets):
            self.hear(bare(version, index))

    def _good(self, engine: str, message: Message) -> Message:
        match message:
            case PrepareEpoch():
                device = self.gpus.get(engine, HERE)
                return EpochAnswer(version=message.version, ok=True, device=device)
            case CopyBucket():
                return EpochAnswer(version=message.version, ok=True)
            case SendBytes():
                raise AssertionError("bytes are wanted that nobody expects")
            case _:
                return super()._good(engine, message)

    def bring(self, version: int) -> None:
        self.announce(version)
        self.answer_all()

    def open(self, kind: type[Message]) -> list[Ask]:
        return [ask for ask in self.asked.values() if isinstance(ask.message, kind)]

    def answer_all_but_bytes(self) -> None:
        """Every engine answers everything; the trainer does not."""
        while engines := [ask.to for ask in self.asked.values() if ask.to != TRAINER]:
            self.answer(engines[0])

    def give_bytes(self) -> None:
        """The trainer does as it was asked."""
        (asked,) = self.open(SendBytes)
        assert isinstance(asked.message, SendBytes)
        assert asked.to == TRAINER
        for index in range(BUCKETS):
            self.hear(full(asked.message.version, index))
        del self.asked[asked.key]
        sent = VersionSent(version=asked.message.version, ok=True)
        self.feed(Answered(asked.key, TRAINER, sent))


def ready(version: int, *, final: bool = False) -> VersionReady:
    return VersionReady(
        version=version,
        tensors=TENSORS,
        num_buckets=BUCKETS,
        digest=f"digest of {version}",
        final=final,
        memory=memory_of(version),
    )


def bare(version: int, index: int) -> BucketReady:
    names = (TENSORS[index].name,)
    return BucketReady(
        version=version, index=index, names=names, tensors=(), offsets=(256 * index,)
    )


def full(version: int, index: int) -> BucketReady:
    bulk = Bulk("uint8", (4,), bytes([version] * 4))
    return BucketReady(version=version, index=index, names=(TENSORS[index].name,), tensors=(bulk,))


def test_engines_on_the_trainers_gpu_are_told_where_each_tensor_lies() -> None:
    play = Handles()
    play.announce(0)
    for engine in play.engines:
        play.answer(engine)
    for index in range(BUCKETS):
        for ask in play.open(CopyBucket):
            expected = CopyBucket(
                version=0,
                index=index,
                names=(TENSORS[index].name,),
                offsets=(256 * index,),
                memory=memory_of(0),
            )
            assert ask.message == expected
        for engine in play.engines:
            play.answer(engine)
    play.answer_all()
    assert play.published() == [0]
    (recorded,) = play.take(StepRecorded)
    assert recorded.metrics["perf/update_weights_cuda_ipc_bytes"] == 2 * 8
    assert recorded.metrics["perf/update_weights_wire_bytes"] == 0


def test_an_engine_on_another_gpu_gets_bytes_that_are_asked_for_once() -> None:
    gpus = {"engine-0": THERE, "engine-1": "", "engine-2": HERE}
    play = Handles(engines=tuple(gpus), gpus=gpus)
    play.announce(0)
    for engine in play.engines:
        play.answer(engine)
    assert play.waiting(CopyBucket) == ["engine-2"]
    assert [ask.message for ask in play.open(SendBytes)] == [SendBytes(version=0)]
    play.give_bytes()
    assert sorted(play.waiting(WeightBucket)) == ["engine-0", "engine-1"]
    play.answer_all()
    assert play.published() == [0]
    (recorded,) = play.take(StepRecorded)
    assert recorded.metrics["perf/update_weights_cuda_ipc_bytes"] == 8
    assert recorded.metrics["perf/update_weights_wire_bytes"] == 2 * 8


def test_names_that_are_said_again_take_no_bytes_away() -> None:
    play = Handles(engines=("engine-0",), gpus={"engine-0": ""})
    play.announce(0)
    play.answer("engine-0")
    play.give_bytes()
    play.hear(bare(0, 1))
    play.answer_all()
    assert play.published() == [0]


def test_an_engine_that_cannot_open_a_handle_gets_bytes_and_somebody_is_told() -> None:
    """Two containers of one host may hide memory from each other; the version is not at fault."""
    play = Handles(engines=("engine-0",))
    play.announce(0)
    play.answer("engine-0")
    play.answer("engine-0", EpochAnswer(version=0, ok=False, reason="cannot be opened"))
    assert play.events() == ["cuda_ipc"]
    assert play.waiting(PrepareEpoch) == ["engine-0"], "the refusal ended its epoch"
    play.answer("engine-0")
    play.give_bytes()
    play.answer_all()
    assert play.published() == [0]
    play.announce(1)
    play.answer("engine-0")
    play.give_bytes()
    play.answer_all()
    assert play.published() == [1], "it is not tried again"
    assert play.events() == []
    play.hear(EngineReady(engine="engine-0"), "engine-0")
    play.answer("engine-0")
    assert play.waiting(WeightBucket) == ["engine-0"], "the process is the same"
    play.feed(Received("supervisor", PeerRestarted(actor="engine-0", incarnation=1)))
    play.asked.clear()
    play.hear(EngineReady(engine="engine-0"), "engine-0")
    play.answer("engine-0")
    assert play.waiting(CopyBucket) == ["engine-0"], "its next life is asked anew"


def test_an_engine_that_died_and_came_back_is_tried_by_handle_again() -> None:
    play = Handles(engines=("engine-0",))
    play.bring(0)
    play.announce(1)
    play.answer("engine-0")
    play.silence("engine-0")
    play.hear(EngineReady(engine="engine-0"), "engine-0")
    play.answer("engine-0")
    (copies,) = play.open(CopyBucket)
    assert isinstance(copies.message, CopyBucket)
    assert copies.message.memory == memory_of(0), "first the version that is served"
    play.answer_all()
    assert play.serving == {"engine-0": 1}


def test_always_means_that_an_engine_which_cannot_ends_the_run() -> None:
    for gpus, said in (
        ({"engine-0": THERE}, f"engine-0 works on GPU {THERE}"),
        ({"engine-0": ""}, "engine-0 opens no handles"),
    ):
        play = Handles(engines=("engine-0",), gpus=gpus, cuda_ipc="always")
        play.announce(0)
        play.answer("engine-0")
        assert said in play.failed
        assert HERE in play.failed
    play = Handles(engines=("engine-0",), cuda_ipc="always")
    play.announce(0)
    play.answer("engine-0")
    play.answer("engine-0", EpochAnswer(version=0, ok=False, reason="cannot be opened"))
    play.answer("engine-0")
    assert "engine-0 works on GPU GPU-0 and refused one" in play.failed


def test_the_trainer_keeps_what_is_served_and_what_is_on_its_way() -> None:
    """And hears of it before it hears that it may export the next one."""
    play = Handles()
    play.bring(0)
    play.said.clear()
    play.announce(1)
    assert play.take(KeepVersions) == [KeepVersions(versions=(0, 1), announced=1)]
    play.answer_all()
    words = [type(word) for word in play.said if isinstance(word, KeepVersions | VersionPublished)]
    assert words == [KeepVersions, VersionPublished]
    assert play.take(KeepVersions) == [KeepVersions(versions=(1,), announced=1)]


def test_a_version_that_failed_is_kept_while_it_is_tried_and_no_longer() -> None:
    play = Handles(engines=("engine-0",))
    play.bring(0)
    play.announce(1)
    play.take(KeepVersions)
    for _ in range(3):
        assert play.take(KeepVersions) == []
        play.answer("engine-0")
        for _ in range(BUCKETS):
            play.answer("engine-0")
        assert play.waiting(ActivateEpoch) == ["engine-0"]
        play.answer("engine-0", EpochAnswer(version=1, ok=False, reason="another digest"))
        if "begin" in play.wakes:
            play.wake("begin")
    assert len(play.take(VersionFailed)) == 1
    assert play.take(KeepVersions) == [KeepVersions(versions=(0,), announced=1)]


def test_an_engine_still_on_its_way_to_an_older_version_keeps_it() -> None:
    """It came back late; the version it is brought to may be published over meanwhile."""
    play = Handles()
    play.bring(0)
    play.hear(EngineReady(engine="engine-1"), "engine-1")
    play.announce(1)
    play.answer("engine-1")
    assert play.waiting(CopyBucket) == ["engine-1"]
    kept = play.take(KeepVersions)
    assert kept[-1] == KeepVersions(versions=(0, 1), announced=1)


def test_bytes_that_do_not_come_fail_the_version_by_name() -> None:
    play = Handles(engines=("engine-0",), gpus={"engine-0": ""})
    play.announce(0)
    play.answer("engine-0")
    (asked,) = play.open(SendBytes)
    del play.asked[asked.key]
    sent = VersionSent(version=0, ok=False, reason="the GPU failed")
    play.feed(Answered(asked.key, TRAINER, sent))
    assert play.events() == ["epoch_failed"]
    play.wake("begin")
    play.answer_all_but_bytes()
    play.give_bytes()
    play.answer_all()
    assert play.published() == [0], "it is asked again, and this time it has them"


def test_a_silent_trainer_is_no_endless_wait_for_an_engine_that_catches_up() -> None:
    play = Handles(engines=("engine-0",))
    play.bring(0)
    play.gpus = {"engine-0": ""}
    play.hear(EngineReady(engine="engine-0"), "engine-0")
    play.answer_all_but_bytes()
    (asked,) = play.open(SendBytes)
    del play.asked[asked.key]
    play.feed(Unanswered(asked.key, TRAINER, "no answer"))
    assert play.events() == ["engine_silent"]
    play.wake("again/engine-0")
    play.answer_all_but_bytes()
    play.give_bytes()
    play.answer_all()
    assert play.serving == {"engine-0": 0}


@dataclass
class FleetHandles(FleetPlay, Handles):
    """The same with one engine of the evaluator's own."""

    def make(self) -> Publisher:
        return FleetPlay.make(self)  # type: ignore[return-value]


def test_a_version_that_is_being_measured_is_kept_for_the_evaluators_engines() -> None:
    """They are held on it while others are published, and may have to load it once more."""
    play = FleetHandles()
    play.bring(0)
    play.hold_fleet()
    play.answer_all()
    assert play.serving["evaluation_engine-0"] == 0
    play.take(KeepVersions)
    for version in (1, 2):
        play.bring(version)
    assert play.take(KeepVersions)[-1] == KeepVersions(versions=(0, 2), announced=2)
    play.gpus = {"evaluation_engine-0": THERE}
    play.back("evaluation_engine-0")
    play.answer_all_but_bytes()
    assert [ask.message for ask in play.open(SendBytes)] == [SendBytes(version=0)]
    play.give_bytes()
    play.answer_all()
    assert play.serving["evaluation_engine-0"] == 0
    play.hear(ReleaseVersion(holder="evaluator", fleet=True), "evaluator")
    play.bring(3)
    assert play.take(KeepVersions)[-1] == KeepVersions(versions=(3,), announced=3)

"""Weight epochs at the engine's door: whole, right and proven, or the old version serves."""

from __future__ import annotations

import math
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.effects import Effect, Reply, Request, Tell
from milepost.actors.engine.epochs import Epochs
from milepost.actors.engine.interface import (
    CopyWeights,
    DropEpoch,
    OpenEpoch,
    StageBucket,
    Switched,
    SwitchWeights,
)
from milepost.messages.bulk import ITEM_BYTES, Bulk
from milepost.messages.engine import (
    AbortEpoch,
    ActivateEpoch,
    CopyBucket,
    DeviceMemory,
    EpochAnswer,
    EpochConfirmed,
    PauseMode,
    PrepareEpoch,
    TensorSpec,
    WeightBucket,
)
from milepost.messages.shared import VersionSpan, WeightsUsed

MANIFEST = (
    TensorSpec(name="a", dtype="float32", shape=(2, 3)),
    TensorSpec(name="b", dtype="float32", shape=(4,)),
    TensorSpec(name="c", dtype="float32", shape=(1, 2)),
)


Asked: TypeAlias = PrepareEpoch | WeightBucket | CopyBucket | ActivateEpoch | AbortEpoch


class Asker:
    """A publisher in small: asks, carries works out, and reads the answers."""

    def __init__(self, gpu: str = "") -> None:
        self.epochs = Epochs("engine-0", MANIFEST, gpu)
        self.works: list[Effect] = []
        self.said: list[Tell] = []
        self.answers: dict[int, EpochAnswer | EpochConfirmed] = {}
        self._num_asked = 0

    def ask(self, message: Asked) -> EpochAnswer | EpochConfirmed | None:
        self._num_asked += 1
        request = Request("publisher", self._num_asked)
        match message:
            case PrepareEpoch():
                effects = self.epochs.prepare(message, request)
            case WeightBucket():
                effects = self.epochs.bucket(message, request)
            case CopyBucket():
                effects = self.epochs.copy(message, request)
            case ActivateEpoch():
                effects = self.epochs.activate(message, request)
            case AbortEpoch():
                effects = self.epochs.abort(message, request)
        self._take(effects)
        return self.answers.get(self._num_asked)

    def work(self, error: str = "") -> None:
        """Carry out the oldest work."""
        work = self.works.pop(0)
        result = Switched(0.25, 3) if isinstance(work, SwitchWeights) and not error else None
        assert isinstance(work, OpenEpoch | StageBucket | CopyWeights | SwitchWeights | DropEpoch)
        self._take(self.epochs.done(work.key, result, error))

    def told(self, message: Asked) -> str:
        """Ask, work, and return the reason of the refusal; empty when it was not refused."""
        answer = self.ask(message)
        while answer is None:
            self.work()
            answer = self.answers.get(self._num_asked)
        return answer.reason if isinstance(answer, EpochAnswer) else ""

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert isinstance(effect.message, EpochAnswer | EpochConfirmed)
                assert effect.request.message_id not in self.answers, "answered twice"
                self.answers[effect.request.message_id] = effect.message
            elif isinstance(effect, Tell):
                self.said.append(effect)
            else:
                self.works.append(effect)
        self.epochs.validate()


def bulk(dtype: str, shape: tuple[int, ...]) -> Bulk:
    return Bulk(dtype, shape, bytes(math.prod(shape) * ITEM_BYTES[dtype]))


def prepare(
    version: int = 1, tensors: tuple[TensorSpec, ...] = MANIFEST, buckets: int = 2
) -> PrepareEpoch:
    return PrepareEpoch(version=version, tensors=tensors, num_buckets=buckets)


def bucket(index: int, *names: str, version: int = 1) -> WeightBucket:
    shapes = {spec.name: spec.shape for spec in MANIFEST}
    tensors = tuple(bulk("float32", shapes.get(name, (1,))) for name in names)
    return WeightBucket(version=version, index=index, names=names, tensors=tensors)


def activate(version: int = 1) -> ActivateEpoch:
    return ActivateEpoch(version=version, mode=PauseMode.RETRACT, digest="d")


def moved() -> Asker:
    """Everything of version 1 has come and is copied."""
    asker = Asker()
    for message in (prepare(), bucket(0, "a", "b"), bucket(1, "c")):
        assert asker.told(message) == ""
    return asker


def test_an_epoch_goes_through_when_everything_is_right() -> None:
    """PREPARE, MOVE, ACTIVATE, CONFIRM, each answered when its work is done, not before."""
    asker = Asker()
    assert asker.ask(prepare()) is None
    assert isinstance(asker.works[0], OpenEpoch)
    asker.work()
    assert asker.told(bucket(1, "c")) == ""
    assert asker.told(bucket(0, "b", "a")) == ""
    assert "serves no version" in str(asker.epochs)
    assert asker.ask(activate()) is None
    assert asker.epochs.is_switching
    asker.work()
    confirmed = list(asker.answers.values())[-1]
    assert confirmed == EpochConfirmed(version=1, digest="d", pause_s=0.25, num_in_flight=3)
    assert asker.epochs.version == 1
    assert str(asker.epochs) == "serves version 1"


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (MANIFEST[:2], "tensors this model needs and the epoch lacks: c"),
        ((*MANIFEST, TensorSpec(name="x", dtype="float32", shape=())), "does not have: x"),
        ((*MANIFEST, MANIFEST[0]), "tensors named twice: a"),
        (
            (*MANIFEST[:2], TensorSpec(name="c", dtype="float32", shape=(2, 1))),
            "c is float32 (2, 1), the model has float32 (1, 2)",
        ),
        (
            (*MANIFEST[:2], TensorSpec(name="c", dtype="bfloat16", shape=(1, 2))),
            "c is bfloat16 (1, 2), the model has float32 (1, 2)",
        ),
    ],
)
def test_an_epoch_of_another_model_is_refused_at_its_announcement(
    tensors: tuple[TensorSpec, ...], reason: str
) -> None:
    """Both directions, before a byte moves: nothing may stay at an older version unnoticed."""
    asker = Asker()
    assert reason in asker.told(prepare(tensors=tensors))
    assert asker.works == []
    assert "no epoch is open" in asker.told(bucket(0, "a"))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (bucket(0, "a", version=2), "the open epoch is version 1, not 2"),
        (bucket(2, "a"), "bucket 2 of 2"),
        (bucket(0, "c"), "bucket 0 came twice"),
        (bucket(1, "c", "b"), "tensor b came twice"),
        (bucket(1, "c", "c"), "tensor c came twice"),
        (bucket(1, "x"), "tensor x was not announced"),
        (
            WeightBucket(version=1, index=1, names=("c",), tensors=(bulk("float32", (2, 1)),)),
            "c is Bulk(float32, (2, 1), 8 bytes), announced as float32 (1, 2)",
        ),
        (
            WeightBucket(version=1, index=1, names=("c",), tensors=(bulk("int32", (1, 2)),)),
            "c is Bulk(int32, (1, 2), 8 bytes), announced as float32 (1, 2)",
        ),
        (WeightBucket(version=1, index=1, names=("c",), tensors=()), "1 names for 0 tensors"),
    ],
)
def test_a_wrong_bucket_is_refused_and_copies_nothing(message: WeightBucket, reason: str) -> None:
    """A bucket twice, of another version, or with another tensor than announced."""
    asker = Asker()
    asker.told(prepare())
    assert asker.told(bucket(0, "a", "b")) == ""
    assert asker.told(message) == reason
    assert asker.works == []
    assert asker.told(bucket(1, "c")) == "", "the right bucket is still welcome"


def test_nothing_is_activated_before_everything_came() -> None:
    """Half the buckets, or all buckets without all tensors: the old version serves on."""
    asker = Asker()
    assert asker.told(activate()) == "no epoch is open, version 1 was not prepared"
    asker.told(prepare(buckets=3))
    asker.told(bucket(0, "a"))
    assert asker.told(activate()) == "buckets that never came: 1, 2"
    asker.told(bucket(1))
    asker.told(bucket(2, "b"))
    assert asker.told(activate()) == "tensors that never came: c"
    assert asker.epochs.version is None


def test_a_bucket_that_is_still_being_copied_holds_the_activation_back() -> None:
    """Came is not copied: a switch now would serve what lay in memory before."""
    asker = Asker()
    asker.told(prepare(buckets=1))
    assert asker.ask(bucket(0, "a", "b", "c")) is None
    answer = asker.ask(activate())
    assert isinstance(answer, EpochAnswer)
    assert answer.reason == "1 buckets are still being copied"
    asker.work()
    assert asker.told(activate()) == ""


def test_a_wrong_digest_closes_the_epoch_and_leaves_the_old_version() -> None:
    """What lies in the staged weights is not what the trainer has: all of it is forgotten."""
    asker = moved()
    asker.told(activate())
    for message in (prepare(2), bucket(0, "a", "b", version=2), bucket(1, "c", version=2)):
        asker.told(message)
    asker.ask(activate(2))
    asker.work(error="EpochError: staged weights have digest x, the epoch says y")
    answer = list(asker.answers.values())[-1]
    assert isinstance(answer, EpochAnswer)
    assert not answer.ok
    assert "digest x" in answer.reason
    assert asker.epochs.version == 1
    assert isinstance(asker.works[0], DropEpoch)
    assert "no epoch is open" in asker.told(activate(2))


def test_a_reply_that_overtakes_the_news_of_a_switch_has_its_digest() -> None:
    """The thread that switched also ends replies: one of its first steps is heard of before."""
    asker = moved()
    asker.ask(activate())
    spans = (VersionSpan(start=0, end=2, version=1),)
    expected = (WeightsUsed(version=1, digest="d", kv_version=1),)
    assert asker.epochs.weights_used(spans, (1,)) == expected
    asker.work()
    assert asker.epochs.weights_used(spans, (1,)) == expected
    asker.told(prepare(2))
    later = (VersionSpan(start=0, end=2, version=2),)
    assert asker.epochs.weights_used(later, (2,))[0].digest == "", "announced is not served"


def test_an_abort_forgets_what_came() -> None:
    """ABORT answers ok whether or not there was something to forget: it may be repeated."""
    asker = moved()
    assert asker.told(AbortEpoch(version=1, reason="r")) == ""
    assert any(isinstance(work, DropEpoch) for work in asker.works)
    assert asker.told(AbortEpoch(version=1, reason="r")) == ""
    assert "no epoch is open" in asker.told(activate())
    assert asker.epochs.version is None


def test_an_abort_of_another_version_leaves_the_open_one() -> None:
    """A late ABORT of an epoch that is gone must not kill its successor."""
    asker = Asker()
    asker.told(prepare(1))
    asker.told(prepare(2))
    assert asker.told(AbortEpoch(version=1, reason="late")) == ""
    assert asker.told(bucket(0, "a", version=2)) == ""


def test_a_switch_under_way_cannot_be_stopped_or_replaced() -> None:
    """From the moment the engine may have switched, only its answer says which version serves."""
    asker = moved()
    assert asker.ask(activate()) is None
    assert "version 1 is being activated" in asker.told(prepare(2))
    assert asker.ask(AbortEpoch(version=1, reason="too late")) is not None
    assert "version 1 is being activated" in asker.told(bucket(0, "a"))
    assert asker.epochs.forget() == []
    asker.work()
    assert asker.epochs.version == 1


def test_a_new_announcement_replaces_an_open_epoch() -> None:
    """A publisher that starts over: buckets of the replaced epoch change nothing any more."""
    asker = Asker()
    asker.told(prepare(1, buckets=1))
    assert asker.ask(bucket(0, "a", "b", "c")) is None
    assert asker.ask(prepare(1, buckets=1)) is None
    asker.work()
    asker.work()
    assert "buckets that never came: 0" in asker.told(activate())


def test_an_engine_goes_back_to_an_older_version() -> None:
    """When another engine failed, those that switched are brought back to the published one."""
    asker = moved()
    asker.told(activate())
    for message in (prepare(0), bucket(0, "a", "b", version=0), bucket(1, "c", version=0)):
        assert asker.told(message) == ""
    assert asker.told(activate(0)) == ""
    assert asker.epochs.version == 0


MESSAGES = st.sampled_from(
    [
        *(prepare(version, buckets=count) for version in (1, 2) for count in (1, 2)),
        *(bucket(i, *n, version=v) for i in (0, 1) for n in ("abc", "ab", "c") for v in (1, 2)),
        *(activate(version) for version in (1, 2)),
        AbortEpoch(version=1, reason="r"),
    ]
)


@given(st.lists(st.one_of(MESSAGES, st.sampled_from(["work", "fail"])), max_size=30))
def test_no_order_of_messages_and_failures_serves_a_part(
    events: list[PrepareEpoch | WeightBucket | ActivateEpoch | AbortEpoch | str],
) -> None:
    """A version serves only when its own buckets, whole and copied, came before its activation."""
    asker = Asker()
    for event in events:
        if isinstance(event, str):
            if not asker.works:
                continue
            work = asker.works[0]
            before = asker.epochs.version
            asker.work("it broke" if event == "fail" else "")
            if isinstance(work, SwitchWeights) and event == "work":
                assert asker.epochs.version == work.version
            else:
                assert asker.epochs.version == before, "EN-2: a failure changed what serves"
        else:
            asker.ask(event)
            for work in asker.works:
                if isinstance(work, SwitchWeights):
                    assert not any(isinstance(w, StageBucket) for w in asker.works)
    while asker.works:
        asker.work()
    assert len(asker.answers) == asker._num_asked, "every question has one answer"


MEMORY = DeviceMemory(device="GPU-0", handle=bytes(64), num_bytes=1024)


def copy(index: int, *names: str, offsets: tuple[int, ...] | None = None) -> CopyBucket:
    at = tuple(256 * number for number in range(len(names))) if offsets is None else offsets
    return CopyBucket(version=1, index=index, names=names, offsets=at, memory=MEMORY)


def test_buckets_may_be_copied_within_the_gpu_or_come_as_bytes() -> None:
    """PREPARE says on which GPU; specs go with each copy, so no dtype is guessed there."""
    asker = Asker("GPU-0")
    assert asker.told(prepare()) == ""
    assert asker.answers[1] == EpochAnswer(version=1, ok=True, device="GPU-0")
    assert asker.ask(copy(1, "b", "c", offsets=(512, 0))) is None
    assert asker.works == [CopyWeights("epoch/2", MANIFEST[1:], (512, 0), MEMORY)]
    asker.work()
    assert asker.answers[2] == EpochAnswer(version=1, ok=True)
    assert asker.told(bucket(0, "a")) == ""
    assert asker.told(activate()) == ""
    assert asker.epochs.version == 1


@pytest.mark.parametrize(
    ("gpu", "message", "reason"),
    [
        ("", copy(0, "a"), "this engine opens no handles of a GPU's memory, it takes bytes"),
        ("GPU-0", copy(0, "a", "b", offsets=(0,)), "2 names for 1 offsets"),
        ("GPU-0", copy(0, "z"), "tensor z was not announced"),
        ("GPU-0", copy(0, "a", "a"), "tensor a came twice"),
        ("GPU-0", copy(2, "a"), "bucket 2 of 2"),
    ],
)
def test_a_copy_that_cannot_be_right_is_refused_before_any_memory_is_opened(
    gpu: str, message: CopyBucket, reason: str
) -> None:
    asker = Asker(gpu)
    assert asker.told(prepare()) == ""
    assert asker.told(message) == reason
    assert asker.works == []


def test_memory_that_cannot_be_read_ends_the_epoch_and_leaves_the_old_version() -> None:
    asker = Asker("GPU-0")
    assert asker.told(prepare()) == ""
    assert asker.ask(copy(0, "a", "b")) is None
    asker.work("the trainer's memory cannot be opened")
    answer = asker.answers[2]
    assert answer == EpochAnswer(
        version=1, ok=False, reason="the trainer's memory cannot be opened"
    )
    assert [type(work) for work in asker.works] == [DropEpoch]
    assert asker.told(activate()) == "no epoch is open, version 1 was not prepared"

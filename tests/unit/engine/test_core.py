"""The engine actor's core: who asked, who is answered, who is refused, when it is drained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.effects import Effect, Fail, Received, Reply, Request, Tell, Work, WorkDone
from milepost.actors.engine.core import Engine
from milepost.actors.engine.interface import (
    OUTCOMES,
    AbortOrder,
    DropEpoch,
    EngineFacts,
    Finished,
    ForgetOrder,
    GenerateOrder,
    Outcome,
    ReadDigests,
    Rejected,
    ScoreFinished,
    ScoreOrder,
    Switched,
)
from milepost.messages.engine import (
    AbortRequests,
    ActivateEpoch,
    DigestTensors,
    EpochConfirmed,
    ForgetSessions,
    Generate,
    Generated,
    GenerateRefused,
    PauseMode,
    PrepareEpoch,
    Score,
    Scored,
    TensorDigests,
    TensorSpec,
    WeightBucket,
)
from milepost.messages.publisher import EngineReady
from milepost.messages.shared import (
    FinishReason,
    Message,
    SamplingParams,
    VersionSpan,
    WeightsUsed,
)
from milepost.messages.supervisor import Drain, Drained, PeerRestarted

SPEC = TensorSpec(name="w", dtype="float32", shape=(2,))


class Desk:
    """Feeds one core and remembers what it ordered and answered."""

    def __init__(
        self, requests_max: int = 4, incarnation: int = 0, adapters: tuple[str, ...] = ()
    ) -> None:
        facts = EngineFacts(manifest=(SPEC,), vocab_size=9, context_tokens=32, adapters=adapters)
        self.core = Engine("engine-0", "publisher", facts, requests_max, incarnation=incarnation)
        self.effects: list[Effect] = self.core.start(0.0)
        self._num_asked = 0

    def ask(self, message: Message, source: str = "session-0") -> list[Effect]:
        self._num_asked += 1
        return self.feed(Received(source, message, Request(source, self._num_asked)))

    def tell(self, message: Message, source: str = "session-0") -> list[Effect]:
        return self.feed(Received(source, message))

    def feed(self, event: Any) -> list[Effect]:
        effects = self.core.handle(event, float(self._num_asked))
        self.core.validate()
        self.effects += effects
        return effects

    def end(self, *outcomes: Outcome) -> list[Effect]:
        return self.feed(WorkDone(OUTCOMES, outcomes))

    def bring(self, version: int) -> None:
        """A version comes, and could be served."""
        tensors = (to_bulk(np.zeros(2, "f4")),)
        self.asked_to(PrepareEpoch(version=version, tensors=(SPEC,), num_buckets=1))
        self.asked_to(WeightBucket(version=version, index=0, names=("w",), tensors=tensors))

    def publish(self, version: int) -> None:
        self.bring(version)
        digest = f"digest of {version}"
        activate = ActivateEpoch(version=version, mode=PauseMode.RETRACT, digest=digest)
        self.asked_to(activate, Switched(0.1, 0))

    def asked_to(self, message: Message, result: object = None) -> None:
        """One order of the publisher's, carried out."""
        (work,) = self.ask(message, "publisher")
        assert isinstance(work, Work)
        self.feed(WorkDone(work.key, result))


def generate(request_id: str, row: Any = (1, 2, 3), **changes: Any) -> Generate:
    token_ids = row if not isinstance(row, tuple) else np.array(row, np.int32)
    fields = {"session_id": "s", "sampling": SamplingParams(), **changes}
    return Generate(request_id=request_id, token_ids=to_bulk(token_ids), **fields)


def finished(key: str, count: int = 2) -> Finished:
    return Finished(
        key,
        np.arange(count, dtype=np.int32),
        np.full(count, -0.5, np.float32),
        (VersionSpan(start=0, end=count, version=0),),
        FinishReason.LENGTH,
        cached_tokens=1,
        kv_versions=(0,),
        top_token_ids=np.ones((count, 3), np.int32),
        top_logprobs=np.zeros((count, 3), np.float32),
    )


def refusal(effects: list[Effect]) -> GenerateRefused:
    (reply,) = effects
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, GenerateRefused)
    return reply.message


def test_it_says_first_that_it_needs_weights() -> None:
    """A restarted engine gets the last version only if the publisher hears of it."""
    assert Desk().effects == [Tell("publisher", EngineReady(engine="engine-0"))]


def test_a_reply_says_whose_weights_sampled_it_and_over_whose_keys() -> None:
    """A number is no proof of weights: the digest is, and the engine has hashed what it serves."""
    desk = Desk(incarnation=2)
    desk.publish(0)
    desk.publish(1)
    desk.ask(generate("r"))
    spans = tuple(
        VersionSpan(start=at, end=at + 1, version=version) for at, version in enumerate((0, 1, 0))
    )
    outcome = replace(finished("r", 3), spans=spans, kv_versions=(0, 0, 0))
    (reply,) = desk.end(outcome)
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, Generated)
    assert reply.message.incarnation == 2
    assert reply.message.weights == (
        WeightsUsed(version=0, digest="digest of 0", kv_version=0),
        WeightsUsed(version=1, digest="digest of 1", kv_version=0),
    )


def test_nothing_is_generated_or_scored_before_a_version_serves() -> None:
    """Weights of nobody's training must never sample a token; later it may be tried again."""
    desk = Desk()
    refused = refusal(desk.ask(generate("a")))
    assert refused.retry
    assert refused.reason == "engine-0 serves no version yet"
    assert refusal(desk.ask(Score(rows=()))).retry


def test_a_request_is_ordered_and_its_reply_goes_to_who_asked() -> None:
    """Ids, log-probs, spans and alternatives pass through as they are."""
    desk = Desk()
    desk.publish(0)
    (order,) = desk.ask(generate("a", sampling=SamplingParams(top_k=3)), "session-1")
    assert isinstance(order, GenerateOrder)
    assert order.token_ids.tolist() == [1, 2, 3]
    assert order.sampling.top_k == 3
    (reply,) = desk.end(finished("a"))
    assert isinstance(reply, Reply)
    assert reply.request.source == "session-1"
    assert isinstance(reply.message, Generated)
    assert from_bulk(reply.message.token_ids).tolist() == [0, 1]
    assert reply.message.top_token_ids is not None
    assert reply.message.top_token_ids.shape == (2, 3)


def test_a_version_that_is_too_old_is_refused_for_now() -> None:
    """A session that must not mix versions waits for the publication."""
    desk = Desk()
    desk.publish(3)
    refused = refusal(desk.ask(generate("a", version_min=4)))
    assert refused.retry
    assert refused.reason == "engine-0 serves version 3, at least 4 is asked for"
    assert isinstance(desk.ask(generate("b", version_min=3))[0], GenerateOrder)


def test_requests_over_the_limit_are_refused_for_now() -> None:
    """No queue is unbounded; the asker is told, and may come again."""
    desk = Desk(requests_max=2)
    desk.publish(0)
    desk.ask(generate("a"))
    desk.ask(generate("b"))
    refused = refusal(desk.ask(generate("c")))
    assert refused.retry
    assert "2 requests in flight, its limit" in refused.reason
    desk.end(finished("a"))
    assert isinstance(desk.ask(generate("c"))[0], GenerateOrder)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (np.zeros(3, np.int64), "token ids are Bulk(int64, (3,), 24 bytes), int32 [T] is expected"),
        (np.zeros((1, 3), np.int32), "int32 [T] is expected"),
    ],
)
def test_rows_of_another_type_are_refused_for_good(row: NDArray[Any], reason: str) -> None:
    """Reading int64 bytes as int32 would sample after other tokens than were sent."""
    desk = Desk()
    desk.publish(0)
    refused = refusal(desk.ask(generate("a", row)))
    assert not refused.retry
    assert reason in refused.reason
    assert reason in refusal(desk.ask(Score(rows=(to_bulk(row),)))).reason


def test_a_second_request_of_the_same_id_is_refused() -> None:
    """One answer would go to the wrong one of two."""
    desk = Desk()
    desk.publish(0)
    desk.ask(generate("a"))
    assert "in flight already" in refusal(desk.ask(generate("a"))).reason


def test_a_rejected_request_is_answered_with_the_reason() -> None:
    """What only the backend can see (vocabulary, context, NaN) is told by name."""
    desk = Desk()
    desk.publish(0)
    desk.ask(generate("a"))
    refused = refusal(desk.end(Rejected("a", "token id 99 is outside the vocabulary of 9")))
    assert refused == GenerateRefused(
        request_id="a", reason="token id 99 is outside the vocabulary of 9"
    )


def test_a_score_is_answered_with_one_version() -> None:
    """Two askers' scores do not get mixed up."""
    desk = Desk()
    desk.publish(5)
    row = to_bulk(np.array([1, 2], np.int32))
    (first,) = desk.ask(Score(rows=(row, row), temperature=0.5, use_cache=True), "publisher")
    (second,) = desk.ask(Score(rows=(row,)), "teacher-0")
    assert isinstance(first, ScoreOrder)
    assert isinstance(second, ScoreOrder)
    assert (len(first.rows), first.temperature, first.use_cache) == (2, 0.5, True)
    done = ScoreFinished(second.key, (np.zeros(2, np.float32),), 5)
    (reply,) = desk.end(done)
    assert isinstance(reply, Reply)
    assert reply.request.source == "teacher-0"
    assert isinstance(reply.message, Scored)
    assert reply.message.version == 5


def test_aborts_and_forgotten_sessions_pass_through() -> None:
    """They are told, not asked: the aborted request's own answer is the answer."""
    desk = Desk()
    assert desk.tell(AbortRequests(request_ids=("a",), session_ids=("s",))) == [
        AbortOrder("abort", ("a",), ("s",))
    ]
    assert desk.tell(ForgetSessions(session_ids=("s",))) == [ForgetOrder("forget", ("s",))]


def test_requests_of_a_process_that_died_are_stopped() -> None:
    """Nobody waits for them, and they hold rows that others need."""
    desk = Desk()
    desk.publish(0)
    desk.ask(generate("a"), "session-0")
    desk.ask(generate("b"), "session-1")
    effects = desk.tell(PeerRestarted(actor="session-1", incarnation=2), "supervisor")
    assert effects == [AbortOrder("abort", ("b",))]
    assert desk.tell(PeerRestarted(actor="session-9", incarnation=2), "supervisor") == []


def test_a_dead_publisher_leaves_the_engine_serving() -> None:
    """Its half-moved version is forgotten; what serves goes on."""
    desk = Desk()
    desk.publish(0)
    desk.ask(PrepareEpoch(version=1, tensors=(SPEC,), num_buckets=1), "publisher")
    (drop,) = desk.tell(PeerRestarted(actor="publisher", incarnation=2), "supervisor")
    assert isinstance(drop, DropEpoch)
    assert isinstance(desk.ask(generate("a"))[0], GenerateOrder)


def test_it_is_drained_when_nothing_is_in_flight() -> None:
    """Replies under way are finished and answered first."""
    desk = Desk()
    desk.publish(0)
    desk.ask(generate("a"))
    assert desk.ask(Drain(deadline_s=5.0), "supervisor") == []
    effects = desk.end(finished("a"))
    assert [type(e.message) for e in effects if isinstance(e, Reply)] == [Generated, Drained]
    (reply,) = Desk().ask(Drain(deadline_s=5.0), "supervisor")
    assert isinstance(reply, Reply)
    assert reply.message == Drained(actor="engine-0")


def test_a_backend_that_fails_ends_the_actor_with_its_words() -> None:
    """A silent decoding thread would leave every session waiting."""
    effects = Desk().feed(WorkDone(OUTCOMES, None, "RuntimeError: out of memory"))
    assert effects == [Fail("engine-0 stopped computing: RuntimeError: out of memory")]


def test_what_it_works_on_is_told_in_names() -> None:
    """The text of `why`: versions, requests, the oldest of them."""
    desk = Desk()
    assert desk.core.working_on() == "serves no version, waits for requests"
    desk.publish(2)
    desk.ask(generate("a"))
    desk.ask(PrepareEpoch(version=3, tensors=(SPEC,), num_buckets=1), "publisher")
    assert desk.core.working_on() == (
        "serves version 2, version 3 0/1 buckets, 1 requests, oldest a for 1.0 s"
    )
    assert desk.core.statistics()["serving"] == 2


def test_the_publisher_is_told_what_the_switch_cost() -> None:
    """Pause and survivors are part of the confirmation."""
    desk = Desk()
    desk.publish(1)
    replies = [effect.message for effect in desk.effects if isinstance(effect, Reply)]
    assert replies[-1] == EpochConfirmed(
        version=1, digest="digest of 1", pause_s=0.1, num_in_flight=0
    )


def test_tensors_are_read_back_of_one_version_and_not_in_a_switch() -> None:
    """The thread that switches does not wait for the one that reads, nor tells which was first."""
    desk = Desk()
    desk.publish(0)
    (read,) = desk.ask(DigestTensors(names=("w",)), "publisher")
    assert isinstance(read, ReadDigests)
    (answer,) = desk.feed(WorkDone(read.key, ("x",)))
    assert isinstance(answer, Reply)
    assert answer.message == TensorDigests(version=0, digests=("x",))
    desk.bring(1)
    desk.ask(ActivateEpoch(version=1, mode=PauseMode.RETRACT, digest="d1"), "publisher")
    assert refusal(desk.ask(DigestTensors(names=("w",)), "publisher")).retry


@pytest.mark.parametrize("ends_first", ["read", "switch"])
def test_a_read_that_a_switch_overtakes_is_refused_for_now(ends_first: str) -> None:
    """It would tell digests of the new weights, or of both, as those of the old version."""
    desk = Desk()
    desk.publish(0)
    desk.bring(1)
    (read,) = desk.ask(DigestTensors(names=("w",)), "publisher")
    assert isinstance(read, ReadDigests)
    activate = ActivateEpoch(version=1, mode=PauseMode.RETRACT, digest="d1")
    (switch,) = desk.ask(activate, "publisher")
    assert isinstance(switch, Work)
    if ends_first == "switch":
        desk.feed(WorkDone(switch.key, Switched(0.1, 0)))
    assert refusal(desk.feed(WorkDone(read.key, ("x",)))).retry


def test_an_adapter_is_ordered_by_name_and_an_unknown_one_refused() -> None:
    """An engine without adapters that answered all the same would answer as somebody else."""
    for adapters, told in ((), "it has none"), (("formal", "terse"), "it has formal, terse"):
        desk = Desk(adapters=adapters)
        desk.publish(0)
        refused = desk.ask(generate("a", adapter="unheard"))
        assert isinstance(refused[0], Reply)
        answer = refused[0].message
        assert isinstance(answer, GenerateRefused)
        assert told in answer.reason
        assert not answer.retry
    ordered = desk.ask(generate("b", adapter="terse"))[0]
    assert isinstance(ordered, GenerateOrder)
    assert ordered.adapter == "terse"

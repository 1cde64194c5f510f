"""The canary's turn through a session: our own session core, between a publisher and an engine.

The engine is a table: what it thinks of the next token follows from the prompt and from the weights
it samples with. So a prompt that was rendered otherwise, another engine, older weights or an older
cache all give another number, as they do on a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from struct import pack
from typing import Any

import numpy as np
import pytest
import xxhash
from msgspec.structs import replace
from numpy.typing import NDArray
from unit.publisher.kit import Play
from unit.session import kit

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.effects import Answered, Ask, Received, Taken, Unanswered
from milepost.actors.publisher.settings import PublisherSettings
from milepost.actors.session.text.rendering import Renderer
from milepost.actors.trainer.fsdp.turn_probe import MESSAGES
from milepost.messages.bulk import Bulk
from milepost.messages.engine import Generate, Generated
from milepost.messages.publisher import ProbeTurn, VersionReady
from milepost.messages.session import (
    AbandonTrajectory,
    ChatRefused,
    ChatTurn,
    FinishTrajectory,
    OpenSessions,
    SessionsRefused,
)
from milepost.messages.shared import FinishReason, Message, VersionSpan, WeightsUsed
from milepost.messages.supervisor import PeerRestarted, StepRecorded
from milepost.messages.trainer import VersionFailed

VOCABULARY = 360
PROMPT = kit.renderer().render(kit.renderer().first(MESSAGES, ())).token_ids


def thinks(token_ids: NDArray[np.int32], weights: str) -> NDArray[np.float32]:
    """Log-probs of every next token, float32 [V]."""
    seed = xxhash.xxh3_64_intdigest(token_ids.tobytes() + weights.encode())
    logits = np.random.default_rng(seed).standard_normal(VOCABULARY)
    return np.asarray(logits - np.log(np.exp(logits).sum()), np.float32)


def sample(
    request: Generate,
    version: int,
    *,
    weights: str = "",
    says: int | None = None,
    digest: str = "",
    cache: int | None = None,
) -> Generated:
    """One token; by default under the weights and the version that the engine serves."""
    token = 11
    logprobs = thinks(from_bulk(request.token_ids), weights or f"digest of {version}")
    told = version if says is None else says
    used = WeightsUsed(
        version=told,
        digest=digest or f"digest of {told}",
        kv_version=told if cache is None else cache,
    )
    return Generated(
        request_id=request.request_id,
        token_ids=Bulk("int32", (1,), pack("<i", token)),
        logprobs=Bulk("float32", (1,), pack("<f", logprobs[token])),
        spans=(VersionSpan(start=0, end=1, version=told),),
        finish_reason=FinishReason.LENGTH,
        cached_tokens=0,
        weights=(used,),
    )


@dataclass
class TurnPlay(Play):
    """Engines say yes to everything; a turn goes through a real session to `sampled`."""

    sessions: tuple[str, ...] = ("session-0",)
    sampled: Callable[[Generate, int], Generated] = sample
    renderer: Renderer | None = None
    """Of the session; None: the one that the trainer has."""
    session: kit.Play = field(init=False)
    turn_every: int = 1

    def __post_init__(self) -> None:
        self.session = kit.play(of=self.renderer)
        super().__post_init__()

    @property
    def settings(self) -> PublisherSettings:
        settings = super().settings
        changes: dict[str, Any] = {"sessions": self.sessions, "turn_s": 30.0}
        fields = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
        return PublisherSettings(**{**fields, **changes})

    def hear(self, message: Message, source: str = "trainer-0") -> None:
        if isinstance(message, VersionReady) and message.version % self.turn_every == 0:
            digest = f"digest of {message.version}"
            probe = ProbeTurn(
                messages=MESSAGES,
                token_ids=to_bulk(PROMPT, "int32"),
                logprobs=to_bulk(thinks(PROMPT, digest), "float32"),
            )
            message = replace(message, probe_turn=probe)
        super().hear(message, source)

    def turns(self) -> list[Ask]:
        return [ask for ask in self.asked.values() if ask.to in self.sessions]

    def answer_engines(self) -> None:
        while asks := [ask for ask in self.asked.values() if ask.to not in self.sessions]:
            self.answer(asks[0].to)

    def go(self) -> None:
        """Engines and session answer all there is."""
        while self.asked:
            self.answer_engines()
            for ask in self.turns():
                del self.asked[ask.key]
                self.pass_on(ask)

    def pass_on(self, ask: Ask) -> None:
        """The session answers one question of the publisher's."""
        request = self.session.ask(ask.message, "publisher")
        if isinstance(ask.message, ChatTurn) and self.session.asks:
            key, generate, message = self.session.open_ask()
            del self.session.asks[key]
            generated = self.sampled(message, max(self.serving.values()))
            self.session.handle(Answered(key, generate.to, generated))
        if isinstance(ask.message, FinishTrajectory):
            (delivery,) = [tell for tell in self.session.told if tell.to == "publisher"]
            self.feed(Received("session-0", delivery.message))
            self.session.told.remove(delivery)
            self.session.handle(Taken(delivery.key))
        self.feed(Answered(ask.key, ask.to, self.session.replies.pop(request)))


def rendered_otherwise() -> Renderer:
    """The tokenizer of the run, and one word of the prompt another."""
    ours = kit.renderer()
    other = Renderer(ours.tokenizer, ours.template, ours.family)
    other.render = lambda text: Renderer.render(  # type: ignore[method-assign]
        other, text.replace(b"village", b"town")
    )
    return other


# ---- when all is well --------------------------------------------------------------------


def test_a_version_is_published_when_a_session_s_turn_shows_the_trainer_s_number() -> None:
    play = TurnPlay()
    play.announce(0)
    play.answer_engines()
    assert play.published() == []
    assert isinstance(play.turns()[0].message, OpenSessions)
    play.go()
    assert play.published() == [0]
    (recorded,) = play.take(StepRecorded)
    assert recorded.metrics["perf/canary_turn_logprob_difference"] == 0.0
    assert recorded.metrics["perf/canary_turn_missed"] == 0.0
    assert play.session.desk.counters.accounts == {"probed": 1}
    assert not play.session.core.statistics()["sessions"]


def test_versions_without_a_turn_do_not_wait_for_one() -> None:
    play = TurnPlay(turn_every=2)
    for version in range(3):
        play.announce(version)
        play.go()
    assert play.published() == [0, 1, 2]
    assert [bool("perf/canary_turn_time" in each.metrics) for each in play.take(StepRecorded)] == [
        True,
        False,
        True,
    ]


# ---- when something is not ---------------------------------------------------------------

LIES: dict[str, tuple[dict[str, Any], str]] = {
    "an engine of another run": (
        {"sampled": partial(sample, weights="of another run")},
        "differs from the trainer's",
    ),
    "an adapter that is not used": (
        {"sampled": partial(sample, weights="base")},
        "differs from the trainer's",
    ),
    "keys and values of an older version, used and not said": (
        {"sampled": partial(sample, weights="digest of 0")},
        "differs from the trainer's",
    ),
    "keys and values of an older version, as the engine says": (
        {"sampled": partial(sample, cache=0)},
        "keys and values of version 0",
    ),
    "weights with another digest": (
        {"sampled": partial(sample, digest="another")},
        "by weights another, not digest of 1",
    ),
    "an engine that serves the version before": (
        {"sampled": partial(sample, says=0)},
        "sampled under version 0",
    ),
    "a template that is not the trainer's": (
        {"renderer": rendered_otherwise()},
        "they differ from token",
    ),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_agents_would_meet_and_the_trainer_would_not_is_red_before_it_is_published(
    lie: tuple[dict[str, Any], str],
) -> None:
    """Engines answered rightly when they were asked directly; in other systems nothing more was
    looked at, and LoRA runs trained for months on replies of their base model."""
    changes, said = lie
    play = TurnPlay(turn_every=1, **changes)
    play.sampled, broken = sample, play.sampled
    if play.renderer is None:
        play.announce(0)
        play.go()
        assert play.published() == [0]
    play.sampled = broken
    play.announce(1)
    play.go()
    assert play.published() == []
    assert play.events()[:2] == ["canary", "epoch_failed"]
    while (at := next((key for key in play.wakes if key == "begin"), None)) is not None:
        play.wake(at)
        play.go()
    if play.renderer is not None:
        assert said in play.failed, "there was no version to go back to"
        return
    (failed,) = play.take(VersionFailed)
    assert said in failed.reason
    assert play.serving == {"engine-0": 0, "engine-1": 0}


def test_a_session_that_refuses_the_turn_as_a_mistake_is_red() -> None:
    """Agents would be refused the same."""
    play = asked_to_chat()
    play.reply(ChatRefused(kind="bad_request", reason="the template raised"))
    assert play.events() == ["canary", "epoch_failed"]


# ---- when nobody answers -----------------------------------------------------------------


@dataclass
class Asked(TurnPlay):
    sessions: tuple[str, ...] = ("session-0", "session-1")

    def reply(self, message: Message) -> None:
        (ask,) = self.turns()
        del self.asked[ask.key]
        self.feed(Answered(ask.key, ask.to, message))

    def again(self) -> str:
        """The session that is asked after the pause."""
        self.wake(next(key for key in self.wakes if key.endswith("/again")))
        (ask,) = self.turns()
        return ask.to


def asked_to_open() -> Asked:
    play = Asked()
    play.announce(0)
    play.answer_engines()
    return play


def asked_to_chat() -> Asked:
    play = asked_to_open()
    (ask,) = play.turns()
    del play.asked[ask.key]
    play.pass_on(ask)
    return play


def test_another_session_is_asked_when_one_is_full_dead_or_draining() -> None:
    """None of it says anything about the weights."""
    play = asked_to_open()
    play.reply(SessionsRefused(reason="full"))
    assert play.again() == "session-1"
    (ask,) = play.turns()
    del play.asked[ask.key]
    play.feed(Unanswered(ask.key, "session-1", "dead"))
    assert play.again() == "session-0"
    play.hear(PeerRestarted(actor="session-0", incarnation=1), "supervisor")
    play.asked.clear()
    assert play.again() == "session-1"
    play.go()
    assert play.published() == [0]
    assert play.events() == []


def test_a_version_is_published_without_the_turn_when_no_session_answers_in_time() -> None:
    """A publication never waits for ever; that there is no evidence is said and counted."""
    play = asked_to_chat()
    play.reply(ChatRefused(kind="engine", reason="all are busy"))
    play.wake(next(key for key in play.wakes if key.endswith("/late")))
    assert play.published() == [0]
    assert play.events() == ["canary_missed"]
    (recorded,) = play.take(StepRecorded)
    assert recorded.metrics["perf/canary_turn_missed"] == 1.0
    assert "perf/canary_turn_logprob_difference" not in recorded.metrics
    play.announce(1)
    play.go()
    assert play.published() == [1]


def test_an_answer_of_an_engine_that_has_left_is_no_evidence() -> None:
    """It serves an older version, and is brought to this one before anybody counts on it."""
    play = asked_to_open()
    play.hear(PeerRestarted(actor="engine-0", incarnation=1), "supervisor")
    play.sampled = partial(sample, says=7)
    play.go()
    assert play.published() == []
    assert play.events() == []
    play.sampled = sample
    play.serving["engine-0"] = 0
    play.session = kit.play(engines=("engine-1",))
    play.again()
    play.go()
    assert play.published() == [0]


def test_a_turn_under_way_is_abandoned_when_every_engine_leaves() -> None:
    play = asked_to_chat()
    for engine in play.engines:
        play.hear(PeerRestarted(actor=engine, incarnation=1), "supervisor")
    (word,) = play.take(AbandonTrajectory)
    assert word.trajectory_id.startswith("canary.")
    play.reply(ChatRefused(kind="bad_request", reason="late"))
    assert play.events() == ["epoch_failed"], "what was asked for is over"

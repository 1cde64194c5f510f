"""Ways in which weights did not arrive elsewhere, on a real engine: each is red in one publication.

The engine under test took version 0 whole and proved it. Then version 1 comes the broken way, and
the engine confirms it, as engines do that believe what they are told.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import xxhash
from unit.engine.kit import (
    Weights,
    digest_of,
    manifest,
    publish,
    random_row,
    random_weights,
    score,
    serving,
    tiny_shape,
)

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.effects import Ask, Wake
from milepost.actors.engine.embedded.engine import EmbeddedEngine
from milepost.actors.publisher.lanes import Weights as Version
from milepost.actors.publisher.proofs import Proofs, Verdict, unmoved
from milepost.actors.publisher.settings import PublisherSettings
from milepost.messages.engine import (
    DigestTensors,
    GenerateRefused,
    PauseMode,
    Score,
    Scored,
    TensorDigests,
)
from milepost.messages.publisher import VersionReady
from milepost.messages.shared import Message

SHAPE = tiny_shape()
ROWS = (random_row(1, 32), random_row(2, 32))
SETTINGS = PublisherSettings(
    engines=("engine-0",),
    listeners=(),
    leader="trainer-0",
    pause=PauseMode.RETRACT,
    epoch_deadline_s=60.0,
    canary=True,
    canary_difference_max=1e-4,
)


def stepped(weights: Weights, scale: float = 0.05) -> Weights:
    """Weights after a training step."""
    generator = np.random.default_rng(9)
    return {
        name: values + (scale * generator.standard_normal(values.shape)).astype(np.float32)
        for name, values in weights.items()
    }


BEFORE = random_weights(SHAPE, 0)
AFTER = stepped(BEFORE)


def version(number: int, weights: Weights, *, trained: bool = True) -> Version:
    """What the trainer announces, with the log-probs of its own weights."""
    truth = serving(SHAPE)
    publish(truth, weights, 7)
    scored = score(truth, *ROWS).logprobs
    ready = VersionReady(
        version=number,
        tensors=manifest(SHAPE),
        num_buckets=1,
        digest=digest_of(weights),
        probe_rows=tuple(to_bulk(row) for row in ROWS),
        probe_logprobs=tuple(to_bulk(row) for row in scored),
        tensor_digests=tuple(
            xxhash.xxh3_128_hexdigest(weights[spec.name].tobytes()) for spec in manifest(SHAPE)
        ),
        trained=trained,
    )
    return Version(ready, 0.0)


def answer(engine: EmbeddedEngine, message: Message) -> Message:
    """As the engine actor answers."""
    match message:
        case Score():
            rows = [from_bulk(row) for row in message.rows]
            scored = score(engine, *rows, use_cache=message.use_cache)
            logprobs = tuple(to_bulk(row) for row in scored.logprobs)
            return Scored(logprobs=logprobs, version=scored.version)
        case DigestTensors():
            digests = engine.staging.digests(message.names)
            return TensorDigests(version=engine.version, digests=digests)
        case _:
            raise TypeError(message)


def prove(
    engine: EmbeddedEngine, target: Version, *, compare_all: bool = False, backwards: bool = False
) -> tuple[Verdict, list[str]]:
    """Ask until there is a verdict; also the names of the steps.

    What is asked at once is computed in order; the answers may overtake each other.
    """
    proofs = Proofs(SETTINGS)
    verdict = proofs.begin("engine-0", target, 0.0, compare_all=compare_all)
    steps: list[str] = []
    answers: list[tuple[str, Message]] = []
    while verdict.proof is None:
        for ask in verdict.effects:
            assert isinstance(ask, Ask)
            steps.append(ask.key.rpartition("/")[2])
            answers.append((ask.key, answer(engine, ask.message)))
        key, message = answers.pop(-1 if backwards else 0)
        verdict = proofs.answered(key, message, 0.0)
    return verdict, steps


@pytest.fixture
def engine() -> EmbeddedEngine:
    """Serves version 0, whole and proven; the probe lies in its prefix cache."""
    engine = serving(SHAPE)
    publish(engine, BEFORE, 0)
    verdict, steps = prove(engine, version(0, BEFORE))
    assert (verdict.reason, steps) == ("", ["COLD", "WARM", "AGAIN", "DIGESTS"])
    return engine


# ---- the broken ways ---------------------------------------------------------------------


def a_transport_that_lies(engine: EmbeddedEngine) -> None:
    """Says that all is well, and moved nothing."""
    engine.version = 1


def half_the_buckets(engine: EmbeddedEngine) -> None:
    """The rest of the room still has what lay there."""
    publish(engine, {**BEFORE, **dict(list(AFTER.items())[: len(AFTER) // 2])}, 1)


def the_wrong_engine(engine: EmbeddedEngine) -> None:
    """Whole weights, of another job."""
    publish(engine, random_weights(SHAPE, 3), 1)


def swapped_layers(engine: EmbeddedEngine) -> None:
    """Every tensor came, the first layer's under the names of the second."""
    other = {"layers.0.": "layers.1.", "layers.1.": "layers.0."}

    def turned(name: str) -> str:
        found = next((part for part in other if part in name), "")
        return name.replace(found, other[found]) if found else name

    publish(engine, {name: AFTER[turned(name)] for name in AFTER}, 1)


def an_old_cache(engine: EmbeddedEngine) -> None:
    """The weights are right; keys and values of the version before stay in use."""
    engine._scheduler.new_weights = lambda: None  # type: ignore[method-assign]
    publish(engine, AFTER, 1)


def an_adapter_that_is_not_used(engine: EmbeddedEngine) -> None:
    """The base model arrived once more; what was trained beside it is left out."""
    publish(engine, BEFORE, 1)


WAYS: dict[Callable[[EmbeddedEngine], None], str] = {
    a_transport_that_lies: "differ from the trainer's",
    half_the_buckets: "differ from the trainer's",
    the_wrong_engine: "differ from the trainer's",
    swapped_layers: "differ from the trainer's",
    an_old_cache: "keys and values of an older version are in use",
    an_adapter_that_is_not_used: "differ from the trainer's",
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_in_which_weights_do_not_arrive_is_red_at_once(
    engine: EmbeddedEngine, way: Callable[[EmbeddedEngine], None]
) -> None:
    """Each of these cost somebody weeks: the reward falls, and nothing says why."""
    way(engine)
    verdict, _ = prove(engine, version(1, AFTER))
    assert WAYS[way] in verdict.reason, verdict


def test_a_publication_that_arrived_is_believed(engine: EmbeddedEngine) -> None:
    """The same path, unbroken: otherwise red would mean nothing."""
    publish(engine, AFTER, 1)
    verdict, steps = prove(engine, version(1, AFTER))
    assert (verdict.reason, steps[-1]) == ("", "DIGESTS")
    assert verdict.proof is not None
    assert verdict.proof.difference is not None
    assert verdict.proof.difference < 1e-5


def test_a_step_too_small_for_the_log_probs_is_seen_by_the_digests(engine: EmbeddedEngine) -> None:
    """At a small learning rate old and new log-probs agree within the bound; bytes never do."""
    tiny = stepped(BEFORE, 1e-7)
    a_transport_that_lies(engine)
    verdict, _ = prove(engine, version(1, tiny), compare_all=True)
    assert "tensors have other bytes" in verdict.reason


def test_every_tensor_is_compared_after_the_first_update(engine: EmbeddedEngine) -> None:
    """`check_weight_update_equal`: one tensor that was never written is named."""
    engine.staging.open(manifest(SHAPE), randomize=True)
    names = [name for name in AFTER if name != "model.norm.weight"]
    engine.staging.write(tuple(names), tuple(to_bulk(AFTER[name]) for name in names))
    engine.staging._missing.clear()
    engine.switch(1, PauseMode.RETRACT)
    settings_off = Proofs(
        PublisherSettings(
            engines=("engine-0",),
            listeners=(),
            leader="trainer-0",
            pause=PauseMode.RETRACT,
            epoch_deadline_s=60.0,
            canary=False,
            canary_difference_max=1e-4,
            check_weight_update_equal=True,
        )
    )
    verdict = settings_off.begin("engine-0", version(1, AFTER), 0.0, compare_all=True)
    (ask,) = verdict.effects
    assert isinstance(ask, Ask)
    verdict = settings_off.answered(ask.key, answer(engine, ask.message), 0.0)
    assert f"1 of {len(AFTER)} tensors have other bytes: model.norm.weight" in verdict.reason


def test_answers_may_overtake_each_other(engine: EmbeddedEngine) -> None:
    """WARM is judged after COLD: what differs in both is not the cache's fault."""
    verdict, steps = prove(engine, version(0, BEFORE), backwards=True)
    assert (verdict.reason, steps) == ("", ["COLD", "WARM", "AGAIN", "DIGESTS"])
    verdict, steps = prove(engine, version(0, AFTER), backwards=True)
    assert "log-probs of the probe differ" in verdict.reason
    assert "cache" not in verdict.reason
    assert steps == ["COLD", "WARM"]


def test_late_answers_of_a_proof_that_failed_mean_nothing(engine: EmbeddedEngine) -> None:
    """COLD failed it while WARM was under way."""
    proofs = Proofs(SETTINGS)
    cold, warm = proofs.begin("engine-0", version(0, AFTER), 0.0, compare_all=False).effects
    assert isinstance(cold, Ask)
    assert isinstance(warm, Ask)
    found = [answer(engine, ask.message) for ask in (cold, warm)]
    assert proofs.answered(cold.key, found[0], 0.0).reason
    assert proofs.answered(warm.key, found[1], 0.0) == Verdict()
    assert proofs.again(warm.key) == []


def test_a_busy_engine_is_asked_the_same_question_again(engine: EmbeddedEngine) -> None:
    proofs = Proofs(SETTINGS)
    cold, warm = proofs.begin("engine-0", version(0, BEFORE), 0.0, compare_all=False).effects
    assert isinstance(cold, Ask)
    assert isinstance(warm, Ask)
    busy = GenerateRefused(request_id="", reason="busy", retry=True)
    (wake,) = proofs.answered(warm.key, busy, 0.0).effects
    assert isinstance(wake, Wake)
    assert proofs.answered(cold.key, answer(engine, cold.message), 0.0) == Verdict()
    assert proofs.again(wake.key) == [warm]
    (again,) = proofs.answered(warm.key, answer(engine, warm.message), 0.0).effects
    assert isinstance(again, Ask)
    assert again.key.endswith("/AGAIN")


def test_the_tensors_read_back_rotate(engine: EmbeddedEngine) -> None:
    """A few each time, and within a hundred publications every one of them."""
    del engine
    seen: set[str] = set()
    for number in range(100):
        proofs = Proofs(SETTINGS)
        target = version(0, BEFORE)
        target.ready = VersionReady(
            version=number,
            tensors=target.ready.tensors,
            num_buckets=1,
            digest="",
            tensor_digests=target.ready.tensor_digests,
        )
        (ask,) = proofs.begin("engine-0", target, 0.0, compare_all=False).effects
        assert isinstance(ask, Ask)
        assert isinstance(ask.message, DigestTensors)
        assert len(ask.message.names) == 1
        seen |= set(ask.message.names)
    assert seen == set(BEFORE)


def test_bytes_that_did_not_move_although_there_was_a_gradient_are_refused() -> None:
    """The trainer exports the frozen base each time: both sides agree, and nothing is learned."""
    served = version(0, BEFORE)
    assert "very bytes of version 0" in unmoved(version(1, BEFORE).ready, served)
    assert not unmoved(version(1, BEFORE, trained=False).ready, served)
    assert not unmoved(version(1, AFTER).ready, served)
    assert not unmoved(version(0, BEFORE).ready, served), "the same version, said again"

"""Any order of requests, aborts and publications: every answer is what the slow engine says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.engine.kit import (
    drain,
    order,
    publish,
    random_row,
    random_weights,
    serving,
    step,
    tiny_shape,
)
from unit.engine.naive import NaiveRow, distribution

from milepost.actors.engine.embedded.engine import EmbeddedEngine
from milepost.actors.engine.embedded.rows import NOT_REUSABLE
from milepost.actors.engine.embedded.uniforms import stream_key, uniforms
from milepost.actors.engine.interface import Finished, GenerateOrder
from milepost.messages.engine import PauseMode
from milepost.messages.shared import FinishReason

SHAPE = tiny_shape(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, vocab_size=12)
WEIGHTS = [random_weights(SHAPE, seed) for seed in range(4)]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6, "top_k": 4},
    {"temperature": 0.0},
    {"top_p": 0.7, "min_p": 0.05},
    {"stop_token_ids": (3, 7)},
]

ADD = st.tuples(st.just("add"), st.integers(0, 5), st.integers(0, 4), st.integers(1, 9))
EVENTS = st.lists(
    st.one_of(
        ADD,
        ADD,
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("publish"), st.sampled_from(list(PauseMode))),
        st.tuples(st.just("forget"), st.integers(0, 5)),
    ),
    min_size=10,
    max_size=40,
)


@dataclass(slots=True)
class Story:
    """What was done so far, and what it must lead to."""

    engine: EmbeddedEngine
    asked: dict[str, GenerateOrder] = field(default_factory=dict)
    ended: dict[str, Finished] = field(default_factory=dict)
    modes: list[PauseMode] = field(default_factory=lambda: [PauseMode.RETRACT])
    histories: dict[str, list[int]] = field(default_factory=dict)

    def take(self, outcomes: Any) -> None:
        for outcome in outcomes:
            assert isinstance(outcome, Finished), outcome
            assert outcome.key not in self.ended, f"{outcome.key} was answered twice"
            self.ended[outcome.key] = outcome
            session = self.asked[outcome.key].session_id
            prompt = self.asked[outcome.key].token_ids.tolist()
            self.histories[session] = [*prompt, *outcome.token_ids.tolist()]

    def add(self, session: int, kind: int, length: int) -> None:
        """A turn of a session: its history so far, and some new tokens."""
        key = f"r{len(self.asked)}"
        history = self.histories.get(f"s{session}", random_row(session % 3, 10, 12).tolist())
        delta = random_row(len(self.asked), length, 12).tolist()
        row = [*history[:40], *delta]
        sampling = {"tokens_max": 1 + length, "seed": len(self.asked), **SAMPLING[kind]}
        self.asked[key] = order(key, row, f"s{session}", **sampling)
        self.engine.generate(self.asked[key])

    def check_rows(self) -> None:
        """What must hold between any two steps."""
        rows, scheduler = self.engine._rows, self.engine._scheduler
        owners = [owner for owner in rows.owner if owner is not None]
        assert sorted(owner.row for owner in owners) == np.flatnonzero(rows.busy).tolist()
        assert set(np.flatnonzero(rows.decoding)) == set(scheduler.decoding)
        assert len(owners) == scheduler.num_running
        assert all(rows.session[row] == name for name, row in rows.of_session.items())
        idle = rows.kv_length[~rows.busy & (rows.serial == NOT_REUSABLE)]
        assert (idle == 0).all(), "an idle row keeps keys that nobody may read"
        assert set(rows.serial.tolist()) <= {NOT_REUSABLE, scheduler.serial}


def replay(story: Story, asked: GenerateOrder, reply: Finished) -> None:
    """Draw the reply again, token by token, with the naive decoder and the same random numbers."""
    versions = [span.version for span in reply.spans for _ in range(span.end - span.start)]
    assert len(versions) == len(reply.token_ids)
    row, fed = NaiveRow(SHAPE), asked.token_ids.tolist()
    key = np.array([stream_key(asked.sampling.seed)])
    for index, (token, version) in enumerate(zip(reply.token_ids.tolist(), versions, strict=True)):
        changes = range(versions[index - 1] + 1, version + 1) if index else range(0)
        if index == 0 or any(story.modes[each] is PauseMode.RETRACT for each in changes):
            row = NaiveRow(SHAPE)
            for old in fed[:-1]:
                row.feed(old, WEIGHTS[version % 4])
        probabilities = distribution(row.feed(fed[-1], WEIGHTS[version % 4]), asked.sampling)
        draw = float(uniforms(key, np.array([len(fed)]))[0])
        below = probabilities[:token].sum()
        assert probabilities[token] > 0, f"{asked.key}: token {index} was cut off"
        if asked.sampling.temperature:
            assert below - 1e-5 <= draw <= below + probabilities[token] + 1e-5
        else:
            assert probabilities[token] >= probabilities.max() - 1e-5
        assert abs(np.log(probabilities[token]) - reply.logprobs[index]) < 5e-5
        fed.append(token)


@settings(max_examples=25)
@given(events=EVENTS, prefill=st.sampled_from([4, 16, 64]), slots=st.sampled_from([4, 6]))
def test_any_schedule_answers_as_the_slow_engine_does(
    events: list[tuple[Any, ...]], prefill: int, slots: int
) -> None:
    """Batching, prefixes, chunks, eviction and switches make it faster, never different."""
    engine = serving(
        SHAPE, slots=slots, running_max=4, context_tokens=64, prefill_tokens_max=prefill
    )
    story = Story(engine)
    for event in events:
        match event:
            case ("add", session, kind, length):
                story.add(session, kind, length)
            case ("step", count):
                for _ in range(count):
                    story.take(step(engine) if engine.has_work() else [])
            case ("abort", number):
                story.take(engine.abort((f"r{number}",), ()))
            case ("publish", mode):
                version = len(story.modes)
                story.modes.append(mode)
                publish(engine, WEIGHTS[version % 4], version, mode)
            case ("forget", session):
                engine.forget((f"s{session}",))
        story.check_rows()
    story.take(drain(engine).values())
    story.check_rows()
    assert story.ended.keys() == story.asked.keys(), "EN-3: every request has one answer"
    for key, reply in story.ended.items():
        asked = story.asked[key]
        replay(story, asked, reply)
        stops = set(asked.sampling.stop_token_ids)
        assert not stops & set(reply.token_ids[:-1].tolist())
        if reply.finish_reason is FinishReason.LENGTH:
            assert len(reply.token_ids) == min(asked.sampling.tokens_max, 64 - len(asked.token_ids))
    reasons = Counter(reply.finish_reason for reply in story.ended.values())
    assert sum(reasons.values()) == len(story.asked)

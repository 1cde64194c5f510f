"""The end of a session: delivered once, acknowledged when the destination has it, or lost."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import xxhash
from unit.session.kit import (
    CALL_TEXT,
    LOOKUP,
    QUESTION,
    Play,
    play,
    renderer,
    tool_result,
    weights_used,
)

from milepost.actors.arrays import from_bulk
from milepost.actors.effects import Taken, Unanswered, Woken, WorkDone
from milepost.messages.buffer import TrajectoriesFinished, TrajectoryFinished
from milepost.messages.engine import ForgetSessions
from milepost.messages.rollout import TrajectoryLost
from milepost.messages.session import (
    AbandonTrajectory,
    ConversationsImported,
    ConversationsRefused,
    FinishTrajectory,
    ImportConversations,
    TrajectoryAbandoned,
    TrajectorySent,
)
from milepost.messages.shared import Prompt, Status
from milepost.messages.trajectory import NON_GENERATION, Provenance


def deliveries(game: Play) -> list[Any]:
    """What was sent to destinations."""
    return [tell for tell in game.told if tell.confirm]


def played(**fields: Any) -> Play:
    """A session with two turns."""
    game = play()
    game.open(**fields)
    call = game.turn([QUESTION], CALL_TEXT, versions=(3, 4))
    history = [QUESTION, call, tool_result("cat", call["tool_calls"][0]["id"])]
    game.turn(history, "cat", versions=(5,))
    return game


def said(game: Play) -> Any:
    """The newest reply's message."""
    answer: Any = list(game.replies.values())[-1]
    return answer.message


def test_the_trajectory_proves_where_each_token_came_from() -> None:
    """Contracts C1 and C4, derived again from the row alone, as the trainer's door does."""
    game = played(group_size=4)
    game.finish(reward=0.5, metrics={"solved": 1.0})
    trajectory = game.take().trajectory
    token_ids = from_bulk(trajectory.token_ids)
    provenance = from_bulk(trajectory.provenance)
    mask = from_bulk(trajectory.loss_mask)
    sampled = np.zeros(len(token_ids), dtype=bool)
    for turn in trajectory.turns:
        prefix = token_ids[: turn.end].astype("<i4").tobytes()
        assert turn.prefix_hash == xxhash.xxh3_128_hexdigest(prefix)
        sampled[turn.prompt_end : turn.end] = True
    assert (mask == sampled).all()
    assert ((provenance == Provenance.SAMPLED) == sampled).all()
    assert (from_bulk(trajectory.logprobs)[~sampled] == 0).all()
    assert (from_bulk(trajectory.logprobs)[sampled] < 0).all()
    covered = np.zeros(len(token_ids), dtype=int)
    for span in trajectory.spans:
        covered[span.start : span.end] += 1
    assert (covered == sampled).all()
    assert [span.version for span in trajectory.spans] == [3, 4, 5]
    assert trajectory.num_sampled_tokens == sampled.sum()
    assert (trajectory.reward, trajectory.group_size) == (0.5, 4)
    assert trajectory.metrics == {"solved": 1.0}
    assert [turn.weights for turn in trajectory.turns] == [
        weights_used(trajectory.spans[:2]),
        weights_used(trajectory.spans[2:]),
    ]
    certificate = trajectory.certificate
    assert certificate.tokenizer_hash == renderer().tokenizer.content_hash
    assert certificate.template_hash == renderer().template.content_hash
    assert certificate.family == "qwen3"
    assert set(renderer().family.stop_token_ids) <= set(certificate.sampling.stop_token_ids)
    assert certificate.canonical_mismatch is None


def test_a_reply_that_is_not_canonical_is_reported_and_trained_as_it_is() -> None:
    """Blanks in a call's JSON: people see the difference, the row keeps the policy's words."""
    game = play()
    game.open()
    odd = CALL_TEXT.replace('"lookup", ', '"lookup",')
    call = game.turn([QUESTION], odd)
    game.finish()
    trajectory = game.take().trajectory
    assert call["tool_calls"][0]["function"]["name"] == "lookup"
    assert trajectory.certificate.canonical_mismatch.startswith("assistant_text at segment")
    assert game.desk.counters.mismatches == {"assistant_text": 1}
    sampled = from_bulk(trajectory.token_ids)[from_bulk(trajectory.loss_mask) == 1]
    assert renderer().tokenizer.decode(sampled.tolist()).startswith(odd)


def test_the_time_of_an_agents_tools_is_told_apart_from_that_of_its_model() -> None:
    """Seconds from a reply to the next request; not those of a reply, nor after the last."""
    game = play()
    game.open()
    game.now_s = 10.0
    game.chat([QUESTION])
    game.now_s = 13.0
    game.sample(CALL_TEXT)
    call = said(game)
    history = [QUESTION, call, tool_result("cat", call["tool_calls"][0]["id"])]
    game.now_s = 13.75
    game.chat(history)
    game.now_s = 20.0
    game.sample("cat")
    game.now_s = 21.5
    game.chat([*history, said(game), QUESTION])
    game.now_s = 25.0
    game.sample("cat")
    game.now_s = 99.0
    game.finish()
    assert game.take().trajectory.metadata[NON_GENERATION] == 0.75 + 1.5


def test_the_verdict_is_answered_after_the_destination_has_taken_it() -> None:
    """Not before: a row lost on the way must not count as delivered."""
    game = played()
    request = game.finish()
    (delivery,) = deliveries(game)
    assert delivery.to == "buffer"
    assert request not in game.replies
    game.handle(Taken(delivery.key))
    sent: Any = game.replies[request]
    assert isinstance(sent, TrajectorySent)
    assert sent.num_tokens == delivery.message.trajectory.token_ids.shape[0]
    assert sent.num_sampled_tokens == delivery.message.trajectory.num_sampled_tokens


def test_a_verdict_repeated_is_delivered_once_and_answered_each_time() -> None:
    """The asker may have lost our answer, or be impatient."""
    game = played()
    first, second = game.finish(), game.finish()
    assert len(deliveries(game)) == 1
    game.take()
    assert game.replies[first] == game.replies[second]
    third = game.finish()
    assert game.replies[third] == game.replies[first]
    assert len(deliveries(game)) == 1


def test_a_second_verdict_changes_nothing_while_the_first_is_on_its_way() -> None:
    """Both askers get the answer of the first; nobody is left waiting for one."""
    game = played()
    first = game.finish()
    second = game.finish(status=Status.FAILED)
    assert second not in game.replies
    game.take()
    assert isinstance(game.replies[first], TrajectorySent)
    assert game.replies[second] == game.replies[first]
    assert len(deliveries(game)) == 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"attempt": 1}, "open for attempt 0"),
        ({"reward": math.nan}, "reward is nan"),
        ({"reward": -math.inf}, "reward is -inf"),
        ({"status": Status.FAILED}, "status failed has no trajectory"),
        ({"status": Status.ABORTED}, "status aborted has no trajectory"),
    ],
)
def test_a_verdict_that_cannot_be_is_refused_by_name(fields: dict[str, Any], told: str) -> None:
    """Nothing is delivered, and the asker knows why."""
    game = played()
    lost: Any = game.replies[game.finish(**fields)]
    assert isinstance(lost, TrajectoryLost)
    assert told in lost.cause
    assert not deliveries(game)


def test_an_episode_without_a_reply_is_lost_not_empty() -> None:
    """An empty sample would train on nothing, and hide an agent that never reached the model."""
    game = play()
    game.open()
    lost: Any = game.replies[game.finish()]
    assert lost.cause == "no reply was generated in this session"


def test_a_verdict_about_an_unknown_session_is_lost_by_name() -> None:
    """After a restart of the session actor, say; told also when nobody waits for an answer."""
    game = play()
    lost: Any = game.replies[game.finish("g.7")]
    assert lost == TrajectoryLost(
        trajectory_id="g.7", attempt=0, cause="session-0 has no session g.7"
    )
    verdict = FinishTrajectory(trajectory_id="g.8", attempt=0, status=Status.COMPLETED, reward=1.0)
    game.tell(verdict, "evaluator")
    assert (game.told[-1].to, game.told[-1].message.trajectory_id) == ("evaluator", "g.8")  # type: ignore[attr-defined]


def test_a_verdict_in_the_middle_of_a_turn_stops_it_and_keeps_what_was_committed() -> None:
    """Out of time: the turn in flight never was."""
    game = play()
    game.open()
    reply = game.turn([QUESTION], "cat")
    request = game.chat([QUESTION, reply, {"role": "user", "content": "more"}])
    game.finish(status=Status.TRUNCATED)
    trajectory = game.take().trajectory
    refused: Any = game.replies[request]
    assert refused.kind == "closed"
    assert (len(trajectory.turns), trajectory.status) == (1, Status.TRUNCATED)


def test_a_delivery_that_is_not_taken_is_tried_again_and_then_lost() -> None:
    """A buffer that restarts costs a pause; one that never comes back costs the trajectory."""
    game = played()
    request = game.finish()
    for tries in range(1, 6):
        delivery = deliveries(game)[-1]
        assert len(deliveries(game)) == tries
        game.handle(Unanswered(delivery.key, "buffer", "restarted"))
        if tries < 5:
            game.now_s = game.wakes[delivery.key]
            game.handle(Woken(delivery.key))
    lost: Any = game.replies[request]
    assert "buffer did not take it in 5 tries: restarted" in lost.cause
    assert game.desk.counters.trajectories_lost == 1


def test_a_trajectory_abandoned_on_its_way_is_answered_as_lost() -> None:
    """The group was dropped between verdict and delivery; nobody waits for ever."""
    game = played()
    request = game.finish()
    order = AbandonTrajectory(trajectory_id="g.0", attempt=0, reason="group dropped")
    assert game.replies[game.ask(order)] == TrajectoryAbandoned(trajectory_id="g.0")
    lost: Any = game.replies[request]
    assert lost.cause == "group dropped"
    game.take()
    assert game.desk.counters.trajectories_sent == 0


def test_engines_are_told_in_one_message_which_sessions_ended() -> None:
    """Their prefixes may go first; a message for each would cost more than it saves."""
    game = play()
    for name in ("g.0", "g.1"):
        game.open(name)
        game.chat([QUESTION], name)
        game.sample("cat")
        game.finish(name)
        game.take()
    assert game.wakes["forget"] == 0.25
    game.handle(Woken("forget"))
    forgotten = [t.message for t in game.told if isinstance(t.message, ForgetSessions)]
    assert forgotten == [ForgetSessions(session_ids=("g.0", "g.1"))]


# ---- imports -----------------------------------------------------------------------------


def conversation(name: str, *, answered: bool = True) -> Prompt:
    """A recorded conversation."""
    messages = [QUESTION, {"role": "assistant", "content": "cat"}] if answered else [QUESTION]
    return Prompt(prompt_id=name, messages=messages, tools=[LOOKUP])


def imported(*prompts: Prompt, context: int = 4096) -> tuple[Play, Any]:
    """A core that was asked to import these, after its thread has done the work."""
    game = play(context_tokens_max=context)
    order = ImportConversations(
        prompts=prompts, group_ids=tuple(f"g{n}" for n in range(len(prompts))), deliver_to="buffer"
    )
    request = game.ask(order, "rollout")
    if game.works:
        game.work()
    return game, request


def test_a_batch_of_conversations_is_delivered_in_one_message() -> None:
    """One group of one for each; answered when the destination has them all."""
    game, request = imported(conversation("a"), conversation("b"))
    assert request not in game.replies
    delivered = game.take()
    assert isinstance(delivered, TrajectoriesFinished)
    rows = delivered.trajectories
    assert [(row.group_id, row.prompt_id) for row in rows] == [("g0", "a"), ("g1", "b")]
    num_tokens = sum(row.token_ids.shape[0] for row in rows)
    assert game.replies[request] == ConversationsImported(num_tokens=num_tokens)
    assert not any(isinstance(tell.message, TrajectoryFinished) for tell in game.told)


@pytest.mark.parametrize(
    ("prompts", "context", "told"),
    [
        ((conversation("a"), conversation("b", answered=False)), 4096, "prompt b: .*nothing to"),
        ((conversation("a"),), 8, "prompt a has .* tokens, the model takes 8"),
        ((Prompt(prompt_id="c", messages=[{"role": "x"}]),), 4096, "prompt c: .*has role 'x'"),
    ],
)
def test_a_batch_with_a_bad_conversation_is_refused_whole(
    prompts: Any, context: int, told: str
) -> None:
    """Dropping it would train on other data than the user named."""
    game, request = imported(*prompts, context=context)
    answer: Any = game.replies[request]
    assert isinstance(answer, ConversationsRefused)
    assert re.search(told, answer.reason), answer.reason
    assert not deliveries(game)


def test_parts_of_a_text_are_imported_as_one_text() -> None:
    """A template that takes texts would write nothing of them, and the row would train on that."""
    whole = conversation("a")
    parted = [
        {**message, "content": [{"type": "text", "text": text} for text in message["content"]]}
        for message in whole.messages
    ]
    rows = []
    for prompt in (whole, Prompt(prompt_id="a", messages=parted, tools=whole.tools)):
        game, _ = imported(prompt)
        rows += game.take().trajectories
    assert rows[0].token_ids == rows[1].token_ids
    assert rows[0].loss_mask == rows[1].loss_mask


def test_an_import_that_fails_or_is_not_taken_is_answered() -> None:
    """Who asked may ask again under the same names."""
    game = play()
    order = ImportConversations(prompts=(), group_ids=("g",), deliver_to="buffer")
    assert "0 prompts for 1 group" in str(game.replies[game.ask(order)])
    order = ImportConversations(prompts=(conversation("a"),), group_ids=("g",), deliver_to="buffer")
    request = game.ask(order)
    game.handle(WorkDone(next(iter(game.works)), None, "OSError: no memory"))
    assert "no memory" in str(game.replies[request])
    game.works.clear()
    request = game.ask(order)
    game.work()
    game.handle(Unanswered(deliveries(game)[-1].key, "buffer", "dead"))
    assert "buffer did not take them: dead" in str(game.replies[request])

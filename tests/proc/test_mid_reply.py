"""A verdict that is fixed while a long reply is being sampled, with a live engine and session.

Everybody is told at once: the engine stops sampling for nobody, the agent's chat ends with a
refusal, and the tokens that were sampled are in the accounts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from msgspec import structs
from proc.session_process import spec
from proc.test_session_engine import USER, WAIT_S, Scene, both

from milepost.messages.bus import Bus
from milepost.messages.rollout import TrajectoryLost
from milepost.messages.session import (
    AbandonTrajectory,
    ChatRefused,
    ChatTurn,
    FinishTrajectory,
    OpenSessions,
    SessionsOpened,
)
from milepost.messages.shared import EpisodeLimits, Message, SamplingParams, Status
from milepost.messages.trainer import VersionPublished

pytestmark = pytest.mark.timeout(150)

REPLY_TOKENS: Final = 16_000
STOPPED_TOKENS: Final = REPLY_TOKENS // 4
"""Sampled on until the stop has come through three processes, also on a machine that is busy."""


async def asked(bus: Bus, message: Message) -> Message:
    return (await bus.ask("session-0", message, deadline_s=WAIT_S)).message


async def fix_verdict(scene: Scene, how: str) -> None:
    """As the rollout actor does when a sibling's failure drops the group, or time is up."""
    bus = scene.buses["rollout"]
    if how == "group dropped":
        gone = AbandonTrajectory(trajectory_id="g.0", attempt=0, reason="a sibling failed")
        await bus.tell("session-0", gone, deadline_s=WAIT_S)
        return
    verdict = FinishTrajectory(
        trajectory_id="g.0", attempt=0, status=Status.TRUNCATED, reward=0.0, limit="seconds_max"
    )
    assert isinstance(await asked(bus, verdict), TrajectoryLost), "there is no whole reply"


@pytest.mark.parametrize("how", ["group dropped", "time is up"])
async def test_a_verdict_in_mid_reply_stops_the_engine_and_ends_the_agents_chat(
    tmp_path: Path, how: str
) -> None:
    async with both(
        tmp_path, reply_tokens_max=REPLY_TOKENS, context_tokens_max=REPLY_TOKENS + 256
    ) as scene:
        session = structs.replace(
            spec("g.0"),
            sampling=SamplingParams(tokens_max=REPLY_TOKENS, temperature=0.001, seed=1),
            limits=EpisodeLimits(reply_tokens_max=REPLY_TOKENS, tokens_max=REPLY_TOKENS + 256),
        )
        opened = await asked(scene.buses["rollout"], OpenSessions(sessions=(session,)))
        assert isinstance(opened, SessionsOpened)
        turn = ChatTurn(trajectory_id="g.0", messages=[USER], attempt=0, stream="words")
        chat = scene.buses["agent-0"].ask("session-0", turn, deadline_s=WAIT_S)
        await scene.until(lambda: scene.num_parts > 1)
        assert not chat.done(), "the reply is still being sampled"
        await fix_verdict(scene, how)
        refused = (await chat).message
        assert isinstance(refused, ChatRefused)
        assert refused.kind == "closed"
        await scene.until(lambda: _is_idle(scene))
        sampled = scene.beats["engine-0"]["tokens_answered"]
        assert 0 < sampled < STOPPED_TOKENS, "nobody waits for the rest"
        # The waste statement of the next step has every one of them.
        await scene.buses["publisher"].tell(
            "session-0", VersionPublished(version=0, digest=""), deadline_s=WAIT_S
        )
        await scene.until(lambda: bool(scene.accounts))
        assert scene.accounts == {"stopped": sampled}


def _is_idle(scene: Scene) -> bool:
    beat = scene.beats.get("engine-0", {})
    return bool(beat.get("tokens_answered")) and beat["requests_in_flight"] == 0

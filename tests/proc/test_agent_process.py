"""An agent actor over the real bus: the user's class, the reward function, and the endings."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from proc.hosts import Host, host, prompt
from unit.agent.kit import order

from milepost.configs.actors import AgentConfig
from milepost.messages.agent import CancelEpisode
from milepost.messages.rollout import AgentReady, EpisodeEnded
from milepost.messages.session import ChatTurn

pytestmark = pytest.mark.timeout(60)


@contextlib.asynccontextmanager
async def agent_process(folder: Path, agent: str, **options: Any) -> AsyncIterator[Host]:
    """The actor with this agent, judged by a reward function."""
    config = AgentConfig(agent=agent, options=options)
    async with host(folder, "agent-0", "proc.agent_rewards:exact", pipes=True, agent=config) as one:
        yield one


async def test_episodes_run_are_judged_and_end_by_name(tmp_path: Path) -> None:
    """A good one with the reward function's reward, a broken one failed, a cancelled one aborted.

    Then the process is asked to stop, and the agent's own clean-up runs.
    """
    notes = tmp_path / "notes"
    async with agent_process(tmp_path, "proc.agent_code:Asker", notes=str(notes)) as scene:
        assert await scene.next(AgentReady) == AgentReady(agent="agent-0", episodes_max=256)
        await scene.tell(order("g.0", prompt=prompt()))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.reward, ended.cause) == ("completed", 1.0, "")
        assert ended.metrics == {"solved": 1.0}
        await scene.tell(order("g.1", prompt=prompt(raises=True)))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.reward) == ("failed", None)
        assert "RuntimeError: tool broke, at " in ended.cause
        scene.answers_chats = False
        await scene.tell(order("g.2", prompt=prompt()))
        turn = await scene.next(ChatTurn)
        assert (turn.trajectory_id, turn.attempt) == ("g.2", 0)
        await scene.tell(CancelEpisode(trajectory_id="g.2", reason="group dropped"))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.cause) == ("aborted", "group dropped")
        assert scene.process is not None
        scene.process.send_signal(signal.SIGTERM)
        assert await scene.process.wait() == 0
    assert notes.read_text().splitlines() == ["started with {'split': 'a'}", "stopped"]


@pytest.mark.parametrize(
    ("agent", "options", "told"),
    [
        ("proc.agent_code:NoAgent", {}, "is no subclass of milepost.actors.agent.Agent"),
        ("proc.agent_code:Missing", {}, "is no subclass of milepost.actors.agent.Agent"),
        ("proc.agent_code:Asker", {"note": "x"}, "refuses its options {'note': 'x'}"),
        ("proc.nothing:Asker", {}, "No module named 'proc.nothing'"),
    ],
)
async def test_an_agent_that_cannot_be_made_ends_the_process_with_the_reason(
    tmp_path: Path, agent: str, options: dict[str, Any], told: str
) -> None:
    """Before any episode is taken."""
    async with agent_process(tmp_path, agent, **options) as scene:
        assert scene.process is not None
        _, stderr = await scene.process.communicate()
        assert scene.process.returncode == 1
        assert told in stderr.decode()

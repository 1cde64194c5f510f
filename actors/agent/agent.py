"""The class a user writes: one method, one episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost.actors.agent.episode import Episode
    from milepost.actors.agent.sandbox import Leases


class Agent:
    """Base of all agents. One instance runs many episodes at once on one event loop.

    Keyword arguments of the constructor come from `actors.agent.options`. State of an episode
    belongs into `run`; state of the instance is shared by all episodes.

    Attributes:
        data_options: `data.options` of the topology, unread.
        leases: where what must not outlive the run is written down, e.g. for a `Sandbox`; None
            outside of a run.
    """

    data_options: dict[str, Any]
    leases: Leases | None = None

    async def start(self) -> None:
        """Called once, before the first episode; open clients here. Nothing by default."""

    async def run(self, episode: Episode) -> None:
        """Run one episode: chat, act, report.

        May be cancelled at any `await`, when time is up or the run stops the episode; `finally`
        blocks run. An exception fails the episode, and is never turned into a reward.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Called once, after the last episode. Nothing by default."""

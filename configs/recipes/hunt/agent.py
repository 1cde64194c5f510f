"""The agent of the treasure hunt: asks the model, carries out its calls, reports the reward."""

from __future__ import annotations

from milepost.actors.agent import Agent, Episode, LimitReached
from milepost.configs.recipes.hunt.environment import HuntEnvironment
from milepost.configs.recipes.hunt.island import TOOLS


class HuntAgent(Agent):
    """Walks to one treasure and digs it up."""

    async def run(self, episode: Episode) -> None:
        """One episode: chat until the treasure is found or the turns are used up."""
        environment = HuntEnvironment(episode.prompt)
        messages = list(episode.prompt.messages)
        results = messages
        while results:
            try:
                reply = await episode.chat(messages, tools=TOOLS)
            except LimitReached:
                break
            results = environment.react(reply.message)
            messages = [*messages, reply.message, *results]
        episode.report(reward=environment.reward, metrics=environment.metrics)

"""The agent of directory look-up: asks the model, carries out its calls, reports the reward."""

from __future__ import annotations

from milepost.actors.agent import Agent, Episode, LimitReached
from milepost.configs.recipes.lookup.directory import TOOLS
from milepost.configs.recipes.lookup.environment import LookupEnvironment


class LookupAgent(Agent):
    """Answers one question by looking up links."""

    async def run(self, episode: Episode) -> None:
        """One episode: chat until the model answers or has had its turns."""
        environment = LookupEnvironment(episode.prompt)
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

"""One episode of directory look-up: answers tool calls, judges the final answer.

It knows chat messages only, no model and no bus, so the agent and any other loop can use it.
"""

from __future__ import annotations

import json

from milepost.configs.recipes.lookup.directory import FIELDS, directory_of, question_of
from milepost.messages.shared import ChatMessage, Prompt

TURNS_MAX = 5
"""Replies of the agent in one episode: three look-ups, the answer, and one to spare."""
PARTIAL_CREDIT = 0.5


class LookupEnvironment:
    """The directory of one prompt and how far the agent has come."""

    def __init__(self, prompt: Prompt) -> None:
        self.question = question_of(prompt)
        self._directory = directory_of(self.question.directory_seed)
        self._values = self._directory.follow(self.question)
        self._followed = 0
        self._calls = 0
        self._turns = 0
        self._answer: str | None = None

    def react(self, message: ChatMessage) -> list[ChatMessage]:
        """Take the agent's message; return the tool results, or nothing when the episode is over.

        A message without tool calls is the answer.
        """
        self._turns += 1
        calls = message.get("tool_calls") or []
        if not calls:
            self._answer = (message.get("content") or "").strip()
            return []
        results: list[ChatMessage] = [
            {"role": "tool", "tool_call_id": call["id"], "content": self._call(call["function"])}
            for call in calls
        ]
        return results if self._turns < TURNS_MAX else []

    def _call(self, function: dict[str, str]) -> str:
        self._calls += 1
        if function["name"] != "lookup":
            return f"error: no tool {function['name']}"
        try:
            arguments = json.loads(function["arguments"])
        except json.JSONDecodeError:
            return "error: arguments are not JSON"
        if not isinstance(arguments, dict) or set(arguments) != {"name", "field"}:
            return "error: lookup takes name and field"
        name, field = str(arguments["name"]), arguments["field"]
        if field not in FIELDS:
            return f"error: no field {field}"
        if self._followed < len(self._values) and (name, field) == self._next_link():
            self._followed += 1
        return self._directory.lookup(name, field)

    def _next_link(self) -> tuple[str, str]:
        """The call that follows the path one link further."""
        known = [self.question.subject, *self._values]
        return known[self._followed], self.question.path[self._followed]

    @property
    def solved(self) -> bool:
        """The final answer is exactly right."""
        return self._answer == self._values[-1]

    @property
    def reward(self) -> float:
        """1 for the right answer, else half the share of links followed in order."""
        if self.solved:
            return 1.0
        return PARTIAL_CREDIT * self._followed / len(self._values)

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers for curves and evaluation tables."""
        return {
            "solved": float(self.solved),
            "hops": float(len(self._values)),
            "links_followed": float(self._followed),
            "calls": float(self._calls),
        }

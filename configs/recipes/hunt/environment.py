"""One episode of the treasure hunt: answers tool calls, judges how far the agent came.

It knows chat messages only, no model and no bus, so the agent and any other loop can use it.
"""

from __future__ import annotations

import json

from milepost.configs.recipes.hunt.island import (
    DIRECTIONS,
    FOUND,
    NOTHING,
    distance,
    hint,
    moved,
    start_of,
    turns_max,
)
from milepost.messages.shared import ChatMessage, Prompt

PARTIAL_CREDIT = 0.5


class HuntEnvironment:
    """One hunt and how far the agent has come."""

    def __init__(self, prompt: Prompt) -> None:
        self._start = start_of(prompt)
        self._offset = self._start
        self._turns = 0
        self._digs = 0
        self._found = False

    def react(self, message: ChatMessage) -> list[ChatMessage]:
        """Take the agent's message; return the tool results, or nothing when the episode is over.

        It is over when the treasure is dug up, when the agent calls no tool, and when it has had
        its turns.
        """
        self._turns += 1
        results: list[ChatMessage] = [
            {"role": "tool", "tool_call_id": call["id"], "content": self._call(call["function"])}
            for call in message.get("tool_calls") or []
        ]
        return [] if self._found or self._turns >= turns_max(self._start) else results

    def _call(self, function: dict[str, str]) -> str:
        try:
            arguments = json.loads(function["arguments"])
        except json.JSONDecodeError:
            return "error: arguments are not JSON"
        match function["name"], arguments:
            case "dig", _:
                self._digs += 1
                self._found = self._found or distance(self._offset) == 0
                return FOUND if self._found else NOTHING
            case "move", {"direction": str(direction)} if direction in DIRECTIONS:
                self._offset = moved(self._offset, direction)
                return hint(self._offset)
            case "move", _:
                return "error: move takes a direction"
            case name, _:
                return f"error: no tool {name}"

    @property
    def solved(self) -> bool:
        """The treasure was dug up."""
        return self._found

    @property
    def reward(self) -> float:
        """1 for the treasure, else half the share of the way that was covered."""
        if self._found:
            return 1.0
        hops = distance(self._start)
        return PARTIAL_CREDIT * max(0, hops - distance(self._offset)) / hops

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers for curves and evaluation tables."""
        return {
            "solved": float(self._found),
            "hops": float(distance(self._start)),
            "turns": float(self._turns),
            "digs": float(self._digs),
        }

"""The linear history of one conversation: what may follow, and what a retry goes back to.

A request is planned beside the history; only `commit` changes it. The newest turn may be tried
again, everything earlier stands. A replayed history that changes a sampled reply is refused: going
on from it would quietly throw away what the policy said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from milepost.actors.session.matchers import Matcher, first_difference
from milepost.actors.session.refusal import TurnRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from milepost.messages.shared import ChatMessage


class Plan(Struct, frozen=True):
    """How one request continues a history. Valid for the history it was made on."""

    base_turns: int
    """Turns that stay."""
    base_messages: int
    """Messages that stay."""
    appended: list[ChatMessage]
    """Messages that come after them, before the new reply."""
    tools: list[dict[str, Any]]
    is_retry: bool
    """Another reply was generated at this place; a linear history throws it away."""
    parent: int | None = None
    """Tree only: number of the turn that it continues."""


class Replayed(list["ChatMessage"]):
    """A replayed conversation that only ever grows at its end: whoever knows its beginning, does.

    A client's door keeps one for as long as the client repeats what it sent, and gives the same
    list with each turn. Nobody else changes it. It grows while earlier turns are in flight: whoever
    keeps one beyond the call copies it, or remembers how much of it is meant.
    """

    __slots__ = ()


class LinearHistory:
    """Messages of one conversation, and where each generated reply ends among them.

    Args:
        matcher: whether a replayed message is the stored one.
        appended_roles: roles that may follow a reply.
    """

    __slots__ = (
        "_agreed",
        "_appended_roles",
        "_matcher",
        "_replayed",
        "ends",
        "messages",
        "tools",
        "truncated",
    )

    def __init__(self, matcher: Matcher, appended_roles: Collection[str]) -> None:
        self._matcher = matcher
        self._appended_roles = appended_roles
        self.messages: list[ChatMessage] = []
        self.ends: list[int] = []
        """For each turn, number of messages up to and with its reply."""
        self.tools: list[dict[str, Any]] = []
        self.truncated = False
        """The newest reply was cut off; it may be tried again, not continued."""
        self._replayed: Replayed | None = None
        """Of the newest plan."""
        self._agreed = 0
        """Its first messages are ours, so many of them: nobody compares them again."""

    def plan(self, messages: list[ChatMessage], tools: list[dict[str, Any]]) -> Plan:
        """How this request goes on. The history stays as it is.

        Of a `Replayed` it is remembered how much of it is ours, for the next plan.

        Raises:
            TurnRefused: `not_append_only`, `truncated`, or `bad_request` for a role the family
                cannot append; says which message and why.
        """
        matched = self._matched(messages)
        if matched == len(self.messages):
            plan = Plan(len(self.ends), matched, messages[matched:], tools, is_retry=False)
        else:
            plan = self._plan_retry(messages, tools, matched)
        if plan.base_turns == 0:
            return plan
        if tools != self.tools:
            raise TurnRefused(
                "not_append_only",
                f"the tools are part of the history: it began with {_names(self.tools)}, the "
                f"request has {_names(tools)}; a linear session cannot change them",
            )
        check_appended(plan, self._appended_roles)
        if self.truncated and not plan.is_retry:
            raise TurnRefused(
                "truncated",
                f"the reply of turn {len(self.ends)} was cut off by a token limit: it can be tried "
                "again, not continued",
            )
        return plan

    def commit(self, plan: Plan, reply: ChatMessage, *, truncated: bool) -> None:
        """Make the plan and its reply the history."""
        assert plan.base_turns in (len(self.ends), len(self.ends) - 1), f"stale plan {plan}"
        self._shorten(plan.base_messages)
        del self.ends[plan.base_turns :]
        self.messages += plan.appended
        self.messages.append(reply)
        self.ends.append(len(self.messages))
        self.tools = plan.tools
        self.truncated = truncated

    def cut(self, turns: int) -> None:
        """Forget all but the first `turns` turns."""
        self._shorten(self.ends[turns - 1])
        del self.ends[turns:]
        self.truncated = False

    def validate(self) -> None:
        """Assert what is remembered of a comparison; costs every message."""
        replayed = self._replayed or ()
        assert self._agreed <= min(len(self.messages), len(replayed)), "agreed on what is not there"
        for stored, other in zip(self.messages, replayed[: self._agreed], strict=False):
            assert stored is other or self._matcher(stored, other), "a replayed list has changed"

    def last_calls(self, base_turns: int) -> list[dict[str, Any]]:
        """Tool calls of the last reply among the first `base_turns` turns."""
        reply = self.messages[self.ends[base_turns - 1] - 1] if base_turns else {}
        return reply.get("tool_calls") or []

    def _matched(self, messages: Sequence[ChatMessage]) -> int:
        """How many messages at the beginning are ours."""
        ours, same = self.messages, self._matcher
        known = self._agreed if messages is self._replayed else 0
        both = min(len(ours), len(messages))
        # What a door did not parse again is the stored message itself.
        differ = (
            at
            for at in range(known, both)
            if ours[at] is not messages[at] and not same(ours[at], messages[at])
        )
        matched = next(differ, both)
        self._replayed, self._agreed = None, 0
        if isinstance(messages, Replayed):
            self._replayed, self._agreed = messages, matched
        return matched

    def _shorten(self, length: int) -> None:
        del self.messages[length:]
        self._agreed = min(self._agreed, length)

    def _plan_retry(
        self, messages: list[ChatMessage], tools: list[dict[str, Any]], matched: int
    ) -> Plan:
        base_turns = sum(end <= matched for end in self.ends)
        discarded = len(self.ends) - base_turns
        if discarded > 1:
            raise TurnRefused("not_append_only", self._told(messages, matched, discarded))
        base_messages = self.ends[base_turns - 1] if base_turns else 0
        # A first prompt may quote replies of its own; from the sampled reply on, only it counts.
        first = matched if base_turns else max(matched, self.ends[0] - 1)
        for index in range(first, len(messages)):
            if messages[index]["role"] == "assistant":
                raise TurnRefused(
                    "not_append_only",
                    f"{self._told(messages, matched, discarded)}; messages[{index}] stands in the "
                    "place of the sampled reply, which is the only one that trains",
                )
        return Plan(base_turns, base_messages, messages[base_messages:], tools, is_retry=True)

    def _told(self, messages: Sequence[ChatMessage], matched: int, discarded: int) -> str:
        text = (
            f"the request repeats {matched} of the {len(self.messages)} messages of this session "
            f"and would discard {discarded} turns; a linear session only appends, or tries its "
            "newest turn again"
        )
        if matched < len(messages):
            field = first_difference(self.messages[matched], messages[matched])
            text += f"; messages[{matched}] differs in {field or 'the eyes of the matcher'}"
        return text


def check_appended(plan: Plan, appended_roles: Collection[str]) -> None:
    """Refuse a role that cannot follow a reply.

    Raises:
        TurnRefused: kind bad_request; names the message.
    """
    for offset, message in enumerate(plan.appended):
        # A developer's words are the system's, where a template knows no developers.
        role = "system" if message["role"] == "developer" else message["role"]
        if role not in appended_roles:
            raise TurnRefused(
                "bad_request",
                f"messages[{plan.base_messages + offset}] has role {message['role']!r}, which "
                f"cannot follow a reply; allowed are {', '.join(sorted(appended_roles))}",
            )


def _names(tools: Sequence[dict[str, Any]]) -> str:
    names = [str(tool.get("function", tool).get("name")) for tool in tools]
    return f"{len(tools)} tools ({', '.join(names)})" if tools else "no tools"

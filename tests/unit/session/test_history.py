"""Linear histories: what may follow, what a retry goes back to; planning changes nothing."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.session.history import LinearHistory, Plan, Replayed
from milepost.actors.session.matchers import loose_tool_call, role_content_only, strict
from milepost.actors.session.refusal import TurnRefused

ROLES = frozenset({"user", "tool", "system", "assistant"})


def user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def said(text: str, arguments: str = "") -> dict[str, Any]:
    """A reply, perhaps with a call."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if arguments:
        function = {"name": "f", "arguments": arguments}
        message["tool_calls"] = [{"id": "c", "type": "function", "function": function}]
    return message


def history(*turns: tuple[list[dict[str, Any]], dict[str, Any]], **options: Any) -> LinearHistory:
    """After these turns: (new messages, reply)."""
    made = LinearHistory(options.get("matcher", strict), options.get("roles", ROLES))
    for appended, reply in turns:
        plan = made.plan([*made.messages, *appended], options.get("tools", []))
        made.commit(plan, reply, truncated=False)
    return made


TWO = [([user("a")], said("A")), ([user("b")], said("B"))]
S = [user("a"), said("A"), user("b"), said("B")]


@pytest.mark.parametrize(
    ("request_", "base_turns", "appended", "is_retry"),
    [
        ([*S, user("c")], 2, [user("c")], False),
        (S, 2, [], False),
        (S[:3], 1, [user("b")], True),
        (S[:2], 1, [], True),
        ([*S[:2], user("x"), user("y")], 1, [user("x"), user("y")], True),
    ],
)
def test_a_request_appends_or_tries_the_newest_turn_again(
    request_: Any, base_turns: int, appended: Any, is_retry: Any
) -> None:
    """The base is always a committed turn; what comes after it is rendered."""
    plan = history(*TWO).plan(request_, [])
    assert (plan.base_turns, plan.appended, plan.is_retry) == (base_turns, appended, is_retry)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ([user("x")], "repeats 0 of the 4 messages .* would discard 2 turns.*differs in content"),
        (S[:1], "repeats 1 of the 4 messages .* would discard 2 turns"),
        ([user("a"), said("X"), user("b")], "repeats 1 of the 4.*differs in content"),
        ([*S[:3], said("X"), user("c")], "place of the sampled reply"),
        ([*S[:3], said("B", "{}"), user("c")], "differs in tool_calls.*place of the sampled reply"),
    ],
)
def test_anything_that_would_lose_a_sampled_reply_is_refused(request_: Any, told: str) -> None:
    """A harness that rewrites what the model said would train on words nobody sampled.

    Rolling back quietly, as one step at a time allows, would throw a sampled reply away each turn.
    """
    with pytest.raises(TurnRefused, match=told) as refused:
        history(*TWO).plan(request_, [])
    assert refused.value.kind == "not_append_only"


def test_the_first_turn_can_be_tried_with_another_prompt() -> None:
    """There is nothing before it to protect; replies quoted in a first prompt are just text."""
    quoted = [user("q"), said("Q"), user("a")]
    once = history((quoted, said("A")))
    assert once.plan([user("z")], []).base_turns == 0
    assert once.plan(quoted, []).is_retry
    assert once.plan([user("q"), said("other"), user("a")], []).is_retry


def test_the_stored_spelling_wins() -> None:
    """A matcher may be lenient; the row and its canonical rendering stay what was sampled."""
    loose = history(([user("a")], said("", '{"x": 1}')), matcher=loose_tool_call)
    plan = loose.plan([user("a"), said("", '{"x":1}'), user("b")], [])
    loose.commit(plan, said("B"), truncated=False)
    assert loose.messages == [user("a"), said("", '{"x": 1}'), user("b"), said("B")]


def test_the_dangerous_matcher_takes_one_call_for_another() -> None:
    """Which is why it is not the default: the stored history wins over what the agent did."""
    blind = history(([user("a")], said("", '{"x": 1}')), matcher=role_content_only)
    assert blind.plan([user("a"), said("", '{"x": 2}'), user("b")], []).base_turns == 1


def test_other_tools_are_another_prefix() -> None:
    """Tokens rendered under other tools cannot be reused; only a first turn may choose anew."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    once = history(([user("a")], said("A")), tools=tools)
    with pytest.raises(TurnRefused, match=r"began with 1 tools \(f\), the request has no tools"):
        once.plan([user("a"), said("A"), user("b")], [])
    assert once.plan([user("a")], []).base_turns == 0


def test_a_reply_that_was_cut_off_is_tried_again_but_not_continued() -> None:
    """Going on would make the model read its own cut-off text as a finished turn."""
    made = history()
    made.commit(made.plan([user("a")], []), said("A"), truncated=True)
    with pytest.raises(TurnRefused, match="was cut off") as refused:
        made.plan([user("a"), said("A"), user("b")], [])
    assert refused.value.kind == "truncated"
    made.commit(made.plan([user("a")], []), said("A2"), truncated=False)
    assert made.plan([user("a"), said("A2"), user("b")], []).base_turns == 1


def test_roles_that_the_family_cannot_append_are_refused() -> None:
    """In a first prompt the template decides; after a reply the family does."""
    made = history(([{"role": "system", "content": "s"}], said("A")), roles=frozenset({"user"}))
    with pytest.raises(TurnRefused, match=r"messages\[2\] has role 'system'.*allowed are user"):
        made.plan([*made.messages, {"role": "system", "content": "s"}], [])


def test_a_replayed_list_is_compared_once() -> None:
    """Of a long conversation only the new messages are looked at, as long as a door vouches."""
    compared = []

    def counted(stored: dict[str, Any], replayed: dict[str, Any]) -> bool:
        compared.append(stored)
        return strict(stored, replayed)

    made = history(matcher=counted)
    sent = Replayed([user("0")])
    for number in range(100):
        made.commit(made.plan(sent, []), said(f"r{number}"), truncated=False)
        sent += [said(f"r{number}"), user(f"{number + 1}")]
    assert len(compared) == 99, "each reply when it came back"
    assert made.plan([*sent], []).base_turns == 100, "an ordinary list is looked at"
    assert len(compared) == 99 + 100


def test_a_list_that_its_owner_may_change_is_compared_each_time() -> None:
    """An agent's code keeps its messages in one list, and may change what stands in it."""
    made, kept = history(*TWO), [*S, user("c")]
    assert made.plan(kept, []).base_turns == 2
    kept[1] = said("other")
    with pytest.raises(TurnRefused, match="repeats 1 of the 4 messages"):
        made.plan(kept, [])


@pytest.mark.parametrize("seed", range(40))
def test_what_is_not_compared_again_changes_no_plan(seed: int) -> None:
    """Lists that grow, other lists, retries, plans that are not committed: as if all were new."""
    generator = random.Random(seed)
    made, slow = history(), history()
    lists = [Replayed([user("a")])]
    for _ in range(60):
        asked: list[dict[str, Any]] = generator.choice(lists[-2:])
        step = generator.random()
        if step < 0.5 and made.messages[: len(asked)] == asked:
            asked += [*made.messages[len(asked) :], user(generator.choice("ab"))]
        elif step < 0.7:
            asked = Replayed(asked[: generator.randint(1, len(asked))])
            asked[-1] = generator.choice([asked[-1], user("b"), said("x")])
            lists.append(asked)
        elif step < 0.8:
            asked = [*asked]
        outcomes: list[Plan | str] = []
        for one, messages in ((made, asked), (slow, [*asked])):
            try:
                outcomes.append(one.plan(messages, []))
            except TurnRefused as refused:
                outcomes.append(str(refused))
        made.validate()
        assert outcomes[0] == outcomes[1]
        if generator.random() < 0.7 and isinstance(outcomes[0], Plan):
            reply = said(generator.choice("xyz"))
            for one, plan in zip((made, slow), outcomes, strict=True):
                assert isinstance(plan, Plan)
                one.commit(plan, reply, truncated=False)
        elif len(made.ends) > 1 and generator.random() < 0.1:
            turns = generator.randint(1, len(made.ends))
            made.cut(turns)
            slow.cut(turns)
        made.validate()
        assert made.messages == slow.messages


words = st.sampled_from(["a", "b"])
requests = st.lists(
    st.one_of(words.map(user), words.map(said)), min_size=1, max_size=6
)  # fmt: skip


@given(st.lists(st.tuples(requests, words), max_size=8), requests)
def test_planning_never_changes_a_history_and_commits_extend_what_was_planned(
    steps: list[tuple[list[dict[str, Any]], str]], last: list[dict[str, Any]]
) -> None:
    """Random requests against random histories: refused ones leave no trace."""
    made = history()
    for number, (extra, reply) in enumerate([*steps, (last, "z")]):
        asked = [*made.messages, *extra] if number % 2 else extra
        before = copy.deepcopy((made.messages, made.ends, made.tools, made.truncated))
        try:
            plan = made.plan(asked, [])
        except TurnRefused:
            plan = None
        assert before == (made.messages, made.ends, made.tools, made.truncated)
        if plan is None:
            continue
        turns = len(made.ends)
        made.commit(plan, said(reply), truncated=False)
        assert len(made.ends) - turns == (0 if plan.is_retry else 1)
        assert made.messages == [*asked, said(reply)]
        assert [made.messages[end - 1]["role"] for end in made.ends] == ["assistant"] * len(
            made.ends
        )

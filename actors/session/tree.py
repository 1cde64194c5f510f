"""The tree record: a conversation that may fork, start afresh, and go on from any earlier reply.

Harnesses that fork sub-agents or compact their context cannot know how many conversations they
hold. Each generation is a node; nodes are only ever added. A request continues the deepest node
whose whole path it repeats, and begins a new root when there is none. Twins, which say the same
after the same history, are told apart by their number: the later one is continued.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from milepost.actors.session.history import Plan, check_appended
from milepost.actors.session.record import Branch, Turn
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.row import TokenRow
from milepost.actors.session.sampled_calls import SampledCalls, num_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from milepost.actors.session.families import Seam
    from milepost.actors.session.matchers import Matcher
    from milepost.actors.session.text.rendering import Piece
    from milepost.messages.shared import ChatMessage


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One generation. Its row is its parent's, the seam, the new text and the reply."""

    turn: Turn
    parent: Node | None
    messages: list[ChatMessage]
    """What the request added to its parent's path, and the reply."""
    tools: list[dict[str, Any]]
    depth: int
    """Turns of its path."""
    length: int
    """Tokens of its row."""
    children: list[Node] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Of the generation: of two nodes, the later was asked for later."""
        return self.turn.number

    def path(self) -> list[Node]:
        """From the root to this node."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class TreeRecord:
    """See the module.

    Args:
        matcher: whether a replayed message is the stored one.
        appended_roles: roles that may follow a reply.
        nodes_max: generations of one session.
        tokens_max: tokens of all nodes together, each shared beginning counted once; and of the
            rows that are delivered, each with the whole of its path.
        keeps_retries: whether replies may be delivered that a later one took the place of.
    """

    takes_parallel = True

    def __init__(
        self,
        matcher: Matcher,
        appended_roles: Collection[str],
        *,
        nodes_max: int,
        tokens_max: int,
        keeps_retries: bool = True,
    ) -> None:
        self._matcher = matcher
        self._appended_roles = appended_roles
        self._nodes_max = nodes_max
        self._tokens_max = tokens_max
        self._keeps_retries = keeps_retries
        self._nodes: dict[int, Node] = {}
        self._roots: list[Node] = []
        self._leaf_tokens = 0
        """Of the rows of all leaves, retried or not."""
        self.sampled_calls = SampledCalls()
        self.num_tokens = 0
        self.num_sampled_tokens = 0

    @property
    def num_turns(self) -> int:
        """Nodes."""
        return len(self._nodes)

    @property
    def known(self) -> Sequence[ChatMessage]:
        """Nothing: a request may repeat any branch."""
        return ()

    def plan(
        self,
        messages: list[ChatMessage],
        tools: list[dict[str, Any]],
        *,
        in_flight: Sequence[Plan] = (),
    ) -> Plan:
        """Continue the deepest node that the request repeats, or begin a new root.

        Raises:
            TurnRefused: `limit` when the tree is full, `truncated`, or `bad_request` for a role.
        """
        node, matched = self._deepest(messages, tools)
        parent = node.number if node else None
        if why := self._is_full(in_flight, node):
            limit, told = why
            raise TurnRefused("limit", told, limit=limit, parent=parent)
        if node is None:
            # Not the list itself: a door's grows with its next request.
            return Plan(0, 0, messages[:], tools, is_retry=bool(self._roots))
        plan = Plan(
            node.depth,
            matched,
            messages[matched:],
            tools,
            is_retry=bool(node.children),
            parent=node.number,
        )
        check_appended(plan, self._appended_roles)
        if node.turn.is_cut:
            raise TurnRefused(
                "truncated",
                f"the reply of turn {node.depth} of this branch was cut off by a token limit: it "
                "can be tried again, not continued",
            )
        return plan

    def _is_full(self, in_flight: Sequence[Plan], parent: Node | None) -> tuple[str, str] | None:
        """The bound that leaves no place for one more turn after this one, in words, too."""
        if len(self._nodes) + len(in_flight) >= self._nodes_max:
            return "nodes_max", (
                f"{len(self._nodes)} turns were generated in all branches and {len(in_flight)} are "
                f"in flight, actors.session.tree.nodes_max is {self._nodes_max}"
            )
        bound = f"actors.session.tree.tokens_max is {self._tokens_max}"
        if self.num_tokens >= self._tokens_max:
            return "tree.tokens_max", f"the branches hold {self.num_tokens} tokens, {bound}"
        grown = [node for plan in in_flight if (node := self._parent(plan))]
        grown += [parent] if parent else []
        if self._leaf_tokens + sum(node.length for node in grown) < self._tokens_max:
            return None
        row_tokens = self._row_tokens(grown)
        if row_tokens < self._tokens_max:
            return None
        return "tree.tokens_max", (
            f"the rows of the branches would have {row_tokens} tokens, what they share counted in "
            f"each, {bound}"
        )

    def _row_tokens(self, grown: Sequence[Node]) -> int:
        """Of all rows that may be delivered once these nodes have one more child each.

        Replies to first prompts all count: which of them are retries takes comparing their text.
        """
        newest = {node.number: math.inf for node in grown}
        for node in self._nodes.values():
            if node.children and node.number not in newest:
                newest[node.number] = max(child.number for child in node.children)
        rows = [
            node.length
            for node in self._nodes.values()
            if node.number not in newest
            and (
                self._keeps_retries or not node.parent or node.number >= newest[node.parent.number]
            )
        ]
        added = grown if self._keeps_retries else {node.number: node for node in grown}.values()
        return sum(rows) + sum(node.length for node in added)

    def _deepest(
        self, messages: list[ChatMessage], tools: list[dict[str, Any]]
    ) -> tuple[Node | None, int]:
        """The node to continue and how many messages its path has. No recursion: trees are deep."""
        best: Node | None = None
        best_rank = (0, 0, 0)
        open_nodes = [(root, 0) for root in self._roots if root.tools == tools]
        while open_nodes:
            node, start = open_nodes.pop()
            end = start + len(node.messages)
            if end > len(messages):
                continue
            pairs = zip(node.messages, messages[start:end], strict=True)
            if not all(stored is other or self._matcher(stored, other) for stored, other in pairs):
                continue
            if (rank := (end, node.depth, node.number)) > best_rank:
                best, best_rank = node, rank
            open_nodes += [(child, end) for child in node.children]
        return best, best_rank[0]

    def _parent(self, plan: Plan) -> Node | None:
        return None if plan.parent is None else self._nodes[plan.parent]

    def last_calls(self, plan: Plan) -> list[dict[str, Any]]:
        """Tool calls of the reply that is continued."""
        parent = self._parent(plan)
        return (parent.turn.message.get("tool_calls") or []) if parent else []

    def last_token(self, plan: Plan) -> int | None:
        """Last token of the row that is continued."""
        parent = self._parent(plan)
        return int(parent.turn.reply.token_ids[-1]) if parent else None

    def base_length(self, plan: Plan) -> int:
        """Tokens of the row that is continued."""
        parent = self._parent(plan)
        return parent.length if parent else 0

    def prompt(self, plan: Plan, seam: Seam, piece: Piece) -> NDArray[np.int32]:
        """The path's tokens, the seam, and the new text."""
        parent = self._parent(plan)
        parts: list[NDArray[np.int32]] = []
        for node in parent.path() if parent else ():
            _add(parts, node.turn.seam, node.turn.piece)
            parts.append(node.turn.reply.token_ids)
        _add(parts, seam, piece)
        return np.concatenate(parts).astype("<i4", copy=False)

    def commit(self, plan: Plan, turn: Turn) -> int:
        """Add a node; nothing is thrown away before the leaves are picked."""
        assert turn.number not in self._nodes, f"generation {turn.number} is committed twice"
        parent, reply = self._parent(plan), turn.reply
        # The engine's message would stay in memory as long as a view of it does.
        own = replace(
            reply,
            token_ids=reply.token_ids.copy(),
            logprobs=reply.logprobs.copy(),
            routes=None if reply.routes is None else reply.routes.copy(),
        )
        added = len(turn.seam.insert) - turn.seam.drop
        added += len(turn.piece.token_ids) + len(own.token_ids)
        node = Node(
            turn=Turn(turn.number, turn.seam, turn.piece, own, turn.message, turn.cut_by),
            parent=parent,
            messages=[*plan.appended, turn.message],
            tools=plan.tools,
            depth=plan.base_turns + 1,
            length=(parent.length if parent else 0) + added,
        )
        self._leaf_tokens += node.length
        if parent and not parent.children:
            self._leaf_tokens -= parent.length
        (parent.children if parent else self._roots).append(node)
        self._nodes[turn.number] = node
        self.sampled_calls.add(turn.message)
        self.num_tokens += added
        self.num_sampled_tokens += len(own.token_ids)
        return 0

    def cut_after(self, number: int) -> None:
        """Remove the nodes asked for after this one; what a node was added to came before it."""
        for late in sorted((each for each in self._nodes if each > number), reverse=True):
            self._remove(self._nodes[late])

    def keep_received(self, numbers: Collection[int]) -> None:
        """Remove the nodes that are neither of these nor on the path of one."""
        for number in sorted(self._nodes, reverse=True):
            node = self._nodes[number]
            if number not in numbers and not node.children:
                self._remove(node)

    def _remove(self, node: Node) -> None:
        del self._nodes[node.number]
        self.sampled_calls.remove(node.turn.message)
        (node.parent.children if node.parent else self._roots).remove(node)
        self._leaf_tokens -= node.length
        if node.parent and not node.parent.children:
            self._leaf_tokens += node.parent.length
        self.num_tokens -= node.length - (node.parent.length if node.parent else 0)
        self.num_sampled_tokens -= len(node.turn.reply.token_ids)

    def branches(self) -> list[Branch]:
        """One for each leaf, in the order their last turns were asked for."""
        return self.later()()

    def later(self) -> Callable[[], list[Branch]]:
        """The leaves of now: a node and its path never change, whatever is added to them."""
        leaves = [node for node in self._nodes.values() if not node.children]
        leaves.sort(key=lambda node: node.number)
        found = [(leaf, self._is_retried(leaf)) for leaf in leaves]
        return lambda: [_branch(leaf, retried=retried) for leaf, retried in found]

    def _is_retried(self, leaf: Node) -> bool:
        """A later reply stands at its place: after the same reply, whatever it was asked.

        First prompts have one place each, by their text.
        """
        if leaf.parent is not None:
            return any(twin.number > leaf.number for twin in leaf.parent.children)
        return any(
            twin.number > leaf.number
            and twin.tools == leaf.tools
            and twin.messages[:-1] == leaf.messages[:-1]
            for twin in self._roots
        )

    def validate(self) -> None:
        """Assert that the tree holds together, and every row of it."""
        held = sampled = leaves = 0
        for number, node in self._nodes.items():
            siblings = node.parent.children if node.parent else self._roots
            assert node.number == number, f"node {number} is filed wrongly"
            assert siblings.count(node) == 1, f"node {number} is not its parent's child once"
            assert node.parent is None or node.parent.number < number, "a child before its parent"
            held += node.length - (node.parent.length if node.parent else 0)
            sampled += len(node.turn.reply.token_ids)
            leaves += 0 if node.children else node.length
        replies = [node.turn.message for node in self._nodes.values()]
        assert len(self.sampled_calls) == num_calls(replies), "calls of another tree"
        found = held, sampled, leaves
        counted = self.num_tokens, self.num_sampled_tokens, self._leaf_tokens
        assert found == counted, f"{found} tokens are counted as {counted}"
        for branch in self.branches():
            branch.row.validate()
            length = self._nodes[branch.path[-1]].length
            assert branch.row.length == length, f"row of {branch.path} has another length"


def _branch(leaf: Node, *, retried: bool) -> Branch:
    row = TokenRow()
    nodes = leaf.path()
    for turns, node in enumerate(nodes):
        turn = node.turn
        row.commit(turns, turn.seam, turn.piece, turn.reply)
    return Branch(
        row=row,
        messages=[message for node in nodes for message in node.messages],
        tools=leaf.tools,
        path=tuple(node.number for node in nodes),
        ends=tuple(accumulate(len(node.messages) for node in nodes)),
        retried=retried,
        cut_by=leaf.turn.cut_by,
    )


def _add(parts: list[NDArray[np.int32]], seam: Seam, piece: Piece) -> None:
    if seam.drop:
        parts[-1] = parts[-1][: -seam.drop]
    if seam.insert:
        parts.append(np.array(seam.insert, dtype=np.int32))
    parts.append(piece.token_ids)

"""Routes: which experts of each mixture layer computed a token (contract C2).

The engine notes them, the trainer replays them (rollout routing replay, R3; Ma et al. 2025,
arXiv:2510.11370). They lie in arrays [tokens, layers, experts per token]: mixture layers only, in
the order of the model, the experts of one token in any order. The last token of a row has none: it
went through no model yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import xxhash

from milepost.messages.bulk import Bulk

UINT8_MAX: Final = 256
"""Experts whose ids fit one byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesShape:
    """What routes of one model look like.

    Attributes:
        num_layers: mixture layers.
        experts_per_token: chosen in each of them.
        num_experts: to choose from; ids are below it.
    """

    num_layers: int
    experts_per_token: int
    num_experts: int

    @property
    def dtype(self) -> Literal["uint8", "int16"]:
        """The smallest that holds every id."""
        return "uint8" if self.num_experts <= UINT8_MAX else "int16"

    @property
    def token_bytes(self) -> int:
        """Size of the routes of one token."""
        item_bytes = 1 if self.dtype == "uint8" else 2
        return self.num_layers * self.experts_per_token * item_bytes

    def fault(self, routes: Bulk | None, num_tokens: int) -> str:
        """What is wrong with the form of the routes of `num_tokens` tokens; empty: nothing.

        Whether the numbers in them can be experts is for the trainer's door to find out.
        """
        sizes = (num_tokens, self.num_layers, self.experts_per_token)
        if routes is None:
            return f"no routes, {self.dtype} {sizes} are expected"
        if routes.dtype != self.dtype or routes.shape != sizes:
            return f"routes as {routes.dtype} {routes.shape}, {self.dtype} {sizes} are expected"
        return ""


def routes_start(num_tokens: int) -> int:
    """First token without routes in a row this long: its last one, which went through no pass."""
    return max(0, num_tokens - 1)


def routes_hashes(routes: Bulk, ends: Sequence[int]) -> Iterator[str]:
    """xxh3-128 hex of the routes that each turn added to its row.

    Args:
        routes: [T - 1, layers, experts per token].
        ends: end of each turn, the last one T. A turn adds the routes from the last token of the
            turn before, which went through the model only then, to its own last token but one.
    """
    token_bytes = routes.nbytes // routes.shape[0] if routes.shape[0] else 0
    start = 0
    for end in ends:
        stop = (end - 1) * token_bytes
        yield xxhash.xxh3_128_hexdigest(routes.data[start:stop])
        start = stop

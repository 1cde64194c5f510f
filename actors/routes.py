"""Routes: which experts of each mixture layer computed a token (contract C2).

The engine notes them, the trainer replays them (rollout routing replay, R3; Ma et al. 2025,
arXiv:2510.11370). They lie in arrays [tokens, layers, experts per token]: mixture layers only, in
the order of the model, the experts of one token in any order. The last token of a row has none: it
went through no model yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

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

"""What a release of SGLang can do, by the version that the running server names.

Each row says what begins with a release. Where a release lacks something that the topology needs,
the engine refuses to start and names it; where there is another way to the same end, it takes that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from packaging.version import InvalidVersion, Version

from milepost.messages.engine import PauseMode

OLDEST: Final = Version("0.5.17")
"""Before it: no name space for prefixes that works with aborted requests, and other doors."""
TRIED: Final = (Version("0.5.17"), Version("0.5.21"))
"""Releases that the tests of this folder ran against."""


class UnsupportedServerError(RuntimeError):
    """The server cannot be used; the text names what is missing."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one release can do.

    Attributes:
        version: as the server says it.
        spans: answers say which weight version sampled which tokens. Without, an answer is split at
            each publication: what has been sampled is kept, the rest is asked for again.
        weight_sessions: weights must come between `/begin_weight_update` and `/end_weight_update`.
        flush_retracted: prefixes can be dropped while retracted requests wait. Without, a request
            in flight at a publication is ended before it and asked for again after it.
        cut_logprobs: log-probs of the distribution that top-p, top-k and min-p leave.
    """

    version: Version
    spans: bool
    weight_sessions: bool
    flush_retracted: bool
    cut_logprobs: bool

    @property
    def tried(self) -> bool:
        """Whether the tests ran against this release."""
        return self.version in TRIED

    def lives_through(
        self, mode: PauseMode, *, keeps_routes: bool = False, stages: int = 1
    ) -> bool:
        """Whether requests in flight stay in the server while weights change in this mode.

        Args:
            mode: what is asked of the engine.
            keeps_routes: a request that the server retracts comes back with the routes of the new
                weights for tokens that the old ones sampled; split, each part has its own.
            stages: of a pipeline. With several the server ends when it is to drop prefixes while
                retracted requests wait (0.5.21, seen on two GPUs).
        """
        if mode is PauseMode.IN_PLACE:
            return self.spans
        return self.spans and self.flush_retracted and not keeps_routes and stages == 1


def capabilities_of(version: str) -> Capabilities:
    """The row of a version.

    Raises:
        UnsupportedServerError: a release that is too old, or no version at all.
    """
    try:
        found = Version(version)
    except InvalidVersion as error:
        raise UnsupportedServerError(f"the server calls its version {version!r}") from error
    if found < OLDEST:
        raise UnsupportedServerError(
            f"SGLang {found} lacks prefixes by name space and routed data-parallel ranks, "
            f"install {OLDEST} or later"
        )
    return Capabilities(
        version=found,
        spans=found >= Version("0.5.19"),
        weight_sessions=found >= Version("0.5.21"),
        flush_retracted=found >= Version("0.5.21"),
        cut_logprobs=found >= Version("0.5.21"),
    )


def require(capabilities: Capabilities, *, pause: str, is_cut: bool) -> None:
    """Refuse what the topology needs and this release lacks.

    Args:
        capabilities: of the server.
        pause: `[actors.publisher] pause`.
        is_cut: `[sampling]` has top-p, top-k or min-p.

    Raises:
        UnsupportedServerError: with everything that is missing.
    """
    missing = []
    if pause == PauseMode.IN_PLACE and not capabilities.spans:
        missing.append(
            'versions of tokens (0.5.19), which actors.publisher.pause = "in_place" needs'
        )
    if is_cut and not capabilities.cut_logprobs:
        missing.append("log-probs of cut distributions (0.5.21), which sampling needs")
    if missing:
        raise UnsupportedServerError(
            f"SGLang {capabilities.version} lacks {', and '.join(missing)}"
        )

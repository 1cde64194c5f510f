"""Which weights, and whose keys and values, stand behind each reply: a part of contract C4.

A version is a number, and a number can be made twice: a run that resumed trains its version 7 anew,
while the buffer may still hold rows that the lost version 7 sampled. Only the digest of the weights
tells them apart. Keys and values are weights' work, too: a prefix that outlived a publication gives
log-probs that describe no policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from milepost.actors.trainer.works import DoorRules
from milepost.messages.shared import WeightsUsed
from milepost.messages.trajectory import Trajectory, TurnBoundary

VERSIONS: Final = "C4 same version"
DIGESTS_MAX: Final = 4096


@dataclass(slots=True)
class MadeVersions:
    """Weights that this process knows to have been made, by version.

    Attributes:
        digests: as in `ActivateEpoch`; of the newest `DIGESTS_MAX` versions.
    """

    digests: dict[int, str] = field(default_factory=dict)

    def learn(self, version: int, digest: str) -> None:
        """A version was exported, or published; without a digest nothing is learnt."""
        if digest:
            self.digests[version] = digest
            if len(self.digests) > DIGESTS_MAX:
                del self.digests[min(self.digests)]


def weights_faults(trajectory: Trajectory, rules: DoorRules) -> Iterator[str]:
    """Every reply names the weights of each of its versions, and they are those that were made."""
    for number, turn in enumerate(trajectory.turns):
        spans = [
            span
            for span in trajectory.spans
            if span.start < turn.end and span.end > turn.prompt_end
        ]
        versions = tuple(dict.fromkeys(span.version for span in spans))
        told = tuple(used.version for used in turn.weights)
        where = f"turn {number}, positions [{turn.prompt_end}, {turn.end})"
        if turn.adapter:
            yield f"{VERSIONS}: {where} is of adapter {turn.adapter}, which no version contains"
        if versions != told:
            yield (
                f"{VERSIONS}: {where} has tokens of versions {versions}, and word of the weights "
                f"of versions {told}"
            )
            return
        if turn.cached_tokens > turn.prompt_end:
            yield (
                f"{VERSIONS}: {where} took {turn.cached_tokens} tokens from a cache, its prompt "
                f"has {turn.prompt_end}"
            )
        for used in turn.weights:
            if fault := _fault(turn, used, rules):
                yield f"{VERSIONS}: {where}: {fault}"


def _fault(turn: TurnBoundary, used: WeightsUsed, rules: DoorRules) -> str:
    made = rules.digests.get(used.version, used.digest)
    if not used.digest:
        return f"{turn.engine} gave no digest of the weights of version {used.version}"
    if used.digest != made:
        return (
            f"{turn.engine} sampled with weights {used.digest} as version {used.version}, the "
            f"weights made under this number are {made}"
        )
    oldest = turn.weights[0].version if rules.keeps_caches else used.version
    if not oldest <= used.kv_version <= used.version:
        return (
            f"{turn.engine} sampled tokens of version {used.version} over keys and values of "
            f"version {used.kv_version}, from {oldest} on is right"
        )
    return ""

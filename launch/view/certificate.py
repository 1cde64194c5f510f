"""What is certified of a row: contracts, engines and weights, and how far two log-probs differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from milepost.actors.archive.reader import Refusal, Training
from milepost.launch.view.rows import values_of
from milepost.messages.shared import WeightsUsed
from milepost.messages.trajectory import Provenance, Trajectory

TURNS_MAX: Final = 100
"""In the table of a certificate."""
CONTRACTS: Final = {
    "C1": "same tokens",
    "C2": "same expert routes",
    "C3": "same log-probs",
    "C4": "same version",
}
PASSED: Final = "passed"
NEUTRAL: Final = ("not checked", "not applicable")
"""Neither good nor bad: nobody looked, or there is nothing to look at."""


class Contract(Struct, frozen=True, kw_only=True):
    """What the trainer's door said of one contract."""

    name: str
    verdict: str
    kind: str
    """`passed`, `fault`, or empty."""


class Turn(Struct, frozen=True, kw_only=True):
    """One reply, as its engine vouches for it."""

    number: int
    """From 1."""
    start: int
    num_tokens: int
    num_cached: int
    """Tokens of its prompt that the engine had computed before."""
    engine: str
    finish: str
    weights: list[str]
    """`version 7, 1f3a..., caches of 6`"""
    is_trained: bool


class Differences(Struct, frozen=True, kw_only=True):
    """trainer - engine over the tokens that both have a log-prob of, nats."""

    count: int
    mean: float
    """Of the absolute values."""
    largest: float
    """By absolute value, with its sign."""
    at: int
    """Place of the largest."""


def differences(row: Trajectory, trainer: Mapping[int, float]) -> Differences | None:
    """How far trainer and engine are apart; None when no token has a log-prob of both."""
    engine, who = values_of(row.logprobs), values_of(row.provenance)
    sampled = ((at, theirs) for at, theirs in trainer.items() if who[at] == Provenance.SAMPLED)
    found = {at: theirs - engine[at] for at, theirs in sampled}
    if not found:
        return None
    at = max(found, key=lambda place: abs(found[place]))
    mean = math.fsum(map(abs, found.values())) / len(found)
    return Differences(count=len(found), mean=mean, largest=found[at], at=at)


def contracts(word: Training | Refusal | None) -> list[Contract]:
    """Verdict of each contract, as the trainer's door gave it."""
    given: dict[str, str] = dict(word.contracts) if word else {}
    rows = []
    for name, verdict in given.items():
        kind = {PASSED: "passed", **dict.fromkeys(NEUTRAL, "")}.get(verdict, "fault")
        meaning = CONTRACTS.get(name)
        rows.append(
            Contract(name=f"{name} {meaning}" if meaning else name, verdict=verdict, kind=kind)
        )
    return rows


def turns(row: Trajectory) -> list[Turn]:
    """Every reply of a row."""
    return [
        Turn(
            number=number,
            start=turn.prompt_end,
            num_tokens=turn.end - turn.prompt_end,
            num_cached=turn.cached_tokens,
            engine=f"{turn.engine}.{turn.incarnation}" if turn.incarnation else turn.engine,
            finish=turn.finish_reason.value,
            weights=[_weights(each) for each in turn.weights],
            is_trained=turn.trained,
        )
        for number, turn in enumerate(row.turns[:TURNS_MAX], start=1)
    ]


def _weights(used: WeightsUsed) -> str:
    caches = f", caches of {used.kv_version}" if used.kv_version != used.version else ""
    return f"version {used.version}, {used.digest[:12]}{caches}"


def facts_of(row: Trajectory) -> list[tuple[str, str]]:
    """What the session and its engines said of how the row came to be."""
    certificate = row.certificate
    sampling = certificate.sampling
    engines = dict.fromkeys(turn.engine for turn in row.turns if turn.engine)
    told = [
        ("chat family", certificate.family),
        ("tokenizer", certificate.tokenizer_hash),
        ("template", certificate.template_hash),
        ("seal", certificate.seal),
        (
            "sampled from",
            (
                f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, "
                f"top_k {sampling.top_k}, min_p {sampling.min_p:g}, seed {sampling.seed}"
            ),
        ),
        ("engines", ", ".join(engines)),
    ]
    return [(name, value) for name, value in told if value]

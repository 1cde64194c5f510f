"""Mutants of a good trajectory at the trainer's door: each is refused by what it breaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.trainer.kit import (
    TEMPLATE_HASH,
    TOKENIZER_HASH,
    VOCABULARY,
    batch_of,
    digest_of,
    group,
    made,
    recorded,
    trajectory,
)

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.seal import sealed
from milepost.actors.trainer.door import check_batch, faults
from milepost.actors.trainer.lineage import DIGESTS_MAX, MadeVersions
from milepost.actors.trainer.works import DoorRules, ModelFacts
from milepost.messages.bulk import Bulk
from milepost.messages.shared import SamplingParams, Status, VersionSpan
from milepost.messages.trajectory import Provenance, Trajectory

MODEL = ModelFacts(
    vocabulary=VOCABULARY, tokenizer_hash=TOKENIZER_HASH, template_hash=TEMPLATE_HASH
)
RULES = DoorRules(
    sft=False,
    model=MODEL,
    version=3,
    digests={version: digest_of(version) for version in range(4)},
    keeps_caches=False,
)
SFT_RULES = replace(RULES, sft=True)
GOOD = trajectory("g", 1, version=2)


def written(field: str, position: int, value: float, good: Trajectory = GOOD) -> Trajectory:
    """The trajectory with one element of one array changed."""
    array = from_bulk(getattr(good, field)).copy()
    array[position] = value
    return changed(good, **{field: to_bulk(array)})


def changed(good: Trajectory = GOOD, **fields: Any) -> Trajectory:
    return msgspec.structs.replace(good, **fields)


def turned(**fields: Any) -> Trajectory:
    """The last turn changed."""
    *others, last = GOOD.turns
    return changed(turns=(*others, msgspec.structs.replace(last, **fields)))


def sampled(**fields: Any) -> Trajectory:
    sampling = msgspec.structs.replace(SamplingParams(), **fields)
    return changed(certificate=msgspec.structs.replace(GOOD.certificate, sampling=sampling))


def spanned(*spans: tuple[int, int, int], kv_version: int | None = None) -> Trajectory:
    """Other spans, each reply with word of the weights of its versions."""
    turns = []
    for turn in GOOD.turns:
        versions = dict.fromkeys(v for a, b, v in spans if a < turn.end and b > turn.prompt_end)
        weights = tuple(made(version, kv_version) for version in versions)
        turns.append(msgspec.structs.replace(turn, weights=weights))
    return changed(
        turns=tuple(turns),
        spans=tuple(VersionSpan(start=a, end=b, version=version) for a, b, version in spans),
    )


def certified(**fields: Any) -> Trajectory:
    return changed(certificate=msgspec.structs.replace(GOOD.certificate, **fields))


MUTANTS: dict[str, tuple[Callable[[], Trajectory], str]] = {
    "another token in a reply": (lambda: written("token_ids", 6, 0), "C1.*hashes to"),
    "another token in a prompt": (lambda: written("token_ids", 0, 0), "C1.*hashes to"),
    "token beyond the vocabulary": (lambda: written("token_ids", 14, VOCABULARY), "C1.*token id"),
    "negative token": (lambda: written("token_ids", 14, -1), "C1.*token id -1"),
    "loss on a prompt token": (lambda: written("loss_mask", 2, 1), "C1.*position 2 has loss"),
    "mask of two": (lambda: written("loss_mask", 6, 2), "C1.*holds 2"),
    "loss on the first token": (lambda: written("loss_mask", 0, 1), "C1.*first token"),
    "tool text called sampled": (
        lambda: written("provenance", 10, Provenance.SAMPLED),
        "C1.*position 10.*no turn",
    ),
    "sampled text called tool text": (
        lambda: written("provenance", 6, Provenance.TOOL),
        "C1.*position 6 has loss.*provenance is 2",
    ),
    "recorded text in a policy batch": (
        lambda: written("provenance", 6, Provenance.RECORDED),
        "C1.*provenance is 4",
    ),
    "hash of another prefix": (lambda: turned(prefix_hash="0" * 32), "C1.*turn 1 says 0000"),
    "turn that ends earlier": (lambda: turned(end=14), "C1"),
    "turn beyond the row": (lambda: turned(end=16), "C1.*turn 1 is"),
    "turn that begins before the last ended": (lambda: turned(prompt_end=8), "C1.*turn 1 is"),
    "no turns at all": (lambda: changed(turns=()), "C1.*no turn's reply"),
    "another tokenizer": (
        lambda: certified(tokenizer_hash="dead"),
        "C1.*tokenizer dead, the model's is",
    ),
    "another chat template": (
        lambda: certified(template_hash="dead"),
        f"C1.*chat template dead, the model's is {TEMPLATE_HASH}",
    ),
    "log-probs of another length": (
        lambda: changed(logprobs=to_bulk(np.zeros(14, np.float32))),
        r"C1.*logprobs is float32 \(14,\)",
    ),
    "mask of another dtype": (
        lambda: changed(loss_mask=to_bulk(np.zeros(15, np.int32))),
        "C1.*loss_mask is int32",
    ),
    "one token alone": (lambda: trajectory("g", 1, turns=(), length=1), "C1.*1 tokens"),
    "log-prob NaN": (lambda: written("logprobs", 6, math.nan), "C3.*nan at position 6"),
    "log-prob minus infinity": (lambda: written("logprobs", 6, -math.inf), "C3.*-inf"),
    "log-prob above zero": (lambda: written("logprobs", 6, 0.5), "C3.*0.5 at position 6"),
    "log-prob of a token nobody sampled": (
        lambda: written("logprobs", 10, -1.0),
        "C3.*position 10, which was not sampled",
    ),
    "nucleus sampling": (lambda: sampled(top_p=0.9), "C3.*top_p 0.9"),
    "top-k sampling": (lambda: sampled(top_k=20), "C3.*top_k 20"),
    "min-p sampling": (lambda: sampled(min_p=0.1), "C3.*min_p 0.1"),
    "greedy replies": (lambda: sampled(temperature=0.0), "C3.*greedy"),
    "no spans": (spanned, "C4.*position 5 was sampled under no version"),
    "a gap between spans": (lambda: spanned((5, 8, 2), (12, 15, 2)), "C4.*position 8"),
    "a span that is too long": (lambda: spanned((5, 9, 2), (12, 16, 2)), "C4.*span"),
    "an empty span": (lambda: spanned((5, 5, 2), (5, 15, 2)), "C4.*span"),
    "spans that overlap": (lambda: spanned((5, 13, 2), (12, 15, 2)), "C4.*follows"),
    "no word of the weights": (
        lambda: turned(weights=()),
        r"C4.*turn 1, positions \[12, 15\) has tokens of versions \(2,\), and word.*\(\)",
    ),
    "word of another version's weights": (
        lambda: turned(weights=(made(1),)),
        r"C4.*turn 1.*of versions \(2,\), and word.*\(1,\)",
    ),
    "weights that nobody made": (
        lambda: turned(weights=(msgspec.structs.replace(made(2), digest="dead"),)),
        "C4.*turn 1.*engine-0 sampled with weights dead as version 2, the weights made",
    ),
    "no digest": (
        lambda: turned(weights=(msgspec.structs.replace(made(2), digest=""),)),
        "C4.*engine-0 gave no digest of the weights of version 2",
    ),
    "a reply under an adapter": (
        lambda: turned(adapter="terse"),
        r"C4.*turn 1, positions \[12, 15\) is of adapter terse, which no version contains",
    ),
    "a prefix that outlived a publication": (
        lambda: turned(weights=(made(2, kv_version=1),)),
        "C4.*version 2 over keys and values of version 1, from 2 on is right",
    ),
    "keys and values of the future": (
        lambda: turned(weights=(made(2, kv_version=3),)),
        "C4.*over keys and values of version 3",
    ),
    "more from the cache than the prompt has": (
        lambda: turned(cached_tokens=13),
        "C4.*took 13 tokens from a cache, its prompt has 12",
    ),
    "a version from the future": (lambda: spanned((5, 15, 4)), "C4.*version 4.*trainer is at 3"),
    "reward no learner can hold": (lambda: changed(reward=1e200), r"reward: it is 1e\+200"),
    "group reward no learner can hold": (
        lambda: changed(group_rewards=(-1e200, 1.0)),
        r"reward: group rewards are \(-1e\+200",
    ),
    "reward NaN": (lambda: changed(reward=math.nan), "reward: it is nan"),
    "reward infinite": (lambda: changed(reward=math.inf), "reward: it is inf"),
    "a sibling's reward NaN": (
        lambda: changed(group_rewards=(math.nan, 1.0)),
        "reward: group rewards",
    ),
    "failed attempt": (lambda: changed(status=Status.FAILED), "reward: status is failed"),
    "aborted attempt": (lambda: changed(status=Status.ABORTED), "reward: status is aborted"),
    "a member missing": (lambda: changed(group_rewards=(1.0,)), "group: 1 rewards for 2"),
    "a reward that is not the group's": (lambda: changed(reward=0.25), "group: reward 0.25"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_refused_by_the_contract_it_breaks(mutant: str) -> None:
    make, named = MUTANTS[mutant]
    found = list(faults(make(), RULES))
    assert found, "let in"
    assert any(_matches(named, each) for each in found), found


def _matches(pattern: str, text: str) -> bool:
    import re

    return re.match(pattern, text) is not None


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.TRUNCATED])
def test_a_good_trajectory_is_let_in(status: Status) -> None:
    assert list(faults(sealed(changed(status=status)), RULES)) == []


def test_a_reply_that_went_on_under_new_weights_is_let_in() -> None:
    good = sealed(spanned((5, 7, 1), (7, 9, 2), (12, 15, 3)))
    assert list(faults(good, RULES)) == []
    verdict = check_batch(batch_of([[good]]), RULES)
    assert verdict.oldest == {"g": 1}


def test_in_place_a_reply_may_go_on_over_its_own_older_keys_and_over_no_others() -> None:
    """A publication in place keeps the caches of replies under way; prefixes of the version before
    the reply began describe a policy that never spoke (log-probs would be of a mixture)."""
    rules = replace(RULES, keeps_caches=True)
    assert (
        list(faults(sealed(spanned((5, 9, 2), (12, 13, 2), (13, 15, 3), kv_version=2)), rules))
        == []
    )
    stale = spanned((5, 9, 2), (12, 13, 2), (13, 15, 3), kv_version=1)
    assert "over keys and values of version 1, from 2 on is right" in str(
        list(faults(stale, rules))
    )


def test_a_version_made_twice_is_told_apart_by_its_weights() -> None:
    """A run that resumed trains version 2 anew, and the buffer still has rows of the lost one."""
    again = MadeVersions()
    again.learn(2, "made anew")
    rules = replace(RULES, digests=again.digests)
    assert "made under this number are made anew" in str(list(faults(GOOD, rules)))
    unknown = replace(RULES, digests={})
    assert list(faults(GOOD, unknown)) == [], "what was made before this process is taken on trust"


def test_known_digests_are_bounded_and_the_oldest_go_first() -> None:
    known = MadeVersions()
    known.learn(0, "")
    assert known.digests == {}, "an empty digest tells nothing"
    for version in range(DIGESTS_MAX + 2):
        known.learn(version, digest_of(version))
    assert len(known.digests) == DIGESTS_MAX
    assert min(known.digests) == 2


def test_imported_conversations_need_provenance_and_no_log_probs() -> None:
    good = recorded(trajectory("g", 0))
    assert list(faults(good, SFT_RULES)) == []
    fault, *_ = faults(written("loss_mask", 2, 1, good), SFT_RULES)
    assert "not 4 (recorded)" in fault


def untrained_first_turn(good: Trajectory = GOOD, **fields: Any) -> Trajectory:
    """Another row trains the first reply: this one shares it, and says so."""
    first, last = good.turns
    mask = from_bulk(good.loss_mask).copy()
    mask[first.prompt_end : first.end] = 0
    turns = (msgspec.structs.replace(first, trained=False), last)
    fields = {"row": 1, "num_rows": 2, "trajectory_loss_tokens": 7, **fields}
    return changed(good, turns=turns, loss_mask=to_bulk(mask), **fields)


def test_a_reply_that_another_row_trains_is_let_in_without_loss() -> None:
    """Branches share their beginnings; its versions do not age the row that does not train it."""
    assert list(faults(sealed(untrained_first_turn()), RULES)) == []
    older = spanned((5, 9, 0), (12, 15, 2))
    verdict = check_batch(batch_of([[sealed(untrained_first_turn(older))]]), RULES)
    assert verdict.oldest == {"g": 2}


def test_a_hole_in_a_reply_s_mask_is_refused_by_its_position() -> None:
    """Turns are trained or not; a token in the middle that is not is nobody's intention."""
    found = list(faults(sealed(written("loss_mask", 6, 0)), RULES))
    assert found == [
        "C1 same tokens: position 6 has loss mask 0, but its turn is trained",
    ]


def test_rows_of_one_trajectory_agree_on_what_it_is() -> None:
    """The normaliser of a trajectory with several rows is what its first row's statistics count."""
    assert "row 2 of a trajectory of 2" in str(list(faults(untrained_first_turn(row=2), RULES)))
    short = list(faults(untrained_first_turn(trajectory_loss_tokens=2), RULES))
    assert "3 loss tokens in row 1 of 2, the trajectory says 2" in str(short)


def mutant_of(value: Any, draw: Any) -> Any:
    """The value with one thing in it changed."""
    match value:
        case Bulk():
            data = bytearray(value.data)
            data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
            return Bulk(value.dtype, value.shape, bytes(data))
        case msgspec.Struct():
            field = draw(st.sampled_from(value.__struct_fields__))
            old = getattr(value, field)
            mutant = NEW_VALUES[field] if old is None else mutant_of(old, draw)
            return msgspec.structs.replace(value, **{field: mutant})
        case tuple() if value and draw(st.booleans()):
            place = draw(st.integers(0, len(value) - 1))
            return (*value[:place], mutant_of(value[place], draw), *value[place + 1 :])
        case tuple():
            return value[:-1] if value else (7,)
        case Enum():
            return draw(st.sampled_from([each for each in type(value) if each is not value]))
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "0"
        case dict():
            return {**value, "more": 1.0}
    raise AssertionError(value)


NEW_VALUES = {
    "routes": Bulk("uint8", (14, 1, 1), bytes(14)),
    "canonical_mismatch": "some",
    "conversation": Bulk("uint8", (2,), b"{}"),
}


@given(st.data())
def test_no_field_of_a_row_changes_on_its_way_without_being_found(data: st.DataObject) -> None:
    """Any field of the row, of its certificate, turns and spans, and any bit of its arrays."""
    one, two = group("g", (0.0, 1.0))
    mutant = mutant_of(two, data.draw)
    if mutant == two:
        return
    verdict = check_batch(batch_of([[one, mutant]]), RULES)
    assert verdict.refusals, "let in"
    assert ": " in verdict.refusals[0].reason


def test_one_bad_member_refuses_its_whole_group_and_no_other() -> None:
    good, bad = group("good", (0.0, 1.0)), group("bad", (0.0, 1.0, 0.5))
    bad[1] = written("logprobs", 6, math.nan, bad[1])
    verdict = check_batch(batch_of([good, bad]), RULES)
    (refusal,) = verdict.refusals
    assert refusal.group_id == "bad"
    assert refusal.reason.startswith("C3 same log-probs")
    assert refusal.reason.endswith("trajectory bad.1")
    assert verdict.oldest == {"good": 0}


@given(
    field=st.sampled_from(["token_ids", "loss_mask", "provenance"]),
    position=st.integers(0, 14),
    value=st.integers(0, VOCABULARY - 1),
)
def test_no_single_change_of_what_was_sampled_gets_through(
    field: str, position: int, value: int
) -> None:
    """Any other token, mask or provenance inside the certified row shows."""
    array = from_bulk(getattr(GOOD, field))
    mutant = written(field, position, value)
    same = int(array[position]) == value
    assert bool(list(faults(mutant, RULES))) == (not same)

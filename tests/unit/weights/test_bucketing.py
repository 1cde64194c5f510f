"""Tensors that belong together travel together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.weights.bucketing import EXPERT, buckets_of, unit_of

LAYER = "model.layers.3"


@pytest.mark.parametrize(
    ("names", "together"),
    [
        (["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.bias"], True),
        (["mlp.gate_proj.weight", "mlp.up_proj.weight"], True),
        (["mlp.gate_proj.weight_scale_inv", "mlp.up_proj.weight"], True),
        (["mlp.down_proj.weight", "mlp.down_proj.weight_scale_inv"], True),
        (["mlp.down_proj.qweight", "mlp.down_proj.scales", "mlp.down_proj.qzeros"], True),
        (["mlp.experts.5.gate_proj.weight", "mlp.experts.5.up_proj.weight"], True),
        (["mlp.experts.5.gate_proj.weight", "mlp.experts.6.gate_proj.weight"], False),
        (["mlp.down_proj.weight", "mlp.up_proj.weight"], False),
        (["self_attn.q_norm.weight", "self_attn.q_proj.weight"], False),
        (["mlp.gate.weight", "mlp.gate_proj.weight"], False),
        (["self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"], True),
    ],
)
def test_a_unit_is_a_weight_with_its_scales_or_what_engines_fuse(
    names: list[str], *, together: bool
) -> None:
    units = {unit_of(f"{LAYER}.{name}") for name in names}
    assert len(units) == (1 if together else len(names))
    assert unit_of(f"model.layers.4.{names[0]}") not in units, "another layer's"


def test_a_unit_stands_where_its_first_tensor_stands() -> None:
    """Sorted names put a layer's key between its gate and its up projection."""
    names = ["a.mlp.gate_proj.weight", "a.mlp.k_norm.weight", "a.mlp.up_proj.weight", "b.weight"]
    cut = buckets_of(dict.fromkeys(names, 10), bytes_max=20)
    assert cut == [[names[0], names[2]], [names[1], names[3]]]


def test_a_unit_larger_than_a_bucket_travels_alone_and_whole() -> None:
    sizes = {"a.weight": 5, "b.gate_proj.weight": 70, "b.up_proj.weight": 70, "c.weight": 5}
    assert buckets_of(sizes, bytes_max=100) == [
        ["a.weight"],
        ["b.gate_proj.weight", "b.up_proj.weight"],
        ["c.weight"],
    ]


def test_experts_come_last_and_count_as_often_as_there_are_ranks() -> None:
    sizes = {f"m.experts.{n}.down_proj.weight": 10 for n in range(4)}
    sizes |= {"m.shared_experts.down_proj.weight": 10, "z.weight": 10}
    names = list(sizes)
    assert buckets_of(sizes, bytes_max=40, expert_degree=2) == [names[4:], names[:2], names[2:4]]
    assert buckets_of(sizes, bytes_max=40) == [names[4:], names[:4]]


MODULES = st.sampled_from(["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "o_proj", "norm"])
NAMES = st.builds(
    "{}.{}{}.{}".format,
    st.integers(0, 3),
    st.sampled_from(["", "experts.0.", "experts.1.", "shared_experts."]),
    MODULES,
    st.sampled_from(["weight", "weight_scale_inv", "bias"]),
)


@given(
    st.lists(NAMES, unique=True, max_size=60),
    st.integers(1, 60),
    st.integers(1, 4),
)
def test_every_tensor_is_in_one_bucket_and_no_bucket_could_have_been_smaller(
    names: list[str], bytes_max: int, degree: int
) -> None:
    """Against the words of the rule: whole units, the bound, nothing lost, greedy."""
    sizes = {name: 1 + len(name) % 7 for name in names}
    cut = buckets_of(sizes, bytes_max=bytes_max, expert_degree=degree)
    assert sorted(name for bucket in cut for name in bucket) == sorted(names)
    where = {name: index for index, bucket in enumerate(cut) for name in bucket}
    for name in names:
        assert {where[each] for each in names if unit_of(each) == unit_of(name)} == {where[name]}
    kinds = [{bool(EXPERT.search(name)) for name in bucket} for bucket in cut]
    assert all(len(kind) == 1 for kind in kinds)
    assert kinds == sorted(kinds, key=max), "experts last"
    for bucket in cut:
        factor = degree if EXPERT.search(bucket[0]) else 1
        size = factor * sum(sizes[name] for name in bucket)
        assert size <= bytes_max or len({unit_of(name) for name in bucket}) == 1

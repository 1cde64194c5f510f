"""Documents become topologies, or a list of everything that is wrong with them."""

import tomllib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.configs.actors import ScheduleConfig, TrainerConfig
from milepost.configs.dump import dump_topology, topology_hash
from milepost.configs.load import decode, load_topology
from milepost.configs.problem import ConfigError
from milepost.configs.read import merge, parse_override
from milepost.configs.run import AlgorithmConfig
from milepost.configs.topology import Topology
from milepost.messages.shared import SamplingParams

SMALLEST: dict[str, Any] = {"run": {"name": "tiny", "steps": 1}}


def problems_of(document: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        decode(document)
    return [str(problem) for problem in caught.value.problems]


def with_actors(**tables: object) -> dict[str, Any]:
    return {**SMALLEST, "actors": tables}


def test_the_smallest_topology_is_a_name_and_a_number_of_steps() -> None:
    assert decode(SMALLEST) == msgspec.convert(SMALLEST, Topology)


def test_an_unknown_key_gets_its_path_and_the_nearest_known_name() -> None:
    assert problems_of(with_actors(trainer={"lr": 1e-3, "lag": 2})) == [
        "unknown key `lag` at $.actors.trainer, did you mean `lr`"
    ]


def test_a_key_in_the_wrong_table_is_sent_home() -> None:
    document = {**SMALLEST, "trainer": {"lr": 1e-3}, "steps": 3}
    assert problems_of(document) == [
        "unknown key `trainer` at $, it belongs to $.actors",
        "unknown key `steps` at $, it belongs to $.run",
    ]


def test_a_wrong_word_gets_the_right_ones() -> None:
    document = {"run": {"name": "tiny", "steps": 1, "mode": "asnyc"}}
    assert problems_of(document) == [
        '`mode` is "asnyc", not one of "async", "sync" at $.run.mode, did you mean `async`'
    ]


def test_every_problem_is_told_at_once() -> None:
    """A person repairs a file once, not once for each mistake in it."""
    told = problems_of(
        {
            "run": {"steps": 0, "sead": 1},
            "actors": {"engine": {"slots": "many"}, "buffer": 3, "trainer": {}},
            "custom": {"mine": {"replicas": 0}},
        }
    )
    assert told == [
        "unknown key `sead` at $.run, did you mean `seed`",
        "`name` is missing at $.run, add `name = ...` to it",
        "`steps` is 0: expected `int` >= 1 at $.run.steps",
        '`slots` is "many": expected `int`, got `str` at $.actors.engine.slots',
        "`buffer` is 3, not a table at $.actors.buffer, write it as [actors.buffer]",
        "`lr` is missing at $.actors.trainer, add `lr = ...` to it",
        "`core` is missing at $.custom.mine, add `core = ...` to it",
        "`replicas` is 0: expected `int` >= 1 at $.custom.mine.replicas",
    ]


def test_a_fault_inside_a_list_has_its_index() -> None:
    assert problems_of(with_actors(buffer={"filters": ["zero_spread", 3]})) == [
        "`filters` is ['zero_spread', 3]: expected `str`, got `int` at $.actors.buffer.filters[1]"
    ]


def test_a_word_for_a_truth_value_is_explained() -> None:
    (told,) = problems_of(with_actors(buffer={"journal": "True"}))
    assert told.endswith("TOML writes true, without quotes")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("nan"), "nan is not a finite number"),
        (float("inf"), "inf is not a finite number"),
        (2**63, "9223372036854775808 needs more than 64 bits"),
        (date(2024, 1, 2), "2024-01-02 is a date or time"),
    ],
)
def test_values_that_change_on_the_way_to_another_process_are_refused(
    value: object, told: str
) -> None:
    """`inf` becomes null in JSON, a date a string: the children would get something else."""
    document = {**SMALLEST, "data": {"prompts": "x", "options": {"deep": [{"a": value}]}}}
    (problem,) = problems_of(document)
    assert problem.startswith(f"{told} at $.data.options.deep[0].a")


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"run": {"name": "memo\udce9", "steps": 1}}, "$.run.name"),
        ({"run": {"name": "a", "steps": "\udce9"}}, "$.run.steps"),
        ({"data": {"prompts": "a:b", "options": {"\udce9": 1}}}, "$.data.options"),
        ({"data": {"prompts": "a:b", "options": {"of": ["x", "\udce9"]}}}, "$.data.options.of[1]"),
    ],
)
def test_bytes_of_a_command_line_that_are_no_text_are_refused(
    document: dict[str, Any], where: str
) -> None:
    """A terminal in Latin-1; JSON, logs and messages could not hold such a word."""
    (problem,) = problems_of(document)
    assert "\\udce9' is not text" in problem
    assert problem.endswith(f" at {where}, write it in UTF-8")


def test_a_default_of_its_place_survives_a_partly_written_table() -> None:
    """An engine restarts by default; naming another back-off must not make it stop the run."""
    topology = decode(with_actors(engine={"restart": {"backoff_s": 2.0}}))
    assert topology.actors.engine is not None
    assert topology.actors.engine.restart.policy == "permanent"
    assert topology.actors.engine.restart.backoff_s == 2.0


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("temperature=100.5", "expected `float` <= 100.0"),
        ("top_p=0.0", "expected `float` > 0.0"),
        ("min_p=1.0", "expected `float` < 1.0"),
    ],
)
def test_a_distribution_that_no_session_takes_is_refused(override: str, told: str) -> None:
    """Its first message could not be read, and the run would have started for nothing."""
    (problem,) = problems_of(merge(SMALLEST, parse_override(f"sampling.{override}")))
    assert told in problem
    edges = {"temperature": 100.0, "top_p": 0.001, "min_p": 0.999}
    sampling = decode({**SMALLEST, "sampling": edges}).sampling
    assert msgspec.convert(msgspec.to_builtins(sampling), SamplingParams).temperature == 100.0


NUMBERS = {
    "algorithm": {
        "std_epsilon", "clip_high", "dual_clip", "correction_low", "correction_high", "kl_coef",
        "entropy_coef",
    },
    "actors.trainer": {"lr", "epsilon", "weight_decay", "grad_norm_max", "schedule.lr_min"},
}  # fmt: skip
MAY_BE_ZERO = {"dual_clip", "correction_low", "kl_coef", "entropy_coef", "weight_decay", "lr_min"}


@pytest.mark.parametrize(
    "key", sorted(f"{table}.{name}" for table, names in NUMBERS.items() for name in names)
)
def test_a_number_that_the_trainer_computes_with_is_one_of_float32(key: str) -> None:
    """Above its range torch raises in the first step; below it, epsilon was 0 and weights NaN."""
    whole = with_actors(trainer={"lr": 1e-3})
    for value in ("1e39", "1e-46"):
        document = merge(whole, parse_override(f"{key}={value}"))
        if value == "1e-46" and key.rpartition(".")[2] in MAY_BE_ZERO:
            decode(document)
            continue
        (problem,) = problems_of(document)
        assert f"`{key.rpartition('.')[2]}` is " in problem
        assert problem.endswith(f" at $.{key}")
    decode(merge(whole, parse_override(f"{key}=3.4e38")))


def test_every_number_of_the_trainer_and_the_loss_has_an_upper_bound() -> None:
    """Whoever adds one says how large it may be."""
    for table in (AlgorithmConfig, TrainerConfig, ScheduleConfig):
        info = msgspec.inspect.type_info(table)
        assert isinstance(info, msgspec.inspect.StructType)
        for field in info.fields:
            if isinstance(field.type, msgspec.inspect.FloatType):
                assert field.type.le is not None, f"{table.__name__}.{field.name}"


def test_false_stands_for_no_such_actor() -> None:
    assert decode(with_actors(engine=False)).actors.engine is None
    assert problems_of({**SMALLEST, "sampling": False}) == [
        "`sampling` is false, not a table at $.sampling, write it as [sampling]"
    ]


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "-x", "..", "two words", "n" * 65])
def test_a_run_s_name_cannot_lead_out_of_the_folder_of_runs(name: str) -> None:
    (problem,) = problems_of({**SMALLEST, "run": {**SMALLEST["run"], "name": name}})
    assert "$.run.name" in problem


FULL: dict[str, Any] = {
    "run": {"name": "full", "steps": 3, "mode": "sync", "seed": 2**62},
    "model": {
        "path": "/models/x",
        "create_options": {"d": 64, "deep": {"list": [1, [2.5], {"a": 1}]}},
    },
    "data": {
        "prompts": "p.jsonl@[0:10]",
        "options": {"odd key.with dot": True, "": 'a "quoted" \\ text\n\x7f\x01 é 名'},
    },
    "actors": {
        "trainer": {"lr": 1, "epsilon": 1e-16, "schedule": {"kind": "cosine"}},
        "agent": {"agent": "m:A"},
        "engine": {"restart": {"restarts_max": 0}},
        "buffer": {"filters": ["zero_spread", "m:f"], "max_weight_staleness": 0},
    },
    "custom": {"watch dog": {"core": "m:f", "options": {"x": []}}},
}


def test_a_topology_written_out_reads_back_as_itself() -> None:
    topology = decode(FULL)
    again = decode(tomllib.loads(dump_topology(topology)))
    assert again == topology
    assert topology_hash(again) == topology_hash(topology)


text = st.text(st.characters(exclude_categories=["Cs"]))
numbers_and_text = (
    st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | text
)
toml_values = st.recursive(
    st.booleans() | numbers_and_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(text, toml_values, max_size=4))
def test_any_options_survive_the_round_trip(options: dict[str, Any]) -> None:
    """Options are the user's own: whatever TOML can say must reach the run folder unchanged."""
    topology = decode({**SMALLEST, "data": {"prompts": "p", "options": options}})
    again = decode(tomllib.loads(dump_topology(topology)))
    assert again == topology
    assert topology_hash(again) == topology_hash(topology)


def test_the_hash_sees_every_change_and_no_order() -> None:
    one = decode({"run": {"name": "tiny", "steps": 1}, "sampling": {"temperature": 0.9}})
    two = decode({"sampling": {"temperature": 0.9}, "run": {"steps": 1, "name": "tiny"}})
    other = decode({"run": {"name": "tiny", "steps": 1}, "sampling": {"temperature": 0.8}})
    assert topology_hash(one) == topology_hash(two) != topology_hash(other)
    assert len(topology_hash(one)) == 32


def accepted(read: Callable[[dict[str, Any]], Topology], document: dict[str, Any]) -> bool:
    try:
        read(document)
    except (ConfigError, msgspec.ValidationError):
        return False
    return True


known_keys = st.sampled_from(
    ["run", "name", "steps", "actors", "engine", "slots", "restart", "custom", "mode", "data"]
)
hostile = st.dictionaries(
    known_keys,
    st.recursive(
        numbers_and_text | st.just("async"),
        lambda inner: st.dictionaries(known_keys, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@given(hostile)
def test_a_document_is_refused_exactly_when_its_types_refuse_it(document: dict[str, Any]) -> None:
    """The walk that finds every fault must be neither laxer nor stricter than msgspec itself."""
    document = {"run": {"name": "tiny", "steps": 1}, **document}
    strict = accepted(lambda each: msgspec.convert(each, Topology), document)
    assert accepted(decode, document) == strict


@pytest.mark.parametrize(
    "override",
    [
        "actors.engine.replicas=9223372036854775807",
        "actors.trainer.ranks=4097",
        "actors.agent.reward_workers=2147483648",
        "actors.trainer.threads=9007199254740992",
        "actors.engine.slots=9007199254740992",
        "system.bus.inbox_messages_max=9007199254740992",
        "system.bus.body_bytes_max=1",
        "system.bus.depth_max=2",
        "sampling.temperature=1e-320",
    ],
)
def test_a_number_that_nothing_can_start_with_is_refused_by_its_bound(override: str) -> None:
    """Names of so many actors would be counted for ever, and torch takes no such thread count."""
    with pytest.raises(ConfigError, match=r"expected `(int|float)` [<>]= "):
        load_topology("lookup", [override])


def test_a_text_with_a_null_character_is_refused() -> None:
    """It ends a path for the system, which refuses all of it with an error that names no key."""
    with pytest.raises(ConfigError) as refused:
        load_topology("lookup", ['data.prompts="a\\u0000.jsonl"', 'data.options.a="\\u0000"'])
    assert str(refused.value) == (
        "`prompts` is 'a\\x00.jsonl', and holds a null character at $.data.prompts, leave it out"
    )


def test_words_that_no_system_knows_are_told_and_no_crash() -> None:
    """A home of nobody, bytes that are no text, a number of ten thousand digits."""
    with pytest.raises(ConfigError, match="no topology file `~nobody-of-that-name/"):
        load_topology("~nobody-of-that-name/x.toml")
    with pytest.raises(ConfigError) as refused:
        load_topology("lookup", ["\ud800=1"])
    assert str(refused.value).encode().startswith(b"`\\ud800` is not a dotted path at --set")
    with pytest.raises(ConfigError, match="expected `int`, got `str`"):
        load_topology("lookup", [f"run.steps={'9' * 10_000}"])


def test_a_file_with_a_number_of_ten_thousand_digits_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "long.toml"
    file.write_text(f"[run]\nsteps = {'9' * 10_000}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a TOML file: Exceeds the limit"):
        load_topology(str(file))

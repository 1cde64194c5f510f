"""Files, recipes, inheritance and overrides up to one plain document."""

from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.configs import read
from milepost.configs.problem import ConfigError
from milepost.configs.read import locate, merge, parse_override, read_document


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def problems_of(read: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read()
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run.steps=3", {"run": {"steps": 3}}),
        ("run.name=tiny", {"run": {"name": "tiny"}}),
        ("run.name = tiny run ", {"run": {"name": "tiny run"}}),
        ('run.name="3"', {"run": {"name": "3"}}),
        ("a.b=1e-5", {"a": {"b": 1e-5}}),
        ("a.b=true", {"a": {"b": True}}),
        ("a.b=True", {"a": {"b": "True"}}),
        ("a.b=[1, 2]", {"a": {"b": [1, 2]}}),
        ("a.b={c = 1}", {"a": {"b": {"c": 1}}}),
        ("a.b=", {"a": {"b": ""}}),
        ("a.b=x=y", {"a": {"b": "x=y"}}),
        ("data.prompts=my/file.jsonl@[0:10]", {"data": {"prompts": "my/file.jsonl@[0:10]"}}),
        ('a."b.c"=1', {"a": {"b.c": 1}}),
        ("a=1\nb = 2", {"a": "1\nb = 2"}),
    ],
)
def test_an_override_is_toml_or_else_a_string(text: str, expected: object) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("run.steps", "without `=`"),
        ("=3", "without `=`"),
        ("run..steps=3", "not a dotted path"),
        ("a b=3", "not a dotted path"),
        ("a.b=[1, 2", "begins as TOML and is not"),
        ('a.b="open', "begins as TOML and is not"),
    ],
)
def test_a_malformed_override_is_refused_and_shown(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_override(text)
    assert told in str(caught.value)
    assert f"--set {text}" in str(caught.value)


def test_the_later_override_wins_and_missing_tables_are_made(tmp_path: Path) -> None:
    source = write(tmp_path, "a.toml", "[run]\nsteps = 1\n")
    document = read_document(source, ["run.steps=2", "actors.engine.slots=8", "run.steps=3"])
    assert document == {"run": {"steps": 3}, "actors": {"engine": {"slots": 8}}}


def test_every_malformed_override_is_told_at_once(tmp_path: Path) -> None:
    source = write(tmp_path, "a.toml", "[run]\nsteps = 1\n")
    with pytest.raises(ConfigError) as caught:
        read_document(source, ["x", "run.steps.deep=1", "y"])
    assert [problem.where for problem in caught.value.problems] == [
        "--set x",
        "$.run.steps",
        "--set y",
    ]


def test_a_base_is_inherited_and_overridden_key_by_key(tmp_path: Path) -> None:
    """Variants stay short: only what differs is written down."""
    write(
        tmp_path, "grand.toml", "[run]\nsteps = 1\nname = 'g'\n[actors.buffer]\nfilters = ['a']\n"
    )
    write(tmp_path, "sub/parent.toml", "base = '../grand.toml'\n[run]\nsteps = 2\n")
    source = write(
        tmp_path, "child.toml", "base = 'sub/parent.toml'\n[actors.buffer]\nfilters = []\n"
    )
    assert read_document(source) == {
        "run": {"steps": 2, "name": "g"},
        "actors": {"buffer": {"filters": []}},
    }


def test_a_circle_of_bases_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "a.toml", "base = './b.toml'\n")
    source = write(tmp_path, "b.toml", "base = './a.toml'\n")
    with pytest.raises(ConfigError, match=r"circle: b\.toml -> a\.toml -> b\.toml"):
        read_document(source)


def test_a_base_that_is_no_name_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "a.toml", "base = 3\n")
    with pytest.raises(ConfigError, match="base = 3 is not a string"):
        read_document(source)


def test_a_syntax_error_names_file_line_and_column(tmp_path: Path) -> None:
    source = write(tmp_path, "a.toml", "[run]\nsteps = = 3\n")
    with pytest.raises(ConfigError, match="line 2, column 9") as caught:
        read_document(source)
    assert caught.value.problems[0].where == source


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a TOML file"):
        read_document(str(path))


def test_a_recipe_is_found_by_name_and_a_typo_gets_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "lookup.toml", "")
    monkeypatch.setattr(read, "RECIPES", tmp_path)
    assert locate("lookup") == tmp_path / "lookup.toml"
    with pytest.raises(ConfigError, match=r"no recipe `lokup`.*did you mean `lookup`"):
        locate("lokup")


def test_a_missing_file_is_named_with_its_whole_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no topology file") as caught:
        locate("no/such.toml", beside=tmp_path)
    assert caught.value.problems[0].where == str(tmp_path / "no/such.toml")


@pytest.mark.parametrize("name", ["x" * 300, "memo\udce9"])
def test_a_name_that_no_file_can_have_is_refused_like_any_other(name: str) -> None:
    """The system refuses to look for a name of 300 characters; that is no crash of ours."""
    (problem,) = problems_of(lambda: locate(name))
    assert problem.startswith(f"no recipe `{name}`")
    (problem,) = problems_of(lambda: locate(f"./{name}.toml"))
    assert problem.startswith(f"no topology file `./{name}.toml`")


def test_a_file_that_cannot_be_read_is_named_with_the_system_s_reason() -> None:
    """On a disk that fails, as here the memory of our own process, or of another user."""
    (problem,) = problems_of(lambda: read_document("/proc/self/mem"))
    assert problem == f"cannot be read: Input/output error at {Path('/proc/self/mem').resolve()}"


@pytest.mark.parametrize(
    "text",
    ["a." * 2000 + "b = 1", "a = " + "[" * 2000, "a = " + "[" * 40 + "]" * 40],
    ids=["keys", "endless", "lists"],
)
def test_tables_nested_deeper_than_any_topology_are_refused(tmp_path: Path, text: str) -> None:
    """Whoever walks through them would run out of stack, and say nothing of the file."""
    file = tmp_path / "deep.toml"
    file.write_text(text)
    expected = "tables or lists that are nested too deep at {}, nest at most 32 of them"
    assert problems_of(lambda: read_document(str(file))) == [expected.format(file)]
    path, value = text.split(" = ")
    (told,) = problems_of(lambda: parse_override(f"{path}={value}"))
    assert told.startswith("tables or lists that are nested too deep at --set a")
    assert len(told) < 400


def test_merging_changes_neither_side() -> None:
    under, over = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}
    assert merge(under, over) == {"a": {"b": 3, "c": 2}}
    assert (under, over) == ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})


def test_false_removes_an_inherited_table_and_a_table_may_come_back() -> None:
    removed = merge({"actors": {"engine": {"slots": 1}}}, {"actors": {"engine": False}})
    assert removed == {"actors": {"engine": False}}
    assert merge(removed, {"actors": {"engine": {"slots": 2}}}) == {
        "actors": {"engine": {"slots": 2}}
    }

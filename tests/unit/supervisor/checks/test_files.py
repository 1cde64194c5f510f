"""The checks of files and of this machine."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from unit.engine.kit import tiny_config

from milepost.actors.engine.embedded.shape import shape_from_config
from milepost.actors.engine.embedded.tensors import tensors_of
from milepost.actors.weights.manifest import SINGLE
from milepost.configs.load import decode
from milepost.configs.problem import Problem
from milepost.messages.shared import Prompt
from milepost.supervisor.checks import Machine, Subject
from milepost.supervisor.checks.check import Finding
from milepost.supervisor.checks.files import (
    archive_has_room,
    held_out_is_apart,
    prompts_are_readable,
    too_much,
)
from milepost.supervisor.checks.machine import (
    folder_is_ready,
    machine_has_room,
    python_asserts,
    sockets_fit,
    trackers_are_installed,
    versions_are_tested,
)

MACHINE = Machine(
    disk_free_bytes=1 << 40,
    writable=True,
    shared_memory_free_bytes=1 << 40,
    memory_available_bytes=1 << 40,
    open_files_max=1 << 20,
    temporary_folder="/tmp",
    requirements=(("torch>=2.9", "2.13.0+cpu"),),
    asserts=True,
    curve=True,
)


def subject(machine: Machine = MACHINE, **tables: Any) -> Subject:
    document: dict[str, Any] = {"run": {"name": "tiny", "steps": 1}, **tables}
    return Subject(decode(document), machine)


def told(findings: list[Finding]) -> list[str]:
    return [finding.what for finding in findings if isinstance(finding, Problem)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def write_model(folder: Path, **changes: Any) -> Path:
    """A folder with everything that checks look for; `changes` of its config.json alone."""
    folder.mkdir(parents=True)
    config = tiny_config(architectures=["Qwen3ForCausalLM"])
    (folder / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    shapes = tensors_of(shape_from_config(config))
    save_file({name: np.zeros(shape, "f4") for name, shape in shapes}, folder / SINGLE)
    return folder


def model(folder: Path, context_tokens_max: int = 256) -> dict[str, Any]:
    return {"path": str(folder), "context_tokens_max": context_tokens_max}


def test_a_bad_line_of_the_prompt_file_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    good = '{"messages": [{"role": "user", "content": "hi"}]}'
    path.write_text(f"{good}\n\n{good[:-1]}\n", encoding="utf-8")
    (problem,) = told(list(prompts_are_readable(subject(data={"prompts": str(path)}))))
    assert "line 3" in problem
    path.write_text(f"{good}\n{good}\n", encoding="utf-8")
    assert told(list(prompts_are_readable(subject(data={"prompts": str(path)})))) == []


@pytest.mark.parametrize(
    ("metadata", "told_of"),
    [
        ('{"a":' * 29 + "1" + "}" * 29, "nested"),
        ('{"a": "%s"}' % ("x" * (16 << 20)), "the limit is 16760832"),
        ('{"a": 1180591620717411303424}', 'prompt "p:1": a number in it has more than 64 bits'),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, "line 1: nested too deep to be read"),
    ],
)
def test_a_prompt_that_no_message_can_carry_is_told(
    tmp_path: Path, metadata: str, told_of: str
) -> None:
    """The bus would refuse it when its turn comes, each time that it comes."""
    path = tmp_path / "p.jsonl"
    line = '{"messages": [{"role": "user", "content": "hi"}], "metadata": %s}'
    path.write_text(line % metadata, encoding="utf-8")
    (problem,) = told(list(prompts_are_readable(subject(data={"prompts": str(path)}))))
    assert told_of in problem
    path.write_text(line % ('{"a":' * 20 + "1" + "}" * 20), encoding="utf-8")
    assert list(prompts_are_readable(subject(data={"prompts": str(path)}))) == []


def test_texts_that_grow_with_each_turn_have_less_room_than_what_an_agent_hears_once(
    tmp_path: Path,
) -> None:
    """Test cases of a code task are metadata: 9 MB of them were refused, which run well."""
    path = tmp_path / "p.jsonl"
    cases, said = "x" * 9_000_000, [{"role": "user", "content": "hi"}]
    path.write_text(json.dumps({"messages": said, "metadata": {"cases": cases}}))
    given = subject(data={"prompts": str(path)})
    assert list(prompts_are_readable(given)) == []
    path.write_text(json.dumps({"messages": [{"role": "user", "content": cases}]}))
    (problem,) = told(list(prompts_are_readable(given)))
    assert "the limit is 8388608" in problem


@pytest.mark.parametrize(("levels", "text"), [(5000, "a"), (1, "\ud83d")])
def test_a_prompt_that_cannot_be_packed_is_told_in_words(levels: int, text: str) -> None:
    """Not by a traceback of the check."""
    value: dict[str, Any] = {"a": text}
    for _ in range(levels):
        value = {"a": value}
    prompt = Prompt(prompt_id="p", messages=[], metadata=value)
    told_of = "nested too deep to be sent" if levels > 1 else "a text in it is not UTF-8"
    assert too_much(prompt, subject().topology.system.bus).startswith(told_of)


def evaluated(train: str, held_out: str) -> Subject:
    data = {"prompts": train, "held_out_prompts": held_out}
    return subject(data=data, actors={"evaluator": {}})


def test_held_out_prompts_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    """Two settings that differ can name the same lines; a score on them looks like success."""
    path = tmp_path / "p.jsonl"
    lines = [{"messages": [{"role": "user", "content": f"{n}"}], "label": n} for n in range(9)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    (told_of,) = told(list(held_out_is_apart(evaluated(f"{path}", f"{path}@[-4:]"))))
    assert told_of == '4 of 4 held-out prompts are training prompts, too; the first is "p:6"'
    assert list(held_out_is_apart(evaluated(f"{path}@[:-4]", f"{path}@[-4:]"))) == []
    copy = tmp_path / "copy.jsonl"
    line = {"label": 2, "prompt_id": "another name", "messages": lines[2]["messages"]}
    copy.write_text(json.dumps(line), encoding="utf-8")
    assert len(told(list(held_out_is_apart(evaluated(str(path), str(copy)))))) == 1
    copy.write_text(json.dumps({**line, "metadata": {"seed": 7}}), encoding="utf-8")
    (note,) = held_out_is_apart(evaluated(str(path), str(copy)))
    assert "1 of 1 have the messages of a training prompt" in str(note), "no problem: a new seed"


def test_a_run_folder_must_be_new_or_hold_the_run_to_resume(tmp_path: Path) -> None:
    new = replace(subject(), run_folder=tmp_path / "run")
    assert told(list(folder_is_ready(new))) == []
    (tmp_path / "run").mkdir()
    assert told(list(folder_is_ready(new))) == []
    (tmp_path / "run" / "topology.toml").touch()
    assert told(list(folder_is_ready(new))) == ["the run folder is not empty"]
    assert told(list(folder_is_ready(replace(new, resuming=True)))) == []
    (problem,) = folder_is_ready(new)
    assert "--resume" in str(problem)


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    """It is told in JSON, to browsers and to processes, which could not hold it."""
    folder = tmp_path / os.fsdecode(b"memo\xe9")
    (problem,) = folder_is_ready(replace(subject(), run_folder=folder))
    assert isinstance(problem, Problem)
    assert problem.what == "the path is not text in UTF-8"
    assert "memo\\udce9" in problem.where
    for name in ("memo\u00e9", "ascii"):
        assert list(folder_is_ready(replace(subject(), run_folder=tmp_path / name))) == []


def test_a_place_that_holds_no_run_is_told_without_a_word_of_resuming(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mother.txt").touch()
    (problem,) = folder_is_ready(replace(subject(), run_folder=tmp_path / "letters"))
    assert "--resume" not in str(problem)
    a_file = tmp_path / "letters" / "mother.txt"
    (problem,) = folder_is_ready(replace(subject(), run_folder=a_file))
    assert "this is a file" in str(problem)


def test_a_missing_and_an_old_package_are_told_with_both_versions() -> None:
    machine = replace(
        MACHINE,
        requirements=(("torch>=2.9", "2.8.1"), ("msgspec>=0.19,<1", ""), ("rich>=13", "14.0")),
    )
    assert told(list(versions_are_tested(subject(machine)))) == [
        "torch 2.8.1 is installed, not >=2.9",
        "msgspec is not installed",
    ]


def test_what_is_installed_here_is_what_the_project_asks_for() -> None:
    """The list of requirements comes from the installed package: it must not be empty."""
    machine = Machine.look(Path())
    assert any(text.startswith("torch") for text, _ in machine.requirements)
    assert told(list(versions_are_tested(subject(machine)))) == []


def test_looking_at_a_folder_that_is_not_there_yet_looks_at_where_it_will_be(
    tmp_path: Path,
) -> None:
    machine = Machine.look(tmp_path / "a" / "b")
    assert machine.writable
    assert machine.disk_free_bytes > 0
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("machine", "where"),
    [
        (replace(MACHINE, disk_free_bytes=1), "free on disk"),
        (replace(MACHINE, shared_memory_free_bytes=1), "shared memory"),
        (replace(MACHINE, memory_available_bytes=1), "memory are available"),
        (replace(MACHINE, open_files_max=20), "may open 20 files"),
    ],
)
def test_each_thing_that_a_machine_can_run_out_of_is_told(
    checkpoint: Path, machine: Machine, where: str
) -> None:
    tables = {"model": model(checkpoint), "actors": {"publisher": {}, "engine": {}}}
    (problem,) = told(list(machine_has_room(subject(machine, **tables))))
    assert where in problem


def test_an_archive_that_may_outgrow_the_disk_is_a_note() -> None:
    """It harms no run, so it stops none; a person should know all the same."""
    tables: dict[str, Any] = {"actors": {"buffer": {}}}
    full = replace(MACHINE, disk_free_bytes=1 << 30)
    (note,) = archive_has_room(subject(full, **tables))
    assert "may take 8,192 MiB, 1,024 MiB are free" in str(note)
    assert not list(archive_has_room(subject(full, archive={"enabled": False}, **tables)))
    assert not list(archive_has_room(subject(MACHINE, **tables)))


def test_a_system_without_shared_memory_is_not_refused_for_it(checkpoint: Path) -> None:
    machine = replace(MACHINE, shared_memory_free_bytes=None)
    tables = {"model": model(checkpoint), "actors": {"publisher": {}}}
    assert told(list(machine_has_room(subject(machine, **tables)))) == []


def test_a_long_temporary_folder_is_told_before_a_socket_fails() -> None:
    """The system's own words are "File name too long", and it does not say which."""
    tables: dict[str, Any] = {"actors": {"trainer": {"lr": 1e-3, "ranks": 1000}}}
    assert told(list(sockets_fit(subject(**tables)))) == []
    machine = replace(MACHINE, temporary_folder="/" + "t" * 77)
    (problem,) = told(list(sockets_fit(subject(machine, **tables))))
    assert "has 108 bytes, the system takes 107" in problem
    fits = replace(MACHINE, temporary_folder="/" + "t" * 76)
    assert told(list(sockets_fit(subject(fits, **tables)))) == []


def test_a_tracker_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(list(trackers_are_installed(subject()))) == []
    # None in its place is how Python says that a module cannot be found.
    monkeypatch.setitem(sys.modules, "wandb", None)
    wanted = subject(tracking={"wandb_project": "mine"})
    assert told(list(trackers_are_installed(wanted))) == ["wandb is not installed"]


def test_assertions_that_are_off_are_told() -> None:
    assert told(list(python_asserts(subject()))) == []
    assert told(list(python_asserts(subject(replace(MACHINE, asserts=False))))) == [
        "assertions are switched off"
    ]

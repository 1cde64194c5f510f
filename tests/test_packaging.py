"""What is installed is what lies here: the packages, the links of the checkers, the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
from tidy_rules import ROOMS

ROOT: Final = Path(__file__).parent.parent
FRONT: Final = "front"
"""The folder that is `milepost` itself; it holds one file."""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def packages_on_disk() -> set[str]:
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    rooms = {".".join(("milepost", *path.relative_to(ROOT).parent.parts)) for path in files}
    return {"milepost", *rooms}


def test_every_folder_with_code_is_a_listed_package(project: dict[str, Any]) -> None:
    """One that is not listed works here, and is missing from the wheel without a word."""
    listed = project["tool"]["setuptools"]["packages"]
    assert sorted(listed) == listed
    assert set(listed) == packages_on_disk()


def test_every_package_has_an_init_with_a_docstring() -> None:
    for name in packages_on_disk():
        path = ROOT.joinpath(*(name.split(".")[1:] or [FRONT]), "__init__.py")
        assert path.is_file(), f"{path} is missing"
        assert path.read_text(encoding="utf-8").startswith('"""'), f"{path} says nothing"


def test_every_data_file_is_listed(project: dict[str, Any]) -> None:
    """Recipes and templates are read at run time; a wheel without them starts and then fails."""
    listed = project["tool"]["setuptools"]["package-data"]
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.is_file() and path.suffix not in {".py", ".pyc"}:
                package = ".".join(("milepost", *path.relative_to(ROOT).parent.parts))
                patterns = listed.get(package, [])
                assert any(path.match(pattern) for pattern in patterns), f"{path} is not listed"


def test_links_of_the_type_checkers_are_the_rooms() -> None:
    found = (ROOT / ".typing" / "milepost").iterdir()
    # Whoever runs through these links and may keep bytecode keeps it beside them.
    links = {path.name: str(path.readlink()) for path in found if path.name != "__pycache__"}
    rooms = {room: f"../../{room}" for room in ROOMS}
    assert links == {"__init__.py": f"../../{FRONT}/__init__.py", **rooms}


def test_every_table_of_rooms_names_all_rooms(project: dict[str, Any]) -> None:
    names = {f"milepost.{room}" for room in ROOMS}
    tool = project["tool"]
    folders = {f"milepost.{room}": room for room in ROOMS}
    assert tool["setuptools"]["package-dir"] == {"milepost": FRONT, **folders}
    assert tool["importlinter"]["root_packages"] == ["milepost"]
    assert set(tool["importlinter"]["contracts"][0]["layers"]) == names
    assert set(tool["coverage"]["run"]["source_pkgs"]) == names
    assert set(tool["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) >= set(ROOMS)


def test_the_short_names_are_the_classes_and_cost_nothing_until_asked_for() -> None:
    """`class MyAgent(milepost.Agent)`: one class, whichever name it is imported by."""
    script = (
        "import sys, milepost\n"
        "assert not [name for name in sys.modules if name.startswith('milepost.')]\n"
        "from milepost.actors import agent\n"
        "from milepost.actors.evaluator import external\n"
        "from milepost.actors.buffer import candidates\n"
        "homes = vars(agent) | vars(external) | vars(candidates)\n"
        "assert all(getattr(milepost, name) is homes[name] for name in milepost.__all__)\n"
        "assert not hasattr(milepost, 'Nothing')\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    command = [sys.executable, "-P", "-c", script]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_refuses_to_be_imported_under_a_second_name(room: str) -> None:
    """Two names would mean two copies of each class, and isinstance would be false."""
    command = [sys.executable, "-c", f"import {room}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"import milepost.{room}, not {room}" in result.stderr


def test_every_dependency_has_its_reason_in_the_docs(project: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for requirement in project["project"]["dependencies"]:
        name = re.split(r"[<>=!~\[ ]", requirement)[0]
        assert f"| {name} |" in page, f"{name} has no line in docs/architecture.md"


def test_every_dependency_is_pinned_for_cpu_machines(project: dict[str, Any]) -> None:
    text = (ROOT / "constraints" / "cpu.txt").read_text(encoding="utf-8")
    pins = {line.partition("==")[0].lower() for line in text.splitlines() if "==" in line}
    wanted = [*project["project"]["dependencies"]]
    wanted += project["project"]["optional-dependencies"]["dev"]
    for requirement in wanted:
        assert re.split(r"[<>=!~\[ ]", requirement)[0].lower() in pins


def test_a_wheel_holds_exactly_the_packages(tmp_path: Path) -> None:
    """Built as pip builds it, from a source distribution, without asking the network."""
    script = (
        "import sys\n"
        "from setuptools import build_meta\n"
        "print(build_meta.build_wheel(sys.argv[1]))\n"
    )
    copy = tmp_path / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "MANIFEST.in", FRONT, *ROOMS):
        (copy / name).symlink_to(ROOT / name)
    command = [sys.executable, "-c", script, str(tmp_path)]
    subprocess.run(command, cwd=copy, capture_output=True, text=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in names} == {"milepost"}
    folders = {name.rpartition("/")[0].replace("/", ".") for name in names if name.endswith(".py")}
    assert folders == packages_on_disk()
    recipes = {name.rpartition("/")[2] for name in names if name.endswith(".toml")}
    assert recipes == {path.name for path in (ROOT / "configs" / "recipes").glob("*.toml")}

"""The docs say what the code does: generated tables, links, and the tree in the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from docs_tables import DOCS, TABLES, replaced
from tidy_rules import ROOMS

from milepost.launch.cli import command_names

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = sorted([ROOT / "README.md", ROOT / "AGENTS.md", *DOCS.rglob("*.md")])


@pytest.mark.parametrize("place", TABLES, ids="/".join)
def test_generated_tables_are_the_code_s(place: tuple[str, str]) -> None:
    """`make docs` writes them; whoever changed the code forgot it."""
    page, name = place
    text = (DOCS / page).read_text(encoding="utf-8")
    assert replaced(text, name, TABLES[place]()) == text


def test_bounds_are_written_as_one_sets_them() -> None:
    """`1.04858e+06` is not what the bound is."""
    told = "\n".join(TABLES["topology.md", "tables"]())
    assert "| integer >= 64, <= 1048576 |" in told
    assert not re.search(r"[<>]=? [0-9.]+e\+", told)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = set(re.findall(r"(?:^\s+|`|\$ |bin/)milepost ([a-z][a-z-]*)", text, re.MULTILINE))
    assert shown <= {*command_names(), "help"}


def test_every_make_target_that_a_page_shows_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in PAGES:
        shown = set(re.findall(r"(?:^\s+|`)make ([a-z-]+)", page.read_text(encoding="utf-8")))
        assert shown <= targets, f"{page.name} shows {shown - targets}"


def test_the_tree_of_the_readme_has_every_room() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for room in (*ROOMS, "tests", "docs"):
        assert re.search(rf"^    {room}/ ", text, re.MULTILINE), f"README.md does not say {room}/"

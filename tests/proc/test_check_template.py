"""`milepost check-template`: the proof that a family fits, without weights."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from milepost.configs.recipes.lookup.clerk import demonstrations
from milepost.configs.recipes.lookup.directory import VALUES
from milepost.configs.recipes.tiny.tokenizer import render, train_tokenizer, write_tokenizer
from milepost.launch.cli import main
from milepost.launch.exits import Exit

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and template as the quick start makes them."""
    made = tmp_path_factory.mktemp("tokenizer")
    texts = [render(prompt) for prompt in islice(demonstrations("train", 0, {}), 50)]
    write_tokenizer(made, train_tokenizer(texts, VALUES, size=360), context_tokens_max=1024)
    return made


def test_a_family_that_fits_is_proven(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same proof is tried by every session actor when it starts."""
    words = ["check-template", "--tokenizer", str(folder), "--family", "qwen3", "--json"]
    assert main(words) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["faults"] == []
    assert found["stop_tokens"] == ["<|im_end|>", "<|endoftext|>"]


def test_what_does_not_fit_is_told_with_its_first_difference(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2; the words name the conversation, and both texts from where they part."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    template = tmp_path / "chat_template.jinja"
    broken = template.read_text().replace(
        "body(message) + '<|im_end|>\\n'", "body(message) + '\\n'"
    )
    assert broken != template.read_text()
    template.write_text(broken)
    words = ["check-template", "--tokenizer", str(tmp_path), "--family", "qwen3"]
    assert main(words) == Exit.REFUSED
    told = capsys.readouterr().out
    assert "fault: a second question: " in told
    assert main([*words[:4], "qwen4"]) == Exit.REFUSED
    assert "did you mean 'qwen3'" in capsys.readouterr().out

"""Files that say how a model's text is written, damaged: each is named, with its fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.actors.session.text.report import report
from milepost.actors.session.text.sources import SourceDamaged, read_config, template_sources
from milepost.actors.session.text.tokenizer import load_tokenizer


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is not JSON: Expecting value"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON: 'utf-8' codec can't decode"),
        (b"[" * 200_000, "is not JSON: maximum recursion depth"),
        (b"null", "holds a NoneType and no JSON object"),
        (b"[]", "holds a list and no JSON object"),
    ],
)
def test_a_configuration_that_is_no_object_is_named(
    content: bytes, told: str, tmp_path: Path
) -> None:
    """The trainer reads it, too: for the hash of the template."""
    path = tmp_path / "tokenizer_config.json"
    path.write_bytes(content)
    for read in (read_config, template_sources):
        with pytest.raises(SourceDamaged, match=told) as refused:
            read(tmp_path)
        assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize("entries", ["[1]", '[{"name": "default"}]', "[[]]"])
def test_a_list_of_something_else_than_templates_is_named(entries: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(f'{{"chat_template": {entries}}}', encoding="utf-8")
    with pytest.raises(SourceDamaged, match="is no list of named templates"):
        template_sources(tmp_path)


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SourceDamaged, match=r"chat_template\.jinja is no text"):
        template_sources(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff\xfe", b'{"model": 1}'])
def test_a_tokenizer_that_is_none_is_named(content: bytes, tmp_path: Path) -> None:
    """`milepost check-template` and the check of a topology tell it in these words."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(SourceDamaged, match=r"tokenizer\.json is no tokenizer: "):
        load_tokenizer(tmp_path)
    told = report(tmp_path, "qwen3", {})
    assert str(told["error"]).startswith(f"{path} is no tokenizer: ")

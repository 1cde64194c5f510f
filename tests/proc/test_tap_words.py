"""Tapped token ids become text, by a process of its own that has the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from unit.launch.test_traffic import copy_of

from milepost.actors.arrays import to_bulk
from milepost.actors.session.text.tokenizer import load_tokenizer
from milepost.configs.recipes.tiny.tokenizer import train_tokenizer, write_tokenizer
from milepost.launch.traffic.seen import Seen, read_copy
from milepost.launch.traffic.words import Words
from milepost.messages.buffer import TrajectoryFinished
from milepost.messages.engine import Generate
from milepost.messages.examples import example
from milepost.messages.shared import Message

TEXT = "<|im_start|>user\nWhat is the pet of kai, naïve 世界?<|im_end|>\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a tokenizer in it."""
    folder = tmp_path / "initial_model"
    folder.mkdir()
    write_tokenizer(folder, train_tokenizer([TEXT], (), size=266), context_tokens_max=1024)
    return tmp_path


async def test_token_ids_are_shown_as_text(run: Path) -> None:
    """Each row by its path, as far as it was copied, and nothing else."""
    tokenizer = load_tokenizer(run / "initial_model")
    ids = to_bulk(tokenizer.encode(TEXT), "int32")
    long = to_bulk(tokenizer.encode(TEXT * 40), "int32")
    said: list[str] = []
    words = Words(run, said.append)
    await words.open()
    try:
        of_prompt = await words.texts(seen(structs.replace(example(Generate), token_ids=ids)))
        assert of_prompt == {"token_ids": repr(TEXT)}
        finished: Any = example(TrajectoryFinished)
        row = finished.trajectory
        certificate = structs.replace(row.certificate, tokenizer_hash=tokenizer.content_hash)
        row = structs.replace(row, token_ids=long, certificate=certificate)
        message = seen(TrajectoryFinished(trajectory=row))
        (path, text), *others = (await words.texts(message)).items()
        assert (path, others) == ("trajectory.token_ids", [])
        assert text.endswith(f" (first 64 of {long.shape[0]} tokens)")
        assert repr(TEXT)[1:20] in text
        assert f"    {path} says {text}" in message.decoded_lines({path: text})
        assert said == []
    finally:
        await words.close()


def seen(message: Message) -> Seen:
    return read_copy("session-0", copy_of(message))


async def test_rows_of_another_tokenizer_stay_ids_and_the_reason_is_told_once(run: Path) -> None:
    said: list[str] = []
    words = Words(run, said.append)
    await words.open()
    try:
        for _ in range(2):
            assert await words.texts(seen(example(TrajectoryFinished))) == {}
        (reason,) = said
        assert "the row was made with" in reason
        assert await words.texts(seen(example(Generate))) != {}, "its own words go on"
    finally:
        await words.close()


async def test_without_a_tokenizer_ids_stay_ids_and_the_reason_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    words = Words(tmp_path, said.append)
    await words.open()
    assert [await words.texts(seen(example(Generate))) for _ in range(2)] == [{}, {}]
    await words.close()
    assert said == ["token ids stay ids: no tokenizer lies where the topology says, nor in the run"]

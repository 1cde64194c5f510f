"""Processes that spell tokens, kept by model: none is forgotten while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.launch.view import speller
from milepost.launch.view.paging import page_number
from milepost.launch.view.speller import OPEN_MAX, Question, Spellers, Spelling

QUESTION = Question(token_ids=[1, 2], start=0, end=2)


class Process:
    """In place of a process: answers and ends when it is told to."""

    made: list[Process]

    def __init__(self, folder: Path, answer_s: float) -> None:
        del answer_s
        self.folder = folder
        self.may_answer, self.may_close = asyncio.Event(), asyncio.Event()
        self.is_over = self.is_closed = False
        self.made.append(self)

    async def ask(self, content_hash: str, question: Question) -> Spelling:
        del content_hash, question
        await self.may_answer.wait()
        return Spelling(error=f"of {self.folder}")

    async def close(self) -> None:
        self.is_closed = True
        await self.may_close.wait()


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    Process.made = []
    monkeypatch.setattr(speller, "_Speller", Process)
    return Process.made


async def test_a_successor_is_not_forgotten_for_its_predecessors_end(
    processes: list[Process],
) -> None:
    """Two wait for a process that dies; the second hears of it when another one is there."""
    spellers, folder = Spellers(), Path("model")
    asked = [asyncio.create_task(spellers.spell(folder, "", QUESTION)) for _ in range(2)]
    await asyncio.sleep(0)
    (first,) = processes
    first.is_over = True
    spellers._open.pop(folder)  # what the quicker one of the two does
    third = asyncio.create_task(spellers.spell(folder, "", QUESTION))
    await asyncio.sleep(0)
    first.may_answer.set()
    await asyncio.gather(*asked)
    assert len(processes) == 2
    processes[1].may_answer.set()
    processes[1].may_close.set()
    await third
    await spellers.close()
    assert processes[1].is_closed


async def test_many_models_at_once_are_each_answered(processes: list[Process]) -> None:
    """While the oldest ends to make room, the newest may have to make room itself."""
    spellers = Spellers()
    folders = [Path(str(number)) for number in range(2 * OPEN_MAX + 2)]
    asked = [asyncio.create_task(spellers.spell(each, "", QUESTION)) for each in folders]
    await asyncio.sleep(0)
    for one in processes:
        one.may_answer.set()
        one.may_close.set()
    answers = await asyncio.gather(*asked)
    assert [each.error for each in answers] == [f"of {each}" for each in folders]
    await spellers.close()
    assert all(each.is_closed for each in processes)


@pytest.mark.parametrize("text", ["", "x", "-1", "9" * 5000, "\u0664"])
def test_a_page_that_is_no_number_is_the_first(text: str) -> None:
    """Python reads no number of more than 4,300 digits."""
    assert page_number(text) == 1

"""What actors hold outside: given back when they are gone, whatever the commands do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proc.bus.harness import until

from milepost.messages.supervisor import ResourceReleased, ResourceTaken
from milepost.supervisor.holdings import Holdings


class Book:
    """What was written down and told, and a word when something was."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.told: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def write(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self._news.set()

    def tell(self, kind: str, text: str) -> None:
        self.told.append((kind, text))
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():
                self._news.clear()
                await self._news.wait()

    @property
    def released(self) -> list[str]:
        return [record["name"] for record in self.records if record["kind"] == "released"]


def taken(name: str, *argv: str, actor: str = "agent-0", lease_s: float = 0) -> ResourceTaken:
    return ResourceTaken(actor=actor, name=name, release=list(argv), lease_s=lease_s)


async def test_all_of_a_dead_actor_is_given_back_and_nobody_else_s(tmp_path: Path) -> None:
    book = Book()
    holdings = Holdings(book.write, book.tell)
    for name, actor in (("a", "agent-0"), ("b", "agent-1"), ("c", "agent-0")):
        (tmp_path / name).touch()
        holdings.take(taken(name, "rm", str(tmp_path / name), actor=actor))
    holdings.release_of("agent-0")
    await book.until(lambda: len(book.released) == 2)
    holdings.close()
    assert sorted(book.released) == ["a", "c"]
    assert os.listdir(tmp_path) == ["b"]  # noqa: PTH208 - one name
    assert book.told == []


async def test_a_command_that_fails_is_told_and_stays_in_the_registry() -> None:
    """Nobody would know, until a disk is full of sandboxes."""
    book = Book()
    holdings = Holdings(book.write, book.tell)
    holdings.take(taken("a", "false"))
    holdings.take(taken("b", "/no/such/program"))
    holdings.release_of("agent-0")
    await book.until(lambda: len(book.told) == 2)
    holdings.close()
    assert {kind for kind, _ in book.told} == {"not_given_back"}
    assert book.released == []


async def test_what_is_taken_again_meanwhile_is_not_written_off(tmp_path: Path) -> None:
    """The second life of an agent uses the name at once; its record must be the last one."""
    book = Book()
    holdings = Holdings(book.write, book.tell)
    gate = tmp_path / "gate"
    gate.write_text("")
    holdings.take(taken("a", "rm", str(gate)))
    holdings.release_of("agent-0")
    holdings.take(taken("a", "true"))
    holdings.take(taken("b", "true", actor="agent-1"))
    holdings.release_of("agent-1")
    await book.until(lambda: "b" in book.released)
    holdings.release(ResourceReleased(actor="agent-0", name="a"))
    holdings.close()
    assert book.records[-1] == {"kind": "released", "name": "a"}
    assert [each["kind"] for each in book.records if each["name"] == "a"].count("released") == 1


async def test_a_lease_that_nobody_renews_is_told_and_ends() -> None:
    book = Book()
    holdings = Holdings(book.write, book.tell)
    holdings.take(taken("a", "true", lease_s=0.01))
    await book.until(lambda: book.released == ["a"])
    holdings.close()
    assert book.told[0][0] == "lease_ended"


async def test_a_command_that_hangs_ends_with_the_run() -> None:
    """The reaper runs it again; the process of the run waited for it for half a minute."""
    book = Book()
    holdings = Holdings(book.write, book.tell)
    holdings.take(taken("a", "sleep", "86397.5"))
    holdings.release_of("agent-0")
    await until(lambda: bool(holdings._running), "the command to run", 20)
    (process,) = holdings._running
    holdings.close()
    assert await asyncio.to_thread(process.wait, 20) < 0
    assert book.released == []

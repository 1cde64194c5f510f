"""Shows the messages of an edge while they travel, without the run noticing.

EDGE is `SENDER -> RECEIVER`, or `SENDER <-> RECEIVER` for both ways; `*` and `?` stand for anything
in a name: `session-* -> buffer`, `* -> rollout`. Quote it. Nothing has to be prepared: an actor
copies its traffic only while somebody taps it, into a small buffer; what finds no room there is
counted, told, and never waited for. Arrays are shown by their first values. Read-only.

CONDITION is a comparison of fields: `type == "Generate" and len(token_ids) > 100`,
`message.reward < 0 or status in ["failed", "aborted"]`, `staleness > 2`: versions published since
its oldest token was sampled. With --decode, token ids are shown as text, too, where the run's
tokenizer lies on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from milepost.configs.problem import ConfigError, Problem
from milepost.launch.attach import (
    Client,
    NotServed,
    Unreachable,
    add_run_arguments,
    attached,
    find_run,
    take_run,
)
from milepost.launch.exits import Exit
from milepost.launch.visible import visible_line

if TYPE_CHECKING:
    from pathlib import Path

    from milepost.launch.traffic.ages import Ages
    from milepost.launch.traffic.condition import Condition
    from milepost.launch.traffic.edges import Spot
    from milepost.launch.traffic.seen import Seen
    from milepost.launch.traffic.words import Words
    from milepost.messages.supervisor import Tapped

POLL_S: Final = 0.2
AGE: Final = "staleness"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[RUN] EDGE, --where, --decode, --limit, --run and --json."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="EDGE",
        help="such as 'session-0 -> buffer'; the run's folder may come first",
    )
    parser.add_argument(
        "--where", default="", metavar="CONDITION", help="only messages for which this holds"
    )
    parser.add_argument("--decode", action="store_true", help="show every field, too")
    parser.add_argument(
        "--limit", type=int, default=None, metavar="N", help="end after N messages (default: go on)"
    )
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read the taps until the limit, Ctrl-C, or the end of the run."""
    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigError(
            [Problem(f"--limit = {arguments.limit}", "command line", "set 1 or more")]
        )
    reading = _Reading(arguments)
    try:
        return attached(lambda: asyncio.run(reading.follow()))
    except KeyboardInterrupt:
        reading.say(f"{reading.num_shown} shown")
        return Exit.DONE


@dataclass(slots=True)
class _Reading:
    """One tapper: what it wants, and what it has shown."""

    arguments: argparse.Namespace
    tap: str = field(default_factory=lambda: secrets.token_hex(4))
    num_shown: int = 0
    heard: bool = False
    """Any tap has ever answered."""
    opened: set[str] = field(default_factory=set)
    """Actors whose tap was open once."""
    silent: dict[str, str] = field(default_factory=dict)
    """Actor -> why it does not answer; told once."""
    told: set[str] = field(default_factory=set)
    """Reasons why something of a message cannot be known, or compared."""
    ages: Ages | None = None
    """Where somebody asks for them."""
    words: Words | None = None

    async def follow(self) -> int:
        """Read until there is enough.

        Raises:
            ConfigError: no such edge or condition.
            Unreachable: no supervisor answers.
            NotServed: no actor of the edge lets itself be tapped.
        """
        from milepost.launch.traffic.ages import Ages
        from milepost.launch.traffic.condition import Condition
        from milepost.launch.traffic.edges import parse_edge, spots_of
        from milepost.messages.supervisor import Snapshot, SnapshotRequested

        text = self.arguments.where
        edge = parse_edge(" ".join(take_run(self.arguments, self.arguments.words)))
        condition = Condition(text, _field_names()) if text else None
        found = find_run(self.arguments.run)
        async with self._spelling(found.folder), Client(found) as client:
            snapshot = await client.ask(SnapshotRequested(), Snapshot)
            if self.arguments.decode or (condition and AGE in condition.names):
                self.ages = Ages(snapshot.actors)
            names = (*(actor["actor"] for actor in snapshot.actors), "supervisor")
            spots = list(spots_of(edge, names))
            while not self.is_enough:
                try:
                    left = await self._read(client, spots, condition)
                except Unreachable:
                    if not self.heard:
                        raise
                    self.say(f"the run does not answer any more, {self.num_shown} shown")
                    return Exit.DONE
                if not left and not self.is_enough:
                    await asyncio.sleep(POLL_S)
            await asyncio.gather(*(self._ask(client, spot, close=True) for spot in spots))
            await self._hear_publisher(client, close=True)
        return Exit.DONE

    @asynccontextmanager
    async def _spelling(self, run: Path) -> AsyncIterator[None]:
        """With the tokenizer at hand, where one is wanted."""
        if not self.arguments.decode:
            yield
            return
        from milepost.launch.traffic.words import Words

        self.words = Words(run, self.say)
        try:
            await self.words.open()
            yield
        finally:
            await self.words.close()

    @property
    def is_enough(self) -> bool:
        """Whether the limit is reached."""
        limit: int | None = self.arguments.limit
        return limit is not None and limit <= self.num_shown

    def say(self, text: str) -> None:
        """A line that is no message."""
        print(f"# {text}", file=sys.stderr, flush=True)

    async def _read(self, client: Client, spots: list[Spot], condition: Condition | None) -> bool:
        """Read every tap once and show what came, in order of time; whether more is there."""
        from milepost.launch.traffic.seen import read_copy

        answers = await asyncio.gather(*(self._ask(client, spot) for spot in spots))
        if not self.heard and not any(answers):
            raise NotServed("; ".join(self.silent.values()))
        self.heard = True
        pairs = zip(spots, answers, strict=True)
        told = [(spot, answer) for spot, answer in pairs if answer is not None]
        seen = [read_copy(spot.actor, copy) for spot, answer in told for copy in answer.copies]
        await self._hear_publisher(client)
        for one in sorted(seen, key=lambda each: each.at_ns):
            self._tell_age(one, asked=condition is not None and AGE in condition.names)
            if condition is None or condition.holds(one.envelope, one.fields):
                await self._show(one)
            else:
                self._tell_why_not(one, condition)
        for spot, answer in told:
            if answer.opened and spot.actor in self.opened:
                self.say(f"the tap of {spot.actor} had ended; nothing was copied until now")
            self.opened.add(spot.actor)
            if answer.dropped:
                self.say(f"{answer.dropped} messages of {spot.actor} came too fast to be copied")
        return any(answer.left for _, answer in told)

    async def _hear_publisher(self, client: Client, *, close: bool = False) -> None:
        """After the edge was read: then no message is judged before what was published then."""
        if self.ages is None or self.ages.spot is None:
            return
        answer = await self._ask(client, self.ages.spot, tap=f"{self.tap}-{AGE}", close=close)
        if answer is not None:
            self.ages.note(answer.copies)

    def _tell_why_not(self, one: Seen, condition: Condition) -> None:
        """Once for each type: else a word that fits no message looks like an edge without any."""
        name = one.envelope["type"]
        if condition.why_not and not one.is_whole:
            self._tell_once(f"{name} cannot be compared: its body is longer than a tap copies")
            return
        for why in condition.why_not:
            if why.text != f"has no field `{AGE}`":  # which is told with its reason
                self._tell_once(f"{name} {why.text}", why.detail)

    def _tell_once(self, text: str, detail: str = "") -> None:
        if text not in self.told:
            self.told.add(text)
            self.say(text + detail)

    def _tell_age(self, one: Seen, *, asked: bool) -> None:
        if self.ages is None:
            return
        age = self.ages.of(one)
        if isinstance(age, int):
            one.envelope[AGE] = age
        elif asked:
            self._tell_once(age)

    async def _ask(
        self, client: Client, spot: Spot, *, tap: str = "", close: bool = False
    ) -> Tapped | None:
        """The answer of one tap; None, and told once, when its actor does not answer."""
        from milepost.messages.supervisor import Tapped, TapRead

        wanted = TapRead(
            actor=spot.actor,
            tap=tap or self.tap,
            peers=spot.peers,
            sent=spot.sent,
            received=spot.received,
            close=close,
        )
        try:
            answer = await client.ask(wanted, Tapped)
        except NotServed as error:
            if self.heard and spot.actor not in self.silent:
                self.say(str(error))
            self.silent[spot.actor] = str(error)
            return None
        self.silent.pop(spot.actor, None)
        return answer

    async def _show(self, seen: Seen) -> None:
        if self.is_enough:
            return
        self.num_shown += 1
        decode = self.arguments.decode
        texts = await self.words.texts(seen) if self.words is not None else {}
        if self.arguments.json:
            print(msgspec.json.encode(seen.as_json(texts, decode=decode)).decode(), flush=True)
            return
        lines = [seen.line(), *(seen.decoded_lines(texts) if decode else ())]
        print("\n".join(map(visible_line, lines)), flush=True)


def _field_names() -> set[str]:
    """Of every message type that there is."""
    from milepost.messages.registry import registered

    return {name for one in registered() for name in one.type.__struct_fields__}

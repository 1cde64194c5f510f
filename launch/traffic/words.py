"""Token ids of messages as text, where the tokenizer of the run lies on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from milepost.configs.load import load_topology
from milepost.configs.problem import ConfigError
from milepost.launch.traffic.seen import Array, Seen
from milepost.launch.view.speller import Question, Spellers, tokenizer_folder

IDS: Final = "token_ids"


class Words:
    """Asks the process that has the tokenizer; it is started by `open`.

    Args:
        run: folder of the run.
        say: told once why ids stay ids.
    """

    def __init__(self, run: Path, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._spellers = Spellers()
        self._folder: Path | None = None
        self._mute: set[str] = set()
        """Hashes of tokenizers that cannot be had; empty is whichever the run has."""

    async def open(self) -> None:
        """Find the tokenizer and read it, which may take seconds: before anything is tapped."""
        try:
            path = self._run / "topology.toml"
            model = load_topology(str(path.absolute())).model if path.is_file() else None
        except ConfigError as error:
            self._say(f"token ids stay ids: {error}")
            return
        self._folder = tokenizer_folder(self._run, model)
        if self._folder is None:
            where = "no tokenizer lies where the topology says, nor in the run"
            self._say(f"token ids stay ids: {where}")
            return
        await self._spell([], "")

    async def texts(self, seen: Seen) -> dict[str, str]:
        """The text of each row of ids, by the path of its field; of what a tap copied of it."""
        found = {}
        for path, array, content_hash in _rows(seen.fields):
            text = await self._spell(array.first, content_hash)
            if text is None:
                continue
            known, length = len(array.first), len(array)
            part = "" if known == length else f" (first {known} of {length} tokens)"
            found[path] = f"{text!r}{part}"
        return found

    async def close(self) -> None:
        """End the process."""
        await self._spellers.close()

    async def _spell(self, token_ids: list[int], content_hash: str) -> str | None:
        if self._folder is None or self._mute & {"", content_hash}:
            return None
        question = Question(token_ids=token_ids, start=0, end=len(token_ids))
        answer = await self._spellers.spell(self._folder, content_hash, question)
        if answer.pieces is None:
            self._mute.add(content_hash)
            self._say(f"token ids stay ids: {answer.error}")
            return None
        return "".join(piece or "" for piece in answer.pieces)


def _rows(value: Any, path: str = "", content_hash: str = "") -> Iterator[tuple[str, Array, str]]:
    """Path, ids and hash of the tokenizer, if the row has a certificate that names it."""
    match value:
        case dict():
            match value.get("certificate"):
                case {"tokenizer_hash": str(content_hash)}:
                    pass
            for name, each in value.items():
                where = f"{path}.{name}" if path else name
                if name == IDS and isinstance(each, Array) and each.first:
                    yield where, each, content_hash
                yield from _rows(each, where, content_hash)
        case list():
            for at, each in enumerate(value):
                yield from _rows(each, f"{path}[{at}]", content_hash)

"""Addresses of pages. What follows the token never changes: it may be kept and passed on."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses on one server.

    Attributes:
        prefix: `/TOKEN`, before every path.
    """

    prefix: str

    def asset(self, name: str) -> str:
        """A style sheet or script."""
        return f"{self.prefix}/assets/{_part(name)}"

    def runs(self, page: int = 1) -> str:
        """All runs."""
        return f"{self.prefix}/{_words(page=page if page > 1 else '')}"

    def run(self, run: str, page: int = 1) -> str:
        """One run; `page` is of its table of steps."""
        return f"{self.prefix}/runs/{_part(run)}{_words(page=page if page > 1 else '')}"

    def step(self, run: str, step: int, page: int = 1) -> str:
        """One step."""
        return f"{self.run(run)}/steps/{step}{_words(page=page if page > 1 else '')}"

    def group(self, run: str, group: str, page: int = 1) -> str:
        """One group."""
        return f"{self.run(run)}/groups/{_part(group)}{_words(page=page if page > 1 else '')}"

    def search(self, run: str, **words: object) -> str:
        """The trajectories of a run, those that the words leave."""
        return f"{self.run(run)}/trajectories{_words(**words)}"

    def trajectory(self, run: str, name: str, attempt: int | None = None, **words: object) -> str:
        """One trajectory; of several attempts the last one without `attempt`."""
        path = f"{self.run(run)}/trajectories/{_part(name)}"
        return path + _words(attempt="" if attempt is None else attempt, **words)


def _part(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    quoted = quote(name, safe="")
    # A browser would take these two for a way through folders, quoted or not.
    return {".": "%2E", "..": "%2E%2E"}.get(quoted, quoted)


def _words(**words: object) -> str:
    kept = {name: value for name, value in words.items() if value not in ("", None)}
    return f"?{urlencode(kept)}" if kept else ""

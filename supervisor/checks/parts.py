"""Checks of parts that are named by a word: built in, or an import path of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from milepost.configs.problem import Problem
from milepost.configs.suggest import did_you_mean
from milepost.supervisor.checks.check import Finding, Subject

# The registries lie in actors, beside code that the supervisor must not load; a test compares.
FAMILIES: Final = ("default", "qwen3")
MATCHERS: Final = ("loose_tool_call", "role_content_only", "strict")
FILTERS: Final = ("zero_spread",)


def parts_are_known(subject: Subject) -> Iterator[Finding]:
    """A session or a buffer that starts, and then has no part of that name."""
    topology = subject.topology
    if topology.model is not None and topology.model.family not in FAMILIES:
        what = f'no chat-template family "{topology.model.family}"'
        yield Problem(what, "$.model.family", did_you_mean(topology.model.family, FAMILIES))
    if topology.actors.session is not None:
        where, matcher = "$.actors.session.matcher", topology.actors.session.matcher
        yield from _word(matcher, "matcher", MATCHERS, where)
    if topology.actors.buffer is not None:
        for index, name in enumerate(topology.actors.buffer.filters):
            yield from _word(name, "filter", FILTERS, f"$.actors.buffer.filters[{index}]")


def _word(name: str, kind: str, known: tuple[str, ...], where: str) -> Iterator[Finding]:
    if name not in known and ":" not in name:
        remedy = f"{did_you_mean(name, known)}, or name module:function"
        yield Problem(f'no {kind} "{name}" is built in', where, remedy)

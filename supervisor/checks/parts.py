"""Checks of parts that are named by a word: built in, or an import path of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from milepost.configs.actors import SessionConfig, TreeConfig
from milepost.configs.problem import Problem
from milepost.configs.run import ModelConfig
from milepost.configs.suggest import did_you_mean
from milepost.supervisor.checks.check import Finding, Note, Subject

# The registries lie in actors, beside code that the supervisor must not load; a test compares.
FAMILIES: Final = {
    "deepseek_v3.2": "tokenizer",
    "deepseek_v4": "tokenizer",
    "default": "",
    "glm": "",
    "gpt_oss": "tokenizer",
    "kimi_k2.5": "",
    "llama3": "tokenizer",
    "minimax_m2.5": "",
    "nemotron3": "",
    "qwen3": "tokenizer and template",
    "qwen3.5": "",
    "qwen3_thinking": "tokenizer",
}
"""What of each vendor's tests have tried the family on."""
MATCHERS: Final = ("loose_tool_call", "role_content_only", "strict")
LEAF_PICKERS: Final = ("drop_retries", "keep_all")
LEAF_POST_PROCESSORS: Final = ("train_once",)
FILTERS: Final = ("truncated", "zero_spread")


def parts_are_known(subject: Subject) -> Iterator[Finding]:
    """A session or a buffer that starts, and then has no part of that name."""
    topology = subject.topology
    if topology.model is not None:
        yield from _family(topology.model)
    if topology.actors.session is not None:
        where, matcher = "$.actors.session.matcher", topology.actors.session.matcher
        yield from _word(matcher, "matcher", MATCHERS, where)
        yield from _history(topology.actors.session)
    if topology.actors.buffer is not None:
        for index, name in enumerate(topology.actors.buffer.filters):
            yield from _word(name, "filter", FILTERS, f"$.actors.buffer.filters[{index}]")


def _family(model: ModelConfig) -> Iterator[Finding]:
    where, name = "$.model.family", model.family
    if name not in FAMILIES:
        what = f'no chat-template family "{name}"'
        yield Problem(what, where, did_you_mean(name, tuple(FAMILIES)))
        return
    verified = FAMILIES[name]
    if verified != "tokenizer and template":
        tried = f"was tried on the vendor's {verified} alone" if verified else "is unverified"
        yield Note(
            f"family {name} {tried}: the template that its tests render was written from public "
            f"facts of the format; `milepost check-template --tokenizer {model.path or 'MODEL'} "
            f"--family {name}` proves it on the model's own, as each start does",
            where,
        )


def _history(session: SessionConfig) -> Iterator[Finding]:
    tree, where = session.tree, "$.actors.session.tree"
    if session.matcher == "role_content_only":
        yield Note(
            "role_content_only ignores tool calls: two turns that called different tools and said "
            "nothing look alike, and what the agent did is trained as what the other one did",
            "$.actors.session.matcher",
        )
    if session.history == "linear" and tree != TreeConfig():
        what = 'the table has no effect with history = "linear"'
        yield Problem(what, where, 'set actors.session.history = "tree", or leave the table out')
    yield from _word(tree.leaf_picker, "leaf picker", LEAF_PICKERS, f"{where}.leaf_picker")
    name, path = tree.leaf_post_processor, f"{where}.leaf_post_processor"
    yield from _word(name, "leaf post-processor", LEAF_POST_PROCESSORS, path)


def _word(name: str, kind: str, known: tuple[str, ...], where: str) -> Iterator[Finding]:
    if name not in known and ":" not in name:
        remedy = f"{did_you_mean(name, known)}, or name module:function"
        yield Problem(f'no {kind} "{name}" is built in', where, remedy)

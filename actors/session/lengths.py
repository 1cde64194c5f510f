"""Prompts that leave no room for a reply, found before a run instead of in the middle of it.

Every prompt of a file is looked at, of a function the first thousand, and rendered only when its
bytes allow that it is too long: a token of a byte-level tokenizer stands for a byte at least. The
longest are rendered first, so that a scan whose time is up has seen those that matter.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from milepost.actors.rollout.prompts import PromptError, is_file, load_prompts, resolve
from milepost.actors.rollout.promptset import FUNCTION_PROMPTS_MAX
from milepost.actors.session.assembly import import_conversation
from milepost.actors.session.families import UnknownFamily
from milepost.actors.session.text.proof import make_renderer
from milepost.actors.session.text.rendering import Renderer
from milepost.actors.session.text.sources import SourceDamaged
from milepost.actors.session.text.template import RenderFailed
from milepost.messages.shared import Prompt

SCAN_S: Final = 15.0
"""Processor time of one source."""
TEMPLATE_TOKENS: Final = 512
"""What a template may write of its own: a system prompt, how to call tools."""
MESSAGE_TOKENS: Final = 16
"""And around each message."""


def too_long(options: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the lengths of a source, in words; nothing, if it cannot be told here.

    Args:
        options: `source`, `split`, `seed` and `options` of the prompts; `folder`, `family` and
            `template_options` of the model; `tokens_max` of a prompt with its reply; `limit`, the
            name of that; `whole`: the conversations are trained as they are (SFT).
    """
    try:
        renderer = make_renderer(
            Path(options["folder"]), options["family"], options["template_options"]
        )
        prompts = _prompts(options["source"], options["split"], options["seed"], options["options"])
    except (FileNotFoundError, UnknownFamily, RenderFailed, SourceDamaged, PromptError):
        return  # another check names it
    tokens_max, whole = options["tokens_max"], options["whole"]
    found = longer_than(tokens_max if whole else tokens_max - 1, prompts, renderer, whole=whole)
    if found:
        num_tokens, prompt = max(found, key=lambda each: each[0])
        needs = "" if whole else " and a reply needs one at least"
        yield (
            f"{len(found)} of {len(prompts)} prompts are too long: `{prompt.prompt_id}` has "
            f"{num_tokens} tokens{needs}, {options['limit']} is {tokens_max}"
        )


def _prompts(source: str, split: str, seed: int, options: dict[str, Any]) -> list[Prompt]:
    """All of a file; of a function, which may take its time for each, the first ones."""
    if is_file(source):
        return load_prompts(source, split, seed, options)
    return list(islice(resolve(source)(split, seed, options), FUNCTION_PROMPTS_MAX))


def longer_than(
    room: int,
    prompts: Iterable[Prompt],
    renderer: Renderer,
    *,
    whole: bool = False,
    scan_s: float = SCAN_S,
) -> list[tuple[int, Prompt]]:
    """Prompts of more than `room` tokens, each with its number of tokens.

    Args:
        room: tokens.
        prompts: to look at.
        renderer: of the model.
        whole: count every message (SFT), not what an engine would be given.
        scan_s: processor time after which the scan stops.
    """
    sized = ((_tokens_at_most(prompt), prompt) for prompt in prompts)
    candidates = sorted(
        (each for each in sized if each[0] > room), key=lambda each: each[0], reverse=True
    )
    until_s, found = time.process_time() + scan_s, []
    for _, prompt in candidates:
        try:
            num_tokens = _num_tokens(prompt, renderer, whole=whole)
        except RenderFailed:
            continue  # the session says so by name, and whether it matters
        if num_tokens > room:
            found.append((num_tokens, prompt))
        if time.process_time() > until_s:
            break
    return found


def _tokens_at_most(prompt: Prompt) -> int:
    written = len(msgspec.json.encode((prompt.messages, prompt.tools)))
    return written + TEMPLATE_TOKENS + MESSAGE_TOKENS * len(prompt.messages)


def _num_tokens(prompt: Prompt, renderer: Renderer, *, whole: bool) -> int:
    if whole:
        return int(import_conversation(prompt, "", renderer).token_ids.shape[0])
    return len(renderer.render(renderer.first(prompt.messages, prompt.tools)).token_ids)

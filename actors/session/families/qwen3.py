"""Qwen3: ChatML with `<think>` blocks and JSON tool calls. Tested on the real tokenizer."""

from __future__ import annotations

from milepost.actors.session.families.chatml import ChatML


class Qwen3(ChatML):
    """The original Qwen3 models, and small models that speak their format."""

    name = "qwen3"
    verified = True

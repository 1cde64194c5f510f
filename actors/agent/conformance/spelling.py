"""Tokenizer and template of a scripted model: one token for each byte, ChatML turns.

A harness is checked without any model on the disk. What it says is spelled by a real tokenizer and
written by a real template, so that the session's rules about prefixes and cut-off replies hold.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from milepost.actors.session.text.proof import make_renderer

if TYPE_CHECKING:
    from pathlib import Path

    from milepost.actors.session.text.rendering import Renderer

FAMILY: Final = "qwen3"
START: Final = "<|im_start|>"
STOP: Final = "<|im_end|>"
PADDING: Final = "<|endoftext|>"
MARKUP: Final = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip
ASSISTANT: Final = f"{START}assistant"
"""Begins every reply of the model, and ends every prompt."""
TEMPLATE: Final = """\
{%- if tools -%}<|im_start|>system
{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' -%}<tool_response>
{{ message.content }}
</tool_response>
{%- else -%}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{%- set called = call.function -%}
{%- if message.content or not loop.first %}{{ '\\n' }}{% endif -%}
<tool_call>
{"name": "{{ called.name }}", "arguments": {{ called.arguments if called.arguments is string
else called.arguments | tojson }}}
</tool_call>
{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def byte_renderer(folder: Path) -> Renderer:
    """Write tokenizer and template into `folder`, and read them back as a session does."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({sign: at for at, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([PADDING, START, STOP])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in MARKUP])
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"pad_token": PADDING, "eos_token": STOP}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return make_renderer(folder, FAMILY, {})

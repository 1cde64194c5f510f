"""Every family that is a declaration."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from milepost.actors.session.families.calls import (
    dsml_calls,
    function_call,
    glm_call,
    invoke_calls,
    json_call,
    kimi_calls,
)
from milepost.actors.session.families.declared import Declaration, bare_json, harmony, markup

IM_END: Final = "<|im_end|>"

QWEN3: Final = Declaration(
    name="qwen3",
    models="Qwen3, and small models that speak its format",
    verified="tokenizer and template",
    stops=(IM_END, "<|endoftext|>"),
    frame=("<|im_start|>",),
    opener="<|im_start|>assistant\n",
    make_parser=markup(json_call),
    reads="`<think>`, JSON in `<tool_call>`",
    after_end="\n",
    trailing=("\n",),
)

QWEN3_THINKING: Final = replace(
    QWEN3,
    name="qwen3_thinking",
    models="Qwen3 Thinking 2507, Qwen3-Next Thinking",
    verified="tokenizer",
)

QWEN35: Final = replace(
    QWEN3,
    name="qwen3.5",
    models="Qwen3.5, Qwen3-Coder",
    verified="",
    make_parser=markup(function_call),
    reads="`<think>`, `<function=f><parameter=p>` in `<tool_call>`",
    arguments="object",
)

NEMOTRON3: Final = replace(
    QWEN35,
    name="nemotron3",
    models="Nemotron 3",
    verified="",
    stops=(IM_END, "</s>"),
    options={"truncate_history_thinking": False},
)

GLM: Final = Declaration(
    name="glm",
    models="GLM-4.5 to GLM-4.7, GLM-5",
    stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
    frame=("<|assistant|>", "<|system|>"),
    opener="<|assistant|>",
    make_parser=markup(glm_call),
    reads="`<think>`, `f<arg_key><arg_value>` in `<tool_call>`",
    # They end a reply and open the next message; the next message brings its own.
    dropped={"<|user|>": "", "<|observation|>": ""},
    trailing=("<|user|>", "<|observation|>", "<|endoftext|>"),
    arguments="object",
    options={"clear_thinking": False},
)

DEEPSEEK_V32: Final = Declaration(
    name="deepseek_v3.2",
    models="DeepSeek V3.2",
    verified="tokenizer",
    stops=("<｜end▁of▁sentence｜>",),
    frame=("<｜User｜>", "<｜Assistant｜>"),
    opener="<｜Assistant｜>",
    make_parser=markup(dsml_calls, ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")),
    reads="`<think>`, DSML `function_calls`",
    trailing=("<｜Assistant｜>",),
    # After results of tools the model goes on without an opener.
    spans="rendered",
    arguments="object",
    template="deepseek_v3.2.jinja",
)

DEEPSEEK_V4: Final = replace(
    DEEPSEEK_V32,
    name="deepseek_v4",
    models="DeepSeek V4",
    make_parser=markup(dsml_calls, ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")),
    reads="`<think>`, DSML `tool_calls`",
    roles=frozenset({"user", "assistant", "tool"}),
    base="exchange",
    template="deepseek_v4.jinja",
)

KIMI: Final = Declaration(
    name="kimi_k2.5",
    models="Kimi K2, K2.5",
    stops=(IM_END, "[EOS]"),
    frame=("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    opener="<|im_assistant|>assistant<|im_middle|>",
    make_parser=markup(kimi_calls, ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
    reads="`<think>`, calls with ids of their own in a section",
    base="calls",
    options={"preserve_thinking": True},
)

MINIMAX: Final = Declaration(
    name="minimax_m2.5",
    models="MiniMax M2, M2.5",
    stops=("[e~[",),
    frame=("]~b]",),
    opener="]~b]ai\n",
    make_parser=markup(invoke_calls, ("<minimax:tool_call>", "</minimax:tool_call>")),
    reads="`<think>`, `<invoke>` in `<minimax:tool_call>`",
    after_end="\n",
    trailing=("\n",),
    roles=frozenset({"user", "assistant", "tool"}),
    arguments="object",
    options={"clear_thinking": False},
)

LLAMA3: Final = Declaration(
    name="llama3",
    models="Llama 3.1, 3.2, 3.3",
    verified="tokenizer",
    stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    frame=("<|start_header_id|>", "<|end_header_id|>"),
    opener="<|start_header_id|>assistant<|end_header_id|>\n\n",
    make_parser=bare_json,
    reads="text, or JSON calls and nothing else",
    arguments="object",
)

GPT_OSS: Final = Declaration(
    name="gpt_oss",
    models="gpt-oss (harmony)",
    verified="tokenizer",
    stops=("<|return|>", "<|call|>", "<|endoftext|>"),
    frame=("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
    opener="<|start|>assistant",
    make_parser=harmony,
    reads="messages on channels; calls by recipient",
    # In a history, a final message ends like any other.
    dropped={"<|return|>": "<|end|>"},
    base="calls",
    spans="rendered",
)

DECLARATIONS: Final[dict[str, Declaration]] = {
    each.name: each
    for each in (
        QWEN3,
        QWEN3_THINKING,
        QWEN35,
        NEMOTRON3,
        GLM,
        DEEPSEEK_V32,
        DEEPSEEK_V4,
        KIMI,
        MINIMAX,
        LLAMA3,
        GPT_OSS,
    )
}

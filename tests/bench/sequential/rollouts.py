"""Batched multi-turn generation: every row speaks, every row listens, until all are done."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import torch
from bench.sequential.policy import Cache, Policy
from bench.sequential.tasks import Environment, Environments
from msgspec import Struct, field
from tokenizers import Tokenizer
from torch import Tensor

from milepost.configs.recipes.tiny.tokenizer import STOP, render
from milepost.messages.shared import ChatMessage, Prompt

REPLY_TOKENS_MAX = 24
ROW_TOKENS_MAX = 192
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


class Row(Struct, kw_only=True):
    """One conversation as tokens; `logprobs` are of the tokens the policy sampled."""

    prompt: Prompt
    environment: Environment
    ids: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    """Positions of the sampled tokens."""
    logprobs: list[float] = field(default_factory=list)


def parse(text: str) -> ChatMessage:
    """A reply as an assistant message; a call that is not JSON stays text."""
    calls = []
    for number, block in enumerate(_CALL.findall(text)):
        try:
            call = json.loads(block)
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        except (json.JSONDecodeError, KeyError, TypeError):
            return {"role": "assistant", "content": text}
        calls.append({"id": str(number), "type": "function", "function": function})
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": _CALL.sub("", text), "tool_calls": calls}


class Rollouts:
    """Generates conversations of `policy` under one tokenizer."""

    def __init__(self, policy: Policy, tokenizer: Tokenizer, environment: Environments) -> None:
        self._policy = policy
        self._tokenizer = tokenizer
        self._environment = environment
        self._stop = tokenizer.token_to_id(STOP)

    @torch.no_grad()
    def run(self, prompts: Sequence[Prompt], *, greedy: bool = False) -> list[Row]:
        """One episode for each prompt, in the same order."""
        rows = [Row(prompt=prompt, environment=self._environment(prompt)) for prompt in prompts]
        cache = Cache(self._policy, len(rows), ROW_TOKENS_MAX)
        active = list(range(len(rows)))
        news = {
            index: self._tokenizer.encode(render(row.prompt, generate=True)).ids
            for index, row in enumerate(rows)
        }
        while active:
            last_bd = self._listen(cache, rows, active, news)
            ended = self._speak(cache, rows, active, last_bd, greedy=greedy)
            news = {
                index: new
                for index in active
                if index in ended and (new := self._react(rows[index], ended[index]))
            }
            active = list(news)
        return rows

    def _listen(
        self, cache: Cache, rows: list[Row], active: list[int], news: dict[int, list[int]]
    ) -> Tensor:
        """Feed what is new to each row; hidden state at its last token, [B, D]."""
        lengths = torch.tensor([len(news[index]) for index in active])
        ids_bt = torch.zeros((len(active), int(lengths.max())), dtype=torch.long)
        for number, index in enumerate(active):
            ids_bt[number, : len(news[index])] = torch.tensor(news[index])
        starts = torch.tensor([len(rows[index].ids) for index in active])
        hidden = self._policy.extend(cache, torch.tensor(active), ids_bt, starts)
        for index in active:
            rows[index].ids += news[index]
        return hidden[torch.arange(len(active)), lengths - 1]

    def _speak(
        self, cache: Cache, rows: list[Row], active: list[int], last_bd: Tensor, *, greedy: bool
    ) -> dict[int, int]:
        """Sample one reply for each row; rows that ended it properly, with its first position."""
        starts = {index: len(rows[index].ids) for index in active}
        ended: dict[int, int] = {}
        for _ in range(REPLY_TOKENS_MAX):
            logprobs_bv = self._policy.logits(last_bd).log_softmax(-1)
            if greedy:
                chosen = logprobs_bv.argmax(-1)
            else:
                chosen = torch.multinomial(logprobs_bv.exp(), 1).squeeze(1)
            logprobs = logprobs_bv.gather(1, chosen[:, None]).squeeze(1).tolist()
            positions = torch.tensor([len(rows[index].ids) for index in active])
            keep = []
            for number, (index, token) in enumerate(zip(active, chosen.tolist(), strict=True)):
                row = rows[index]
                row.sampled.append(len(row.ids))
                row.logprobs.append(logprobs[number])
                row.ids.append(token)
                if token == self._stop:
                    ended[index] = starts[index]
                elif len(row.ids) < ROW_TOKENS_MAX:
                    keep.append(number)
            # The stop token, too, must enter the cache: the next turn conditions on it.
            hidden = self._policy.extend(cache, torch.tensor(active), chosen[:, None], positions)
            active = [active[number] for number in keep]
            if not active:
                break
            last_bd = hidden[keep, 0]
        return ended

    def _react(self, row: Row, start: int) -> list[int]:
        """The tokens between this reply and the next; nothing when the episode is over."""
        text = self._tokenizer.decode(row.ids[start:-1], skip_special_tokens=False)
        results = row.environment.react(parse(text))
        if not results:
            return []
        after = "".join(
            f"\n<tool_response>\n{result['content']}\n</tool_response>" for result in results
        )
        text = f"\n<|im_start|>user{after}<|im_end|>\n<|im_start|>assistant\n"
        new: list[int] = self._tokenizer.encode(text).ids
        return new if len(row.ids) + len(new) + REPLY_TOKENS_MAX < ROW_TOKENS_MAX else []

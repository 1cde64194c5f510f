"""Supervised warm-up and GRPO, each as one function over padded rows."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from bench.sequential.policy import Policy
from bench.sequential.rollouts import Row
from tokenizers import Tokenizer
from torch import Tensor

from milepost.configs.actors import ScheduleConfig, TrainerConfig
from milepost.configs.recipes.tiny.tokenizer import render
from milepost.configs.run import AlgorithmConfig
from milepost.configs.topology import Topology
from milepost.messages.shared import Prompt

START = "<|im_start|>assistant\n"


class Learner:
    """AdamW over a policy with gradient clipping and a learning rate for each step."""

    def __init__(self, policy: Policy, trainer: TrainerConfig, steps: int) -> None:
        self.policy = policy
        self._trainer = trainer
        self._steps = steps
        self._step = 0
        self._optimizer = torch.optim.AdamW(
            policy.weights.values(),
            betas=(trainer.beta1, trainer.beta2),
            eps=trainer.epsilon,
            weight_decay=trainer.weight_decay,
            fused=True,
        )

    def update(self, loss: Tensor) -> float:
        """One optimizer step; the norm of the gradient before clipping."""
        loss.backward()  # type: ignore[no-untyped-call]
        limit = self._trainer.grad_norm_max
        norm = torch.nn.utils.clip_grad_norm_(self.policy.weights.values(), limit)
        share = schedule(self._trainer.schedule, self._step, self._steps)
        self._optimizer.param_groups[0]["lr"] = self._trainer.lr * share
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1
        return float(norm)


def schedule(config: ScheduleConfig, step: int, steps: int) -> float:
    """Share of the learning rate: linear rise, constant, and for one kind a linear fall."""
    assert config.kind in {"constant", "warmup_stable_decay"}, config.kind
    rise = (step + 1) / config.warmup_steps if config.warmup_steps else 1.0
    fall = (steps - step) / (config.decay_fraction * steps) if config.decay_fraction else 1.0
    return min(rise, fall, 1.0)


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    ids_bt = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
    for number, row in enumerate(rows):
        ids_bt[number, : len(row)] = torch.tensor(row)
    return ids_bt


def _logprobs(policy: Policy, rows: Sequence[list[int]], picked: Sequence[list[int]]) -> Tensor:
    """Log-probs of the tokens at the picked positions, one after another, [N]."""
    hidden_btd = policy.hidden_btd(_pad(rows))
    row_n = torch.tensor([row for row, places in enumerate(picked) for _ in places])
    place_n = torch.tensor([place for places in picked for place in places])
    token_n = torch.tensor(
        [ids[place] for ids, places in zip(rows, picked, strict=True) for place in places]
    )
    logits_nv = policy.logits(hidden_btd[row_n, place_n - 1])
    return logits_nv.log_softmax(-1).gather(1, token_n[:, None]).squeeze(1)


def supervised_rows(
    tokenizer: Tokenizer, prompts: Sequence[Prompt]
) -> list[tuple[list[int], list[int]]]:
    """Token ids and the positions of assistant text (its end token included) of conversations."""
    rows = []
    for prompt in prompts:
        ids: list[int] = []
        places: list[int] = []
        pieces = render(prompt).split(START)
        for number, piece in enumerate(pieces):
            reply = piece.find("<|im_end|>") + len("<|im_end|>") if number else 0
            new = tokenizer.encode(piece[:reply]).ids
            places += range(len(ids), len(ids) + len(new))
            ids += new
            ids += tokenizer.encode(piece[reply:] + (START if piece is not pieces[-1] else "")).ids
        rows.append((ids, places))
    return rows


def warm_up(
    learner: Learner, rows: Sequence[tuple[list[int], list[int]]], warmup: Topology, seed: int
) -> float:
    """Train on recorded conversations; the last batch's mean loss in nats per token."""
    order = random.Random(seed)
    waiting: list[tuple[list[int], list[int]]] = []
    loss = torch.tensor(0.0)
    batch = warmup.algorithm.prompts_per_step
    for _ in range(warmup.run.steps):
        if len(waiting) < batch:
            waiting += order.sample(rows, len(rows))
        taken, waiting = waiting[:batch], waiting[batch:]
        loss = -_logprobs(learner.policy, [ids for ids, _ in taken], [p for _, p in taken]).mean()
        learner.update(loss)
    return float(loss.detach())


def advantages(rewards: Sequence[float], algorithm: AlgorithmConfig) -> list[float]:
    """Group-centred rewards over their standard deviation (GRPO)."""
    grouped = torch.tensor(rewards).view(-1, algorithm.samples_per_prompt)
    centred = grouped - grouped.mean(1, keepdim=True)
    scale = grouped.std(1, keepdim=True) + algorithm.std_epsilon
    scaled: list[float] = (centred / scale).flatten().tolist()
    return scaled


def grpo_step(learner: Learner, rows: Sequence[Row], algorithm: AlgorithmConfig) -> list[float]:
    """One pass over the batch, group by group; gradient norms of its optimizer steps."""
    advantage = advantages([row.environment.reward for row in rows], algorithm)
    size = len(rows) // algorithm.minibatches_per_step
    norms = []
    for start in range(0, len(rows), size):
        chosen = list(zip(rows, advantage, strict=True))[start : start + size]
        new_n = _logprobs(
            learner.policy, [row.ids for row, _ in chosen], [row.sampled for row, _ in chosen]
        )
        old_n = torch.tensor([logprob for row, _ in chosen for logprob in row.logprobs])
        advantage_n = torch.tensor([a for row, a in chosen for _ in row.sampled])
        ratio_n = (new_n - old_n).exp()
        clipped_n = ratio_n.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
        loss = -torch.minimum(ratio_n * advantage_n, clipped_n * advantage_n).mean()
        norms.append(learner.update(loss))
    return norms

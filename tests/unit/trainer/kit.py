"""What the trainer's tests are made of: trajectories with honest certificates, and tiny models."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.routes import RoutesShape, routes_hashes
from milepost.actors.seal import sealed
from milepost.actors.session.text.sources import hash_of_sources
from milepost.messages.buffer import Batch
from milepost.messages.shared import (
    FinishReason,
    SamplingParams,
    Status,
    VersionSpan,
    WeightsUsed,
)
from milepost.messages.trajectory import Certificate, Provenance, Trajectory, TurnBoundary

VOCABULARY = 48
TOKENIZER = "{}"
"""Text of the tokenizer.json of the tiny models."""
TEMPLATE = "{{ messages }}"
TEMPLATE_HASH = hash_of_sources({"default": TEMPLATE})
TOKENIZER_HASH = xxhash.xxh3_128_hexdigest(TOKENIZER.encode())


def made(version: int, kv_version: int | None = None) -> WeightsUsed:
    """What an engine says of a version."""
    return WeightsUsed(
        version=version,
        digest=digest_of(version),
        kv_version=version if kv_version is None else kv_version,
    )


def digest_of(version: int) -> str:
    """Of the weights of a version of the tests."""
    return xxhash.xxh3_128_hexdigest(f"weights {version}".encode())


def trajectory(
    group_id: str = "g0",
    member: int = 0,
    *,
    rewards: Sequence[float] = (0.0, 1.0),
    turns: Sequence[tuple[int, int]] = ((5, 9), (12, 15)),
    length: int = 15,
    version: int = 0,
    seed: int = 0,
    logprobs: Any = None,
) -> Trajectory:
    """A row of `length` tokens whose replies are `turns`, certified as a session does it."""
    generator = np.random.default_rng([seed, member, *group_id.encode()])
    token_ids = generator.integers(0, VOCABULARY, length, dtype=np.int32)
    provenance = np.full(length, Provenance.INPUT, dtype=np.uint8)
    boundaries, spans = [], []
    for prompt_end, end in turns:
        provenance[prompt_end:end] = Provenance.SAMPLED
        spans.append(VersionSpan(start=prompt_end, end=end, version=version))
        boundaries.append(
            TurnBoundary(
                prompt_end=prompt_end,
                end=end,
                finish_reason=FinishReason.STOP,
                prefix_hash=xxhash.xxh3_128_hexdigest(token_ids[:end].tobytes()),
                engine="engine-0",
                cached_tokens=prompt_end - 1,
                weights=(made(version),),
            )
        )
    mask = (provenance == Provenance.SAMPLED).astype(np.uint8)
    if logprobs is None:
        logprobs = -generator.random(length)
    whole = Trajectory(
        trajectory_id=f"{group_id}.{member}",
        group_id=group_id,
        prompt_id=f"p-{group_id}",
        status=Status.COMPLETED,
        reward=rewards[member],
        token_ids=to_bulk(token_ids),
        loss_mask=to_bulk(mask),
        logprobs=to_bulk((np.asarray(logprobs) * mask).astype(np.float32)),
        provenance=to_bulk(provenance),
        spans=tuple(spans),
        turns=tuple(boundaries),
        certificate=Certificate(
            tokenizer_hash=TOKENIZER_HASH,
            template_hash=TEMPLATE_HASH,
            family="qwen3",
            sampling=SamplingParams(),
        ),
        group_rewards=tuple(rewards),
        group_size=len(rewards),
        num_sampled_tokens=int(mask.sum()),
    )
    return sealed(whole)


def routed(row: Trajectory, shape: RoutesShape, chosen: Any = None) -> Trajectory:
    """The same row with routes, at random where none are given, certified as a session does it.

    Its tokens after the last turn go, since the row of a session ends with a reply.
    """
    end = row.turns[-1].end
    names = ("token_ids", "loss_mask", "logprobs", "provenance")
    cut = {name: to_bulk(from_bulk(getattr(row, name))[:end].copy()) for name in names}
    if chosen is None:
        generator = np.random.default_rng([*row.trajectory_id.encode()])
        scores = generator.random((end - 1, shape.num_layers, shape.num_experts))
        chosen = np.argsort(-scores, -1)[..., : shape.experts_per_token]
    routes = to_bulk(np.ascontiguousarray(chosen, shape.dtype))
    hashes = routes_hashes(routes, [turn.end for turn in row.turns])
    turns = tuple(
        msgspec.structs.replace(turn, routes_hash=digest)
        for turn, digest in zip(row.turns, hashes, strict=True)
    )
    return sealed(msgspec.structs.replace(row, **cut, routes=routes, turns=turns))


def recorded(trajectory: Trajectory) -> Trajectory:
    """The same row as an imported conversation, for supervised training."""
    mask = np.frombuffer(trajectory.loss_mask.data, dtype=np.uint8)
    provenance = np.where(mask == 1, Provenance.RECORDED, Provenance.INPUT).astype(np.uint8)
    row = msgspec.structs.replace(
        trajectory,
        turns=tuple(msgspec.structs.replace(turn, weights=()) for turn in trajectory.turns),
        provenance=to_bulk(provenance),
        logprobs=to_bulk(np.zeros(len(mask), dtype=np.float32)),
        spans=(),
        reward=0.0,
        group_rewards=(0.0,),
        group_size=1,
    )
    return sealed(row)


def group(group_id: str, rewards: Sequence[float], **changes: Any) -> list[Trajectory]:
    """All members of one group; lengths differ from member to member."""
    return [
        trajectory(
            group_id,
            member,
            rewards=rewards,
            turns=((4 + member % 3, 9), (12, 15 + member)),
            length=15 + member + member % 2,
            **changes,
        )
        for member in range(len(rewards))
    ]


def batch_of(
    groups: Sequence[Sequence[Trajectory]],
    *,
    step: int = 0,
    minibatches: int = 1,
    rank: int = 0,
    ranks: int = 1,
) -> Batch:
    """One rank's part of a batch, with normalisers over all of it, as the buffer makes it."""
    placed = [
        (number * minibatches // len(groups), each)
        for number, members in enumerate(groups)
        for each in members
    ]
    mine = placed[rank::ranks]

    def loss_tokens(minibatch: int) -> int:
        return sum(bytes(row.loss_mask.data).count(1) for at, row in placed if at == minibatch)

    return Batch(
        step=step,
        trajectories=tuple(each for _, each in mine),
        group_ids=tuple(members[0].group_id for members in groups),
        num_trajectories=len(placed),
        num_loss_tokens=sum(loss_tokens(number) for number in range(minibatches)),
        minibatch_of=tuple(at for at, _ in mine),
        minibatch_loss_tokens=tuple(loss_tokens(number) for number in range(minibatches)),
        minibatch_trajectories=tuple(
            sum(at == number for at, _ in placed) for number in range(minibatches)
        ),
        metrics={"rollout/raw_reward": 0.5},
        wait_s=0.25,
    )


def model_classes(architecture: str) -> tuple[Any, Any]:
    """Configuration and model class; the automatic ones would import every model there is."""
    name = {"qwen3": "Qwen3", "llama": "Llama", "qwen3_moe": "Qwen3Moe"}[architecture]
    folder = f"transformers.models.{architecture}"
    configuration = import_module(f"{folder}.configuration_{architecture}")
    modeling = import_module(f"{folder}.modeling_{architecture}")
    return getattr(configuration, f"{name}Config"), getattr(modeling, f"{name}ForCausalLM")


def write_model(folder: Path, *, seed: int = 0, architecture: str = "qwen3", **sizes: Any) -> Path:
    """A tiny checkpoint of a real architecture, made on the spot."""
    import torch

    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config_class, model_class = model_classes(architecture)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config_class(**shape | sizes))
        for parameter in model.parameters():
            # Larger than the usual start, so that log-probs differ from a uniform guess.
            torch.nn.init.normal_(parameter, std=0.3) if parameter.ndim > 1 else None
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(TOKENIZER, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder

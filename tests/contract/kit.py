"""One engine of any kind behind its `Backend`, and an independent model that tells what is right.

What is served is chosen by the environment, so that one suite runs on a bare CPU, beside an SGLang
server, and on a GPU:

    MILEPOST_SGLANG_PYTHON       interpreter with SGLang; unset: only the embedded engine is tried
    MILEPOST_SGLANG_OLD          folder with another release, put before the others on its path
    MILEPOST_SGLANG_URL          a server that runs already, started as the first kind would be
    MILEPOST_ENGINE_DEVICE       cpu (default), cuda
    MILEPOST_SGLANG_OPTIONS      JSON: more options of the server
    MILEPOST_SGLANG_UPDATE       how its weights change: tensors (default), disk, distributed
    MILEPOST_SGLANG_STAGING      where the next version is gathered
    MILEPOST_SGLANG_ENVIRONMENT  JSON: more variables of its environment
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import xxhash
from numpy.typing import NDArray
from safetensors.torch import save_file

from milepost.actors.arrays import to_bulk
from milepost.actors.effects import Event, WorkDone
from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.shape import shape_from_config
from milepost.actors.engine.interface import (
    OUTCOMES,
    AbortOrder,
    Backend,
    Finished,
    GenerateOrder,
    OpenEpoch,
    Order,
    Outcome,
    Progress,
    ScoreFinished,
    ScoreOrder,
    StageBucket,
    Switched,
    SwitchWeights,
)
from milepost.actors.engine.receiving import Receiver
from milepost.configs.actors import EngineConfig
from milepost.configs.sglang import SGLangConfig
from milepost.messages.engine import PauseMode, TensorSpec
from milepost.messages.shared import SamplingParams

DEVICE = os.environ.get("MILEPOST_ENGINE_DEVICE", "cpu")
PYTHON = os.environ.get("MILEPOST_SGLANG_PYTHON", "")
OLD = os.environ.get("MILEPOST_SGLANG_OLD", "")
URL = os.environ.get("MILEPOST_SGLANG_URL", "")
DTYPE = "float32" if DEVICE == "cpu" else "bfloat16"
CONTEXT = 256
VOCABULARY = 96
END = 3
"""The end token of the model's own configuration, which no request names."""
DEADLINE_S = 240.0

Weights = dict[str, torch.Tensor]


def kinds() -> list[str]:
    """Kinds of engine that can be tried here."""
    found = ["embedded"]
    if PYTHON:
        found.append("sglang")
    if OLD:
        found.append("sglang-old")
    if URL:
        found.append("sglang-url")
    return found


def config_json(**changes: Any) -> dict[str, Any]:
    """`config.json` of a decoder that every kind of engine can serve, on a GPU too."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "eos_token_id": END,
    }
    return {**config, **changes}


MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}


def engine_config(kind: str, **sglang: Any) -> EngineConfig:
    """`[actors.engine]` of one kind."""
    environment = json.loads(os.environ.get("MILEPOST_SGLANG_ENVIRONMENT", "{}"))
    if kind == "sglang-old":
        environment["PYTHONPATH"] = OLD
        # It draws with a seed through a kernel that only a GPU has, and dies without.
        sglang = {"deterministic": DEVICE != "cpu", **sglang}
    if kind == "sglang-url":
        sglang = {"urls": (URL,), **sglang}
    return EngineConfig(
        kind="embedded" if kind == "embedded" else "sglang",
        device=DEVICE,
        slots=40,
        running_max=32,
        prefill_tokens_max=128,
        sglang=SGLangConfig(
            **{
                "python": PYTHON,
                "environment": environment,
                "options": json.loads(os.environ.get("MILEPOST_SGLANG_OPTIONS", "{}")),
                "deterministic": True,
                "update": os.environ.get("MILEPOST_SGLANG_UPDATE", "tensors"),
                "staging_device": os.environ.get("MILEPOST_SGLANG_STAGING", ""),
                **sglang,
            }
        ),
    )


def make_backend(folder: Path, config: EngineConfig, run_folder: Path, **needs: Any) -> Backend:
    """A backend as `actors/engine/run.py` makes it; blocks until it could serve."""
    receiver = Receiver(run_folder / "local", baseline=folder, device=config.device)
    if config.kind == "embedded":
        from milepost.actors.engine.embedded.backend import EmbeddedBackend

        return EmbeddedBackend(
            folder,
            config,
            dtype=DTYPE,
            context_tokens=CONTEXT,
            receiver=receiver,
            keeps_routes=bool(needs.get("routes")),
        )
    from milepost.actors.engine.sglang.backend import SGLangBackend
    from milepost.actors.engine.sglang.launch import Place
    from milepost.actors.engine.sglang.started import Needs, start

    # Closing one ends every process with its token: those of another worker need another one.
    token = f"t/{run_folder.parent.name}/{run_folder.name}/1"
    place = Place("engine-0", 0, run_folder, 1, token, DEADLINE_S)
    wanted: dict[str, Any] = {"pause": "", "is_cut": False, **needs}
    return SGLangBackend(
        start(folder, config, place, Needs(dtype=DTYPE, context_tokens=CONTEXT, **wanted)),
        receiver,
    )


class Served:
    """A started backend, what it posted, and the versions it was given."""

    def __init__(self, kind: str, backend: Backend, config: dict[str, Any], folder: Path) -> None:
        self.kind, self.backend, self.config, self.folder = kind, backend, config, folder
        self.version = -1
        self.weights: Weights = {}
        self.failure = ""
        self._outcomes: dict[str, Outcome] = {}
        self._progress: dict[str, list[NDArray[np.int32]]] = {}
        self._arrived = asyncio.Event()
        self._num_keys = 0
        self._loop = asyncio.get_running_loop()
        backend.start(self._post)

    def _post(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        assert isinstance(event, WorkDone)
        assert event.key == OUTCOMES
        self.failure = event.error or self.failure
        for outcome in event.result if isinstance(event.result, tuple) else ():
            if isinstance(outcome, Progress):
                self._progress.setdefault(outcome.key, []).append(outcome.token_ids)
                continue
            assert outcome.key not in self._outcomes, f"{outcome.key} was answered twice"
            self._outcomes[outcome.key] = outcome
        self._arrived.set()

    def key(self) -> str:
        self._num_keys += 1
        return f"r{self._num_keys}"

    async def outcome(self, key: str) -> Outcome:
        """Wait until this request has ended."""
        async with asyncio.timeout(DEADLINE_S):
            while key not in self._outcomes:
                assert not self.failure, self.failure
                self._arrived.clear()
                await self._arrived.wait()
        return self._outcomes.pop(key)

    def told(self, key: str) -> list[NDArray[np.int32]]:
        """What was streamed of a reply, piece by piece."""
        return self._progress.pop(key, [])

    def order(self, order: Order) -> str:
        self.backend.order(order)
        return order.key

    def ask(
        self,
        row: NDArray[np.int32],
        session: str = "",
        *,
        routes_start: int | None = None,
        adapter: str = "",
        rank: int | None = None,
        **sampling: Any,
    ) -> str:
        """Order a reply; its key. A session stays on one rank, and all ranks get their turn."""
        key = self.key()
        params = SamplingParams(**{"tokens_max": 16, "seed": self._num_keys, **sampling})
        return self.order(
            GenerateOrder(
                key,
                session or key,
                row,
                params,
                rank=sum((session or key).encode()) if rank is None else rank,
                routes_start=routes_start,
                adapter=adapter,
            )
        )

    async def reply(self, row: NDArray[np.int32], session: str = "", **sampling: Any) -> Finished:
        """One reply, whole."""
        outcome = await self.outcome(self.ask(row, session, **sampling))
        assert isinstance(outcome, Finished), outcome
        return outcome

    async def score(self, *rows: NDArray[np.int32]) -> ScoreFinished:
        outcome = await self.outcome(
            self.order(ScoreOrder(self.key(), rows, temperature=1.0, use_cache=False))
        )
        assert isinstance(outcome, ScoreFinished), outcome
        return outcome

    def abort(self, *keys: str, sessions: tuple[str, ...] = ()) -> None:
        self.backend.order(AbortOrder("abort", keys, sessions))

    async def stage(self, version: int, weights: Weights) -> str:
        """Bring weights in, in two buckets; their digest."""
        names = [spec.name for spec in self.backend.facts.manifest]
        assert sorted(names) == sorted(weights)
        await self.backend.perform(OpenEpoch("open", version, self.backend.facts.manifest))
        for part in (names[1::2], names[::2]):
            bulks = tuple(bulk_of(weights[name]) for name in part)
            await self.backend.perform(StageBucket("bucket", tuple(part), bulks))
        return digest_of(names, weights)

    async def publish(
        self, mode: PauseMode = PauseMode.RETRACT, *, seed: int = -1, version: int = -1
    ) -> Switched:
        """Serve random weights of a seed, by default the next version's number."""
        version = self.version + 1 if version < 0 else version
        weights = self.random_weights(version if seed < 0 else seed)
        digest = await self.stage(version, weights)
        switched = await self.backend.perform(SwitchWeights("switch", version, mode, digest))
        assert isinstance(switched, Switched)
        self.version, self.weights = version, weights
        return switched

    def random_weights(self, seed: int) -> Weights:
        """Large enough that every layer changes the distribution."""
        return random_weights(self.backend.facts.manifest, seed)

    def expected(
        self, row: NDArray[np.int32], *, temperature: float = 1.0, weights: Weights | None = None
    ) -> NDArray[np.float32]:
        """float32 [T, vocab] log-probs at each position, by the modules the trainer uses."""
        used = self.weights if weights is None else weights
        model = reference(self.folder, self.config, used)
        with torch.inference_mode():
            ids = torch.tensor(row.tolist(), device=DEVICE).unsqueeze(0)
            logits = model(ids).logits[0].float()
            found: NDArray[np.float32] = (logits / temperature).log_softmax(-1).cpu().numpy()
        return found


def manifest_of(config: dict[str, Any]) -> tuple[TensorSpec, ...]:
    """Tensors of a model, from its `config.json`."""
    dtype: torch.dtype = getattr(torch, DTYPE)
    return Parameters(shape_from_config(config), dtype, torch.device("meta")).manifest


def random_weights(manifest: tuple[TensorSpec, ...], seed: int) -> Weights:
    """Large enough that every layer changes the distribution."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for spec in manifest:
        values = torch.empty(spec.shape)
        if len(spec.shape) == 1:
            values.uniform_(0.5, 1.5, generator=generator)
        else:
            values.normal_(0.0, spec.shape[-1] ** -0.5, generator=generator)
        weights[spec.name] = values.to(getattr(torch, DTYPE))
    return weights


_models: dict[str, Any] = {}


def reference(folder: Path, config: dict[str, Any], weights: Weights) -> Any:
    """The model of transformers with these weights; the last one is kept."""
    key = digest_of(sorted(weights), weights)
    if key not in _models:
        _models.clear()
        place = folder / "reference"
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(config))
        save_file(dict(weights), place / "model.safetensors", metadata={"format": "pt"})
        dtype: torch.dtype = getattr(torch, DTYPE)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=dtype)
        _models[key] = model.to(DEVICE).eval()
    return _models[key]


def bulk_of(tensor: torch.Tensor) -> Any:
    if tensor.dtype is torch.bfloat16:
        return to_bulk(tensor.view(torch.uint16).numpy(), "bfloat16")
    return to_bulk(tensor.numpy())


def digest_of(names: list[str], weights: Weights) -> str:
    hasher = xxhash.xxh3_128()
    for name in names:
        hasher.update(name.encode())
        hasher.update(weights[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def random_row(seed: int, length: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)


def whole(row: NDArray[np.int32], reply: Finished) -> NDArray[np.int32]:
    return np.concatenate([row, reply.token_ids])


def sampled_logprobs(
    expected: NDArray[np.float32], row: NDArray[np.int32], start: int
) -> NDArray[np.float32]:
    """Log-probs of row[start:] out of [T, vocab]."""
    positions = np.arange(start, len(row))
    found: NDArray[np.float32] = expected[positions - 1, row[positions]]
    return found


def assert_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """float32: the same to 1e-5. bfloat16: as near as two ways to round are."""
    difference = np.abs(found - expected)
    if not difference.size:  # a row of one token is predicted by nothing
        return
    if DTYPE == "float32":
        assert difference.max(initial=0) < 1e-5, difference
    else:
        assert difference.mean() < 0.03, difference
        assert difference.max(initial=0) < 0.3, difference

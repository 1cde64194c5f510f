"""One whole set of weights: fused tensors inside, Hugging Face names outside.

Projections that read the same input lie in one tensor, so that one matrix product computes them.
A name of the checkpoint is a window into such a tensor: writing a named tensor is one copy, and
reading it back (for the digest) needs none on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from milepost.actors.engine.embedded.shape import ExpertsShape, ModelShape
from milepost.messages.engine import TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """SwiGLU feed-forward (Shazeer 2020, arXiv:2002.05202).

    Attributes:
        gate_up: [2 * width, hidden], gate rows first.
        down_t: [width, hidden], a transposed view.
    """

    gate_up: Tensor
    down_t: Tensor


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Router and experts of a sparse layer.

    Attributes:
        router: [experts, hidden].
        gate_up: [experts, 2 * width, hidden], gate rows first.
        down: [experts, hidden, width].
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.

    Attributes:
        input_norm: [hidden].
        qkv: [(heads + 2 * kv_heads) * head_dim, hidden]: queries, keys, values.
        qk_norm: [heads + kv_heads, head_dim], one row a head; None without q/k norm.
        output_t: [heads * head_dim, hidden], a transposed view.
        post_norm: [hidden].
        feed_forward: dense or experts.
    """

    input_norm: Tensor
    qkv: Tensor
    qk_norm: Tensor | None
    output_t: Tensor
    post_norm: Tensor
    feed_forward: DenseWeights | ExpertWeights


class Parameters:
    """Fused weights of one decoder, filled tensor by tensor under Hugging Face names.

    Args:
        shape: sizes of the decoder.
        dtype: float32 or bfloat16, of every tensor.
        device: where they lie.

    Attributes:
        embedding: [vocab, hidden].
        layers: the decoder layers.
        final_norm: [hidden].
        head: [vocab, hidden]; the same tensor as `embedding` when tied.
        manifest: what a checkpoint of this decoder is made of, in checkpoint order.
    """

    def __init__(self, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._windows: dict[str, Tensor] = {}
        self._spread: set[str] = set()
        self.embedding = self._named(shape.vocab_size, shape.hidden_size, name=_EMBEDDING)
        self.layers = tuple(self._layer(shape, index) for index in range(shape.num_layers))
        self.final_norm = self._named(shape.hidden_size, name="model.norm.weight")
        self.head = self.embedding
        if not shape.tied_embeddings:
            self.head = self._named(shape.vocab_size, shape.hidden_size, name="lm_head.weight")
        self.manifest = tuple(self._spec(name) for name in self._windows)

    @property
    def nbytes(self) -> int:
        """Bytes of all named tensors."""
        return sum(view.nbytes for view in self._windows.values())

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Copy a tensor in.

        Args:
            name: a name of the manifest.
            array: its dtype and shape as in the manifest (bfloat16 as uint16).
        """
        window = self._windows[name]
        if self._device.type == "cpu":
            np.copyto(_as_array(window), array)
            return
        # A writable copy first: torch will not wrap the read-only buffer of a message.
        host = torch.from_numpy(np.array(array))
        window.copy_(host.view(self._dtype) if host.dtype != self._dtype else host)

    def copy(self, name: str, source: Tensor) -> None:
        """Copy a tensor in that lies on the same device.

        Args:
            name: a name of the manifest.
            source: uint8, one dimension: the bytes of the tensor, row-major.
        """
        window = self.window(name)
        self._windows[name].copy_(source.view(self._dtype).view(window.shape))

    def window(self, name: str) -> Tensor:
        """A named tensor as it lies in the fused weights."""
        window = self._windows[name]
        return window[0] if name in self._spread else window

    def read(self, name: str) -> NDArray[Any]:
        """The same on the CPU, C-contiguous (bfloat16 as uint16)."""
        return np.ascontiguousarray(_as_array(self.window(name).cpu()))

    def randomize(self) -> None:
        """Fill every tensor with random bytes of no seed: nothing can agree with them by chance."""
        generator = np.random.default_rng()
        for name, window in self._windows.items():
            bits = np.dtype("u2" if self._dtype == torch.bfloat16 else "u4")
            values = generator.integers(0, 1 << (8 * bits.itemsize), tuple(window.shape), bits)
            self.write(name, values if bits.itemsize == 2 else values.view("<f4"))

    # ---- layout --------------------------------------------------------------------------

    def _spec(self, name: str) -> TensorSpec:
        shape = tuple(self._windows[name].shape)
        return TensorSpec(
            name=name,
            dtype=str(self._dtype).removeprefix("torch."),
            shape=shape[1:] if name in self._spread else shape,
        )

    def _tensor(self, *sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=self._dtype, device=self._device)

    def _named(self, *sizes: int, name: str) -> Tensor:
        tensor = self._tensor(*sizes)
        self._windows[name] = tensor
        return tensor

    def _layer(self, shape: ModelShape, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}"
        attention = f"{prefix}.self_attn"
        hidden, head_dim = shape.hidden_size, shape.head_dim
        q_rows, kv_rows = shape.num_heads * head_dim, shape.num_kv_heads * head_dim
        qkv = self._tensor(q_rows + 2 * kv_rows, hidden)
        for name, rows in zip(
            ("q_proj", "k_proj", "v_proj"), _split(qkv, q_rows, kv_rows, kv_rows), strict=True
        ):
            self._windows[f"{attention}.{name}.weight"] = rows
        output = self._named(hidden, q_rows, name=f"{attention}.o_proj.weight")
        qk_norm = None
        if shape.qk_norm:
            qk_norm = self._tensor(shape.num_heads + shape.num_kv_heads, head_dim)
            heads = _split(qk_norm, shape.num_heads, shape.num_kv_heads)
            for name, rows in zip(("q_norm", "k_norm"), heads, strict=True):
                self._windows[f"{attention}.{name}.weight"] = rows
                self._spread.add(f"{attention}.{name}.weight")
        feed_forward: DenseWeights | ExpertWeights
        if shape.experts is not None and shape.sparse_layers[index]:
            feed_forward = self._experts(f"{prefix}.mlp", hidden, shape.experts)
        else:
            feed_forward = self._dense(f"{prefix}.mlp", hidden, shape.width)
        return LayerWeights(
            input_norm=self._named(hidden, name=f"{prefix}.input_layernorm.weight"),
            qkv=qkv,
            qk_norm=qk_norm,
            output_t=output.t(),
            post_norm=self._named(hidden, name=f"{prefix}.post_attention_layernorm.weight"),
            feed_forward=feed_forward,
        )

    def _dense(self, prefix: str, hidden: int, width: int) -> DenseWeights:
        gate_up = self._tensor(2 * width, hidden)
        gate, up = _split(gate_up, width, width)
        self._windows[f"{prefix}.gate_proj.weight"] = gate
        self._windows[f"{prefix}.up_proj.weight"] = up
        down = self._named(hidden, width, name=f"{prefix}.down_proj.weight")
        return DenseWeights(gate_up, down.t())

    def _experts(self, prefix: str, hidden: int, experts: ExpertsShape) -> ExpertWeights:
        count, width = experts.num_experts, experts.width
        router = self._named(count, hidden, name=f"{prefix}.gate.weight")
        gate_up = self._tensor(count, 2 * width, hidden)
        down = self._tensor(count, hidden, width)
        for expert in range(count):
            gate, up = _split(gate_up[expert], width, width)
            self._windows[f"{prefix}.experts.{expert}.gate_proj.weight"] = gate
            self._windows[f"{prefix}.experts.{expert}.up_proj.weight"] = up
            self._windows[f"{prefix}.experts.{expert}.down_proj.weight"] = down[expert]
        return ExpertWeights(router, gate_up, down)


def _as_array(tensor: Tensor) -> NDArray[Any]:
    # NumPy has no bfloat16; its bits pass as uint16.
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _split(tensor: Tensor, *sizes: int) -> list[Tensor]:
    """Views of consecutive blocks of the first dimension."""
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [tensor[start : start + size] for start, size in zip(starts, sizes, strict=True)]

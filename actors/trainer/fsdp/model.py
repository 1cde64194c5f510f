"""A Hugging Face causal language model from a local folder, and its forward pass on packed rows."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from milepost.actors.engine.settings import read_settings
from milepost.actors.trainer.fsdp.attention import NAME, packed_attention
from milepost.actors.trainer.fsdp.packing import Packed
from milepost.actors.trainer.fsdp.replay import RoutesReplay
from milepost.actors.trainer.fsdp.settings import dropout_faults, setting_faults
from milepost.actors.trainer.losses.logprobs import EntropyUse, token_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PREFIX = "lm."
"""Of every parameter inside `PackedPolicy`; the rest is the Hugging Face name."""


class ModelRefused(ValueError):
    """The checkpoint cannot be trained as it is."""


class PackedPolicy(nn.Module):
    """The policy as the trainer sees it: packed rows in, log-probs of loss tokens out.

    A module of its own, so that one FSDP root holds body and head: their parameters are gathered
    together and the head runs inside the same forward, only where there is a loss.

    Args:
        lm: the policy.
        replay: of the same model; None: routers choose for themselves.
    """

    def __init__(self, lm: PreTrainedModel, replay: RoutesReplay | None = None) -> None:
        super().__init__()
        self.replay = replay
        # Hugging Face leaves half of its methods without annotations.
        self.lm: Any = lm
        self.config: Any = lm.config.get_text_config()
        self.vocabulary = int(self.config.vocab_size)

    def forward(
        self, packed: Packed, entropy: EntropyUse, *, every_token: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs of the loss tokens, and entropies where asked for: float32 [N] nats each.

        With `every_token`, log-probs of all tokens in their places instead: float32 [N, V].
        """
        if self.replay is not None:
            self.replay.begin(packed.routes)
        states = self.lm.base_model(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            use_cache=False,
            layout=packed.layout,
        ).last_hidden_state
        hidden = states[0].index_select(0, packed.predictors)
        head = self.lm.get_output_embeddings()
        if every_token:
            return torch.log_softmax(head(hidden).float(), dim=-1), None
        return token_logprobs(
            hidden,
            head,
            packed.targets,
            temperatures=packed.temperatures,
            entropy=entropy,
            vocabulary=self.vocabulary,
        )


def load_model(
    folder: Path, *, gradient_checkpointing: bool, dropout: bool = True
) -> PreTrainedModel:
    """Load a checkpoint in float32 on the CPU, every tensor of it and no other.

    Args:
        folder: `config.json` and safetensors files.
        gradient_checkpointing: keep only the inputs of layers, and compute them again.
        dropout: passes that train may drop out; only supervised training can have that.

    Raises:
        ModelRefused: no checkpoint, an unknown architecture, missing, unexpected or misshapen
            tensors, a feature the packed forward does not have, or dropout where none may be.
        SettingsDamaged: `config.json` cannot be read.
    """
    settings = _read_config(folder)
    architecture = _architecture(settings, folder)
    for fault in () if dropout else dropout_faults(settings):
        raise ModelRefused(f"{folder}/config.json {fault}: set it to 0 there")
    from transformers.modeling_utils import AttentionInterface
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    AttentionInterface.register(NAME, packed_attention)
    loaded = architecture.from_pretrained(
        str(folder),
        dtype=torch.float32,
        attn_implementation=NAME,
        local_files_only=True,
        output_loading_info=True,
    )
    model, report = loaded
    faults = {name: found for name, found in report.items() if found and name.endswith("_keys")}
    if faults or report.get("error_msgs"):
        raise ModelRefused(f"checkpoint {folder} does not fit {architecture.__name__}: {faults}")
    model.train()
    if gradient_checkpointing:
        # Renamed within transformers 5.
        old = "gradient_checkpointing_enable"
        new = "activation_checkpointing_enable"
        getattr(model, new if hasattr(model, new) else old)({"use_reentrant": False})
    return cast("PreTrainedModel", model)


def parameter_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Parameters of the `PackedPolicy` of a checkpoint, tied ones once; no tensor is read.

    Raises:
        ModelRefused: see `load_model`.
        SettingsDamaged: `config.json` cannot be read.
    """
    architecture = _architecture(_read_config(folder), folder)
    config = architecture.config_class.from_pretrained(str(folder), local_files_only=True)
    with torch.device("meta"):
        policy = PackedPolicy(architecture(config))
    return {name: tuple(each.shape) for name, each in policy.named_parameters()}


def hugging_face_name(name: str) -> str:
    """Name of a parameter of `PackedPolicy` in the Hugging Face model."""
    assert name.startswith(PREFIX), name
    return name.removeprefix(PREFIX)


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The repeated layers, in order: the units worth sharding one by one."""
    layers: Any = model.base_model
    return list(layers.layers)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return read_settings(folder)
    except FileNotFoundError as error:
        what = f"no config.json in {folder}, model.path must be a checkpoint's folder"
        raise ModelRefused(what) from error


def _architecture(settings: dict[str, Any], folder: Path) -> Any:
    """The model class, without importing any other model's."""
    for fault in setting_faults(settings):
        raise ModelRefused(f"{folder}/config.json {fault}")
    name, model_type = settings["architectures"][0], settings.get("model_type", "")
    try:
        module = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    except ModuleNotFoundError as error:
        raise ModelRefused(f"transformers knows no model type {model_type!r}") from error
    if not hasattr(module, name):
        raise ModelRefused(f"{module.__name__} has no {name}, named by {folder}/config.json")
    return getattr(module, name)

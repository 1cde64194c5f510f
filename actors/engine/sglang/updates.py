"""How a staged version reaches the server: prepared while it still samples, pushed while it pauses.

All three ways end in the server's own loader, which takes names and tensors as checkpoints have
them. None of them knows about pauses; `switching.py` does.
"""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from safetensors.torch import save_file

from milepost.actors.engine.sglang.capabilities import Capabilities
from milepost.actors.engine.sglang.client import Client
from milepost.actors.engine.sglang.payload import FORMAT, by_handle, by_value

PAYLOAD_BYTES_MAX: Final = 128 << 20
"""Of one request that carries tensors by value."""


class UpdateError(RuntimeError):
    """The server did not take the weights; which ones it holds now is not known."""


@dataclass(frozen=True, slots=True)
class Push:
    """What one push says beside the weights.

    Attributes:
        version: that they make.
        flush: drop all cached prefixes afterwards.
    """

    version: int
    flush: bool


class Update(Protocol):
    """One way for weights."""

    async def prepare(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Everything that can be done while the server still samples."""
        ...

    async def push(self, push: Push) -> None:
        """Replace the server's weights by the prepared ones.

        Raises:
            UpdateError: the server refused them.
            ServerError: the server refused the question.
            ServerGoneError: it did not answer in time.
        """
        ...

    def close(self) -> None:
        """Give back what the way holds."""
        ...


class Session:
    """The doors of one weight update, in the order that the release wants.

    Args:
        client: of the server.
        capabilities: of its release.
        deadline_s: of each door.
    """

    def __init__(self, client: Client, capabilities: Capabilities, deadline_s: float) -> None:
        self._client, self._capabilities, self._deadline_s = client, capabilities, deadline_s

    async def begin(self) -> None:
        """Open the server's weights where the release asks for it."""
        if self._capabilities.weight_sessions:
            await self.post("/begin_weight_update", {})

    async def end(self) -> None:
        """Close them again."""
        if self._capabilities.weight_sessions:
            await self.post("/end_weight_update", {})

    async def post(self, door: str, body: dict[str, Any]) -> None:
        """Ask, and refuse an answer without success."""
        answer = await self._client.post(door, body, deadline_s=self._deadline_s)
        if not isinstance(answer, dict) or answer.get("success") is False:
            raise UpdateError(f"{door}: {answer}")


class TensorUpdate:
    """As memory of this host: a handle to a GPU's, or values.

    Args:
        session: doors of the server.
        ranks: tensor-parallel ranks; each gets the same payload and takes its part.
        stager: thread for what would block.
    """

    def __init__(self, session: Session, ranks: int, stager: ThreadPoolExecutor) -> None:
        self._session, self._ranks, self._stager = session, ranks, stager
        self._payloads: list[str] = []

    async def prepare(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Serialize."""

        def serialize() -> list[str]:
            if tensors[0][1].is_cuda:
                torch.cuda.synchronize(tensors[0][1].device)
                return [by_handle(tensors)]
            return list(by_value(tensors, PAYLOAD_BYTES_MAX))

        loop = asyncio.get_running_loop()
        self._payloads = await loop.run_in_executor(self._stager, serialize)

    async def push(self, push: Push) -> None:
        """One request for each piece; the last one flushes and names the version."""
        await self._session.begin()
        for index, payload in enumerate(self._payloads):
            is_last = index + 1 == len(self._payloads)
            body: dict[str, Any] = {
                "serialized_named_tensors": [payload] * self._ranks,
                "load_format": FORMAT,
                "flush_cache": push.flush and is_last,
            }
            if is_last:
                body["weight_version"] = str(push.version)
            await self._session.post("/update_weights_from_tensor", body)
        await self._session.end()
        self._payloads = []

    def close(self) -> None:
        """Nothing is held."""


class DiskUpdate:
    """As a safetensors file that the server reads.

    Args:
        session: doors of the server.
        model: folder whose `config.json` the file belongs to.
        folder: where it is written; emptied after each version.
        stager: thread for what would block.
    """

    def __init__(
        self, session: Session, model: Path, folder: Path, stager: ThreadPoolExecutor
    ) -> None:
        self._session, self._model, self._folder, self._stager = session, model, folder, stager

    async def prepare(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Write the file."""

        def write() -> None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            shutil.copy(self._model / "config.json", self._folder / "config.json")
            save_file(dict(tensors), self._folder / "model.safetensors")

        await asyncio.get_running_loop().run_in_executor(self._stager, write)

    async def push(self, push: Push) -> None:
        """Let the server read it."""
        body = {
            "model_path": str(self._folder),
            "load_format": "safetensors",
            "flush_cache": push.flush,
            "weight_version": str(push.version),
        }
        await self._session.post("/update_weights_from_disk", body)
        (self._folder / "model.safetensors").unlink()

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)

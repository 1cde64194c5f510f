"""How a server is started: its command line, its folder, its port, and when it counts as ready."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from milepost.configs.actors import EngineConfig
from milepost.configs.read import home_of
from milepost.configs.sglang import command_line

STARTS_MAX: Final = 3
"""Tries: another process may take the port between finding it and listening on it."""
POLL_S: Final = 0.2
LOG_TAIL_BYTES: Final = 3000
CONTEXT_MARGIN: Final = 8
"""Tokens by which the server's context is longer, so that ours can be used to its last token."""
CPU_OPTIONS: Final[dict[str, Any]] = {
    "attention-backend": "torch_native",
    # Its own guess keeps back what graphs of a GPU would need, which is more than all the memory of
    # a small machine; the cache itself is bounded in tokens.
    "mem-fraction-static": 0.9,
    "sampling-backend": "pytorch",
}
CPU_ENVIRONMENT: Final = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
}
WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".index.json")


class ServerStartError(RuntimeError):
    """The server did not become ready; the text ends with its last lines."""


@dataclass(frozen=True, slots=True)
class Place:
    """Who starts a server, and where.

    Attributes:
        name: of the actor.
        index: of the replica.
        run_folder: of the run.
        seed: for what the server itself draws.
        token: of this start; the server at the port must answer with it.
        deadline_s: from start to ready.
    """

    name: str
    index: int
    run_folder: Path
    seed: int
    token: str
    deadline_s: float


class Server:
    """One server, started and kept by us; `close` ends it whole.

    Args:
        command: what its keeper runs.
        log_path: where its output goes; appended to.
        url: where it will listen.
    """

    def __init__(self, command: list[str], log_path: Path, url: str) -> None:
        self.url, self.log_path = url, log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        keeper = [sys.executable, "-P", "-m", "milepost.actors.engine.sglang.keeper"]
        with log_path.open("ab") as log:
            self._keeper = subprocess.Popen(
                [*keeper, *command], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._keeper.poll()

    def log_tail(self) -> str:
        """Its last words."""
        with self.log_path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def close(self) -> None:
        """Let go: the keeper kills the server when this pipe ends. Waits for that."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()


def start_server(
    folder: Path, config: EngineConfig, options: dict[str, Any], place: Place
) -> Server:
    """Start a server and wait until it serves.

    Args:
        folder: the checkpoint's.
        config: `[actors.engine]`.
        options: what Milepost says to the server, by name.
        place: who starts it.

    Raises:
        ServerStartError: it ended, or was not ready in time.
    """
    until_s = time.monotonic() + place.deadline_s
    model = prepare_model(folder, place.run_folder / "engines" / place.name / "model")
    log_path = place.run_folder / "logs" / f"{place.name}.server.log"
    for number in range(STARTS_MAX):
        port = free_port()
        named = {**options, "model-path": str(model), "port": port}
        command = ["env", *variables(config), python_of(config), "-P", "-m", "sglang.launch_server"]
        server = Server([*command, *command_line(named)], log_path, f"http://127.0.0.1:{port}")
        reason = wait_ready(server, port, place.token, until_s)
        if not reason:
            return server
        tail = server.log_tail()
        server.close()
        if "address already in use" not in tail or number + 1 == STARTS_MAX:
            whose = f"the SGLang server of {place.name}"
            # The last line of what a process says is what people are told first.
            raise ServerStartError(f"the log of {whose} ends:\n{tail}\n{whose} {reason}")
    raise AssertionError("unreachable: the last try returns or raises")


def server_options(
    config: EngineConfig, place: Place, *, dtype: str, context_tokens: int, routes: bool = False
) -> dict[str, Any]:
    """Everything that is said to a server but its model and its port.

    The user's options win over ours: those that must not were refused before (`RESERVED`).
    """
    ours = config.sglang
    device, _, number = config.device.partition(":")
    options: dict[str, Any] = {
        "chunked-prefill-size": config.prefill_tokens_max,
        "context-length": context_tokens + CONTEXT_MARGIN,
        "device": device,
        "dtype": dtype,
        "host": "127.0.0.1",
        "load-format": "dummy",  # weights come from the publisher, whatever lies on the disk
        "log-level": "warning",
        "max-running-requests": config.running_max,
        "random-seed": place.seed % (1 << 31),
        "served-model-name": place.token,
        "skip-tokenizer-init": True,
    }
    if device == "cpu":
        options |= CPU_OPTIONS
    else:
        options["base-gpu-id"] = int(number or 0) + place.index * ours.gpu_stride
    if not ours.options.keys() & {"max-total-tokens", "mem-fraction-static"}:
        options["max-total-tokens"] = config.slots * context_tokens
    if ours.deterministic:
        options["enable-deterministic-inference"] = True
    if routes:
        options["enable-return-routed-experts"] = True
    if ours.release_memory:
        options["enable-memory-saver"] = True
    if ours.adapters:
        options |= lora_options(ours.adapters, device)
    return {**options, **ours.options}


def lora_options(adapters: dict[str, str], device: str) -> dict[str, Any]:
    """What loads them; rank and modules are found by the server in the adapters themselves.

    It reads adapters the way it reads its model, so here the model's own weights are read, too.
    """
    places = {name: Path(home_of(folder)).resolve() for name, folder in adapters.items()}
    options: dict[str, Any] = {
        "enable-lora": True,
        "load-format": "auto",
        "lora-paths": [f"{name}={place}" for name, place in sorted(places.items())],
    }
    if device == "cpu":
        options["lora-backend"] = "torch_native"
    return options


def prepare_model(source: Path, folder: Path) -> Path:
    """A folder like the checkpoint's whose configuration ends no reply of itself.

    The server stops at the end tokens of `config.json` and `generation_config.json` beside those a
    request names; Milepost's requests name all of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        link = folder / entry.name
        if entry.name in {"config.json", "generation_config.json"} or link.is_symlink():
            continue
        link.symlink_to(entry.resolve())
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    for table in (config, config.get("text_config", {})):
        table.pop("eos_token_id", None)
    config["eos_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def variables(config: EngineConfig) -> list[str]:
    """The server's environment beside ours, as words for `env`."""
    found = {**ENVIRONMENT, "OMP_NUM_THREADS": str(config.threads)}
    if config.device == "cpu":
        found |= CPU_ENVIRONMENT
    found |= config.sglang.environment
    return [f"{name}={value}" for name, value in found.items()]


def python_of(config: EngineConfig) -> str:
    """The interpreter that has SGLang."""
    return config.sglang.python or sys.executable


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_ready(server: Server, port: int, token: str, until_s: float) -> str:
    """Block until the server serves; empty then, else why it does not."""
    while time.monotonic() < until_s:
        if (code := server.exit_code()) is not None:
            return f"ended with exit code {code}"
        if _answers(port, "/health") is not None:
            model = _answers(port, "/model_info") or {}
            if model.get("served_model_name", token) != token:
                return f"found another server on its port {port}: address already in use"
            return ""
        time.sleep(POLL_S)
    return "was not ready in time (system.timeouts.ready_s)"


def _answers(port: int, door: str) -> dict[str, Any] | None:
    """The answer of a door with status 200, as JSON where it is any; None for everything else."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", door)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status != 200:
        return None
    return dict(json.loads(body)) if body.startswith(b"{") else {}

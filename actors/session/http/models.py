"""Names of models at the door: the policy, and adapters on top of it.

Clients send whatever name their code has; any that is not an adapter's means the policy. An adapter
is named by itself, or as `POLICY:ADAPTER`, as clients of SGLang do: then a name that nobody has is
refused, since the policy's answer would be taken for the adapter's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Models:
    """What a client may ask for.

    Attributes:
        policy: name of the run's model.
        adapters: names of adapters.
    """

    policy: str
    adapters: tuple[str, ...] = ()

    def adapter_of(self, model: str) -> str:
        """The adapter that a request's `model` names; empty: none.

        What is named as `POLICY:ADAPTER` need not exist, in a run that has some.
        """
        if model in self.adapters:
            return model
        head = f"{self.policy}:"
        return model.removeprefix(head) if self.adapters and model.startswith(head) else ""

    def listed(self, *, with_adapters: bool) -> list[dict[str, Any]]:
        """As `/v1/models` lists them."""
        names = [self.policy, *(self.adapters if with_adapters else ())]
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "run"} for name in names
        ]
        for model in models[1:]:
            model["parent"] = self.policy
        return models

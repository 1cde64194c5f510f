"""The treasure hunt as a server of OpenEnv, started by `OpenEnvAgent` or by uvicorn alone."""

from __future__ import annotations

from typing import Any

from openenv.core import Action, Environment, Observation, State, create_fastapi_app

from milepost.configs.recipes.hunt.environment import HuntEnvironment
from milepost.messages.shared import ChatMessage, Prompt

WORLDS_MAX = 512


class Said(Action):  # type: ignore[misc]
    """One message of the assistant."""

    message: ChatMessage


class Answered(Observation):  # type: ignore[misc]
    """What its calls came to."""

    messages: list[ChatMessage] = []
    metrics: dict[str, float] = {}


class HuntServer(Environment):  # type: ignore[misc]
    """One hunt for each session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._hunt: HuntEnvironment | None = None
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **given: Any
    ) -> Answered:
        """Begin the hunt of this prompt."""
        del seed
        prompt = Prompt(prompt_id=given["prompt_id"], messages=[], metadata=given["metadata"])
        self._hunt = HuntEnvironment(prompt)
        self._state = State(episode_id=episode_id, step_count=0)
        return Answered(done=False, reward=0.0)

    def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Answered:
        """Carry out the calls of one message."""
        del timeout_s
        assert self._hunt is not None, "step before reset"
        results = self._hunt.react(action.message)
        self._state.step_count += 1
        return Answered(
            messages=results,
            done=not results,
            reward=self._hunt.reward,
            metrics=self._hunt.metrics,
        )

    @property
    def state(self) -> State:
        """How far it is."""
        return self._state


app = create_fastapi_app(HuntServer, Said, Answered, max_concurrent_envs=WORLDS_MAX)

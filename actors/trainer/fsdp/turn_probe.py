"""The turn that a session is asked for: rendered here, scored under each version's weights.

The session renders the same messages by itself, from the files that it has loaded. Here they are
rendered from the files that this process has, with the options that the topology names: where the
two differ in a token, what is trained is not what agents are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from milepost.actors.arrays import to_bulk
from milepost.actors.session.text.proof import make_renderer
from milepost.actors.trainer.fsdp.model import ModelRefused
from milepost.messages.publisher import ProbeTurn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from milepost.actors.trainer.fsdp.learner import Learner
    from milepost.configs.topology import Topology
    from milepost.messages.shared import ChatMessage

MESSAGES: Final[list[ChatMessage]] = [{"role": "user", "content": "Which way to the next village?"}]


@dataclass(slots=True)
class TurnProbe:
    """Scores the turn with the first version that is exported, and every so many after it.

    Attributes:
        token_ids: int32 [P], the prompt.
        every: versions.
    """

    token_ids: NDArray[np.int32]
    every: int
    _num_exports: int = field(default=0)

    @classmethod
    def of(cls, topology: Topology) -> TurnProbe | None:
        """The turn of this topology; None where no session is asked for one.

        Raises:
            ModelRefused: the prompt does not fit the context.
            As `make_renderer`: the session could not start either.
        """
        publisher, session = topology.actors.publisher, topology.actors.session
        if publisher is None or session is None or topology.model is None:
            return None
        if not (publisher.canary and publisher.canary_turn_every):
            return None
        model = topology.model
        renderer = make_renderer(model.folder, model.family, session.template_options)
        token_ids = renderer.render(renderer.first(MESSAGES, ())).token_ids
        if len(token_ids) >= model.context_tokens_max:
            raise ModelRefused(
                f"the canary's turn has {len(token_ids)} tokens, model.context_tokens_max is "
                f"{model.context_tokens_max}: set actors.publisher.canary_turn_every to 0"
            )
        return cls(token_ids, publisher.canary_turn_every)

    def take(self, learner: Learner) -> ProbeTurn | None:
        """The turn for the version that is exported now, if it is due. Collective.

        The log-probs are float32 [V] of the first token of a reply, at temperature 1.
        """
        is_due = self._num_exports % self.every == 0
        self._num_exports += 1
        if not is_due:
            return None
        logprobs: NDArray[Any] = learner.next_logprobs(self.token_ids)
        return ProbeTurn(
            messages=MESSAGES,
            token_ids=to_bulk(self.token_ids, "int32"),
            logprobs=to_bulk(logprobs, "float32"),
        )

"""Log-probs of given tokens: temperature, chunks, entropy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from milepost.actors.trainer.losses.logprobs import token_logprobs

VOCABULARY = 17


def inputs(seed: int = 0) -> tuple[Tensor, nn.Linear, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(11, 8, generator=generator, requires_grad=True)
    head = nn.Linear(8, VOCABULARY, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.randn(VOCABULARY, 8, generator=generator))
    return hidden, head, torch.randint(0, VOCABULARY, (11,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
def test_temperature_divides_logits(temperature: float) -> None:
    """Without it the importance ratio at T = 0.6 is about 2 for tokens of the very same weights."""
    hidden, head, targets = inputs()
    found, _ = token_logprobs(
        hidden,
        head,
        targets,
        temperatures=torch.full((11,), temperature),
        entropy="none",
        vocabulary=VOCABULARY,
    )
    scaled = head(hidden) / temperature
    expected = scaled.log_softmax(-1)[torch.arange(11), targets]
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("entropy", ["none", "metric", "loss"])
def test_chunks_change_neither_values_nor_gradients(entropy: str) -> None:
    """A vocabulary of 150,000 does not fit at once; computed in pieces it must be the same."""
    gradients = []
    for elements_max in (1 << 20, 3 * VOCABULARY, VOCABULARY, 1):
        hidden, head, targets = inputs()
        logprobs, entropies = token_logprobs(
            hidden,
            head,
            targets,
            temperatures=None,
            entropy=entropy,  # type: ignore[arg-type]
            vocabulary=VOCABULARY,
            elements_max=elements_max,
        )
        total = logprobs.sum()
        if entropies is not None and entropy == "loss":
            total = total + 0.1 * entropies.sum()
        total.backward()  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        gradients.append((logprobs.detach(), hidden.grad, head.weight.grad))
    for other in gradients[1:]:
        for mine, theirs in zip(gradients[0], other, strict=True):
            assert mine is not None
            assert theirs is not None
            assert torch.allclose(mine, theirs, atol=1e-5)


def test_entropy_is_that_of_the_whole_distribution_and_has_a_gradient_only_as_a_loss() -> None:
    hidden, head, targets = inputs()
    probabilities = head(hidden).softmax(-1)
    expected = -(probabilities * probabilities.log()).sum(-1)
    for use, differentiable in (("metric", False), ("loss", True)):
        _, found = token_logprobs(
            hidden,
            head,
            targets,
            temperatures=None,
            entropy=use,  # type: ignore[arg-type]
            vocabulary=VOCABULARY,
        )
        assert found is not None
        assert torch.allclose(found, expected, atol=1e-5)
        assert found.requires_grad == differentiable


def test_half_precision_states_give_float32_log_probs() -> None:
    hidden, head, targets = inputs()
    found, _ = token_logprobs(
        hidden.bfloat16(),
        head.bfloat16(),
        targets,
        temperatures=None,
        entropy="none",
        vocabulary=VOCABULARY,
    )
    assert found.dtype == torch.float32

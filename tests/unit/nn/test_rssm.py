"""The recurrent state-space model, against its equations written out in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from manyview.nn.rssm import RSSM, DiagonalGaussian

T, B, E, A, D, Z = 4, 3, 5, 2, 6, 3


def make_rssm() -> RSSM:
    torch.manual_seed(0)
    rssm = RSSM(E, A, deterministic_dim=D, stochastic_dim=Z, hidden=7).double()
    for parameter in rssm.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return rssm


def normalize(values: list[float], layer: torch.nn.LayerNorm) -> list[float]:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    scale = [(value - mean) / math.sqrt(variance + layer.eps) for value in values]
    return [w * s + b for w, s, b in zip(layer.weight.tolist(), scale, layer.bias.tolist(), strict=True)]


def multiply(weight: Any, bias: Any, values: list[float]) -> list[float]:
    products = [sum(w * v for w, v in zip(row, values, strict=True)) for row in weight.tolist()]
    return [p + b for p, b in zip(products, bias.tolist(), strict=True)]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def elu(values: list[float]) -> list[float]:
    return [value if value > 0 else math.exp(value) - 1 for value in values]


def predict_by_loop(head: Any, values: list[float]) -> tuple[list[float], list[float]]:
    first, _, norm, last = head
    out = multiply(last.weight, last.bias, normalize(elu(multiply(first.weight, first.bias, values)), norm))
    return out[:Z], [math.log1p(math.exp(value)) + 0.1 for value in out[Z:]]


def advance_by_loop(rssm: RSSM, embedding: Tensor, action: Tensor, noise: Tensor) -> list[list[list[float]]]:
    """Return [deterministic, stochastic, posterior mean, posterior std] of each step."""
    deterministic, stochastic, steps = [0.0] * D, [0.0] * Z, []
    cell = rssm.cell
    for embedding_row, action_row, noise_row in zip(embedding.tolist(), action.tolist(), noise.tolist(), strict=True):
        cell_input = elu(multiply(rssm.cell_input[0].weight, rssm.cell_input[0].bias, [*stochastic, *action_row]))
        inputs = multiply(cell.weight_ih, cell.bias_ih, cell_input)
        hidden = multiply(cell.weight_hh, cell.bias_hh, deterministic)
        gates = []
        for unit in range(D):
            reset, update = (sigmoid(inputs[unit + g * D] + hidden[unit + g * D]) for g in (0, 1))
            new = math.tanh(inputs[unit + 2 * D] + reset * hidden[unit + 2 * D])
            gates.append((1 - update) * new + update * deterministic[unit])
        deterministic = normalize(gates, rssm.cell_norm)
        mean, std = predict_by_loop(rssm.posterior, [*deterministic, *embedding_row])
        stochastic = normalize([m + s * n for m, s, n in zip(mean, std, noise_row, strict=True)], rssm.sample_norm)
        steps.append([deterministic, stochastic, mean, std])
    return steps


def test_sequences_follow_the_equations_of_gru_and_posterior() -> None:
    rssm = make_rssm()
    embedding, action, noise = (torch.randn(T, B, size, dtype=torch.float64) for size in (E, A, Z))
    deterministic, stochastic, posterior = rssm(embedding, action, noise)
    for number in range(B):
        expected = advance_by_loop(rssm, embedding[:, number], action[:, number], noise[:, number])
        for output, expected_output in zip(
            (deterministic, stochastic, *posterior), zip(*expected, strict=True), strict=True
        ):
            torch.testing.assert_close(output[:, number], torch.tensor(expected_output, dtype=torch.float64))
    prior = rssm.prior.predict(deterministic[1])
    mean, std = predict_by_loop(rssm.prior, deterministic[1, 0].tolist())
    torch.testing.assert_close(prior.mean[0], torch.tensor(mean, dtype=torch.float64))
    torch.testing.assert_close(prior.std[0], torch.tensor(std, dtype=torch.float64))


def test_without_noise_the_state_has_the_posterior_mean() -> None:
    rssm = make_rssm()
    embedding, action = torch.randn(T, B, E).double(), torch.randn(T, B, A).double()
    without_noise, with_zero_noise = rssm(embedding, action), rssm(embedding, action, torch.zeros(T, B, Z).double())
    assert torch.equal(without_noise.stochastic, with_zero_noise.stochastic)


@pytest.mark.parametrize("seed", range(3))
def test_the_divergence_is_that_of_diagonal_gaussians(seed: int) -> None:
    torch.manual_seed(seed)
    first, second = (DiagonalGaussian(torch.randn(B, Z).double(), torch.rand(B, Z).double() + 0.1) for _ in range(2))
    expected = kl_divergence(Independent(Normal(*first), 1), Independent(Normal(*second), 1))
    torch.testing.assert_close(first.kl_divergence(second), expected)
    assert torch.equal(first.kl_divergence(first), torch.zeros(B).double())


def test_the_compiled_model_has_no_graph_break() -> None:
    rssm = make_rssm()
    inputs = [torch.randn(T, B, size, dtype=torch.float64) for size in (E, A, Z)]
    explanation = torch._dynamo.explain(rssm)(*inputs)
    assert explanation.graph_break_count == 0
    torch._dynamo.reset()

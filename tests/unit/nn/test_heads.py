"""Heads and critics against explicit computations; dormant units."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from manyview.nn.heads import Head, TwinCritic, compute_dormant_fraction, mlp
from manyview.nn.optim import make_adam, optimizer_step

STATE, ACTION, HIDDEN = 6, 2, 16
LAYER_NORM = pytest.mark.parametrize("layer_norm", [False, True])


def make_critic(layer_norm: bool = False) -> TwinCritic:
    return TwinCritic(STATE, ACTION, HIDDEN, layer_norm=layer_norm)


def sample_batch(size: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(size, STATE), torch.rand(size, ACTION) * 2 - 1, 5 * torch.randn(size)


def compute_head(head: nn.Module, inputs: Tensor, *, layer_norm: bool) -> Tensor:
    """Compute a head from its bare parameters, in float64."""
    parameters = iter([parameter.detach().double() for parameter in head.parameters()])
    x = inputs.double()
    for layer in range(3):
        x = x @ next(parameters).T + next(parameters)
        if layer < 2 and layer_norm:
            deviation = x - x.mean(1, keepdim=True)
            x = deviation / (deviation.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * next(parameters) + next(parameters)
        if layer < 2:
            x = x.clamp(min=0)
    return x


@LAYER_NORM
def test_a_head_equals_its_definition(layer_norm: bool) -> None:
    head, inputs = mlp(5, 8, 3, layer_norm=layer_norm), torch.randn(7, 5)
    for parameter in head.parameters():  # biases, scales and shifts too
        nn.init.normal_(parameter)
    expected = compute_head(head, inputs, layer_norm=layer_norm)
    torch.testing.assert_close(head(inputs), expected.float(), rtol=1e-4, atol=1e-4)


def test_layer_norm_leaves_the_initial_weights_of_a_seed_unchanged() -> None:
    heads = []
    for layer_norm in (False, True):
        torch.manual_seed(3)
        heads.append(mlp(5, 8, 3, gain=2**0.5, last_gain=0.01, layer_norm=layer_norm))
    plain, normed = ([layer for layer in head if isinstance(layer, nn.Linear)] for head in heads)
    assert all(
        torch.equal(plain_layer.weight, normed_layer.weight)
        for plain_layer, normed_layer in zip(plain, normed, strict=True)
    )
    torch.testing.assert_close(plain[1].weight @ plain[1].weight.T, 2 * torch.eye(8))
    torch.testing.assert_close(plain[2].weight @ plain[2].weight.T, 1e-4 * torch.eye(3))


@LAYER_NORM
def test_heads_compute_in_float32_under_autocast(layer_norm: bool) -> None:
    critic, (state, action, target) = make_critic(layer_norm), sample_batch()
    assert sum(isinstance(module, nn.LayerNorm) for module in critic.modules()) == 4 * layer_norm
    expected = critic(state, action)
    with torch.autocast("cpu", torch.bfloat16):
        values = critic(state, action)
        loss = critic.compute_loss(values, target)
    assert torch.equal(values, expected)
    assert loss.dtype == torch.float32


def test_a_seed_gives_the_critics_of_bare_layers_in_order() -> None:
    torch.manual_seed(4)
    critic = TwinCritic(STATE, ACTION, HIDDEN)
    torch.manual_seed(4)
    sizes = (STATE + ACTION, HIDDEN, HIDDEN, 1)
    for index in range(2):
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        for position, layer in zip((0, 2, 4), layers, strict=True):
            nn.init.orthogonal_(layer.weight)
            assert torch.equal(critic.state_dict()[f"heads.{index}.{position}.weight"], layer.weight)


def test_the_loss_is_the_sum_of_both_mean_squared_errors() -> None:
    critic, (state, action, target) = make_critic(), sample_batch()
    predictions = critic(state, action)
    assert predictions.shape == (2, 32)
    outputs = [compute_head(head, torch.cat([state, action], 1), layer_norm=False)[:, 0] for head in critic.heads]
    torch.testing.assert_close(predictions, torch.stack(outputs).float(), rtol=1e-4, atol=1e-5)
    loss, expected = critic.compute_loss(predictions, target), sum((q - target).pow(2).mean() for q in outputs)
    torch.testing.assert_close(loss.double(), torch.as_tensor(expected), rtol=1e-5, atol=1e-5)


def test_weights_of_the_rows_replace_the_mean_of_a_loss() -> None:
    state, action, target = sample_batch()
    weights = torch.linspace(0, 1, 32) / 16
    critic, expected = make_critic(), 0.0
    predictions = critic(state, action)
    for row in range(32):
        row_loss = critic.compute_loss(predictions[:, row : row + 1], target[row : row + 1])
        expected += weights[row].item() * row_loss.item()
    assert critic.compute_loss(predictions, target, weights).item() == pytest.approx(expected, rel=1e-5)


@LAYER_NORM
def test_both_critics_learn_a_function_and_pass_its_gradient_to_the_action(layer_norm: bool) -> None:
    critic = make_critic(layer_norm)
    optimizer = make_adam(critic.parameters(), lr=1e-2)
    for _ in range(200):
        state, action, _ = sample_batch(128)
        optimizer_step(critic.compute_loss(critic(state, action), 4 * action[:, 0]), optimizer)
    state, action, _ = sample_batch(128)
    values = critic(state, action.requires_grad_())  # [2, B]
    assert (values - 4 * action[:, 0]).abs().mean() < 0.3
    assert not torch.equal(values[0], values[1])
    (gradient,) = torch.autograd.grad(values[0].sum(), action)
    assert 3 < gradient[:, 0].mean() < 4.5
    assert gradient[:, 1].mean().abs() < 0.2


def test_the_critics_are_independent() -> None:
    critic, (state, action, _) = make_critic(), sample_batch()
    gradients = torch.autograd.grad(critic(state, action)[0].sum(), list(critic.parameters()))
    assert [bool(gradient.any()) for gradient in gradients] == [True] * 6 + [False] * 6


def test_the_critic_compiles_to_one_graph() -> None:
    critic, (state, action, target) = make_critic(layer_norm=True), sample_batch()

    def compute(state: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        values = critic(state, action)
        return critic.compute_loss(values, target), values

    compiled = torch.compile(compute, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(state, action, target), compute(state, action, target))


def count_dormant_by_loop(head: Head, inputs: Tensor, threshold: float) -> float:
    """Return the share of dormant units, unit by unit."""
    dormant, x = [], inputs
    for layer in head:
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            means = [float(column.double().abs().mean()) for column in x.detach().T]
            dormant += [mean <= threshold * sum(means) / len(means) for mean in means]
    return sum(dormant) / len(dormant)


@LAYER_NORM
@pytest.mark.parametrize("threshold", [0.0, 0.025, 0.7, 1.0])
def test_the_dormant_fraction_equals_the_loop(threshold: float, layer_norm: bool) -> None:
    head, inputs = mlp(5, 24, 3, layer_norm=layer_norm), torch.randn(40, 5)
    fraction = compute_dormant_fraction(head, inputs, threshold=threshold)
    assert float(fraction) == pytest.approx(count_dormant_by_loop(head, inputs, threshold))


@LAYER_NORM
def test_units_that_never_fire_are_the_dormant_fraction(layer_norm: bool) -> None:
    first = nn.LayerNorm(10) if layer_norm else nn.Identity()
    head, inputs = Head(nn.Linear(5, 10, bias=False), first, nn.ReLU(), nn.Linear(10, 1)), torch.randn(64, 5)
    inputs = torch.cat([inputs, -inputs])  # each unit fires for one of the two
    assert compute_dormant_fraction(head, inputs) == 0
    with torch.no_grad():
        head.get_parameter("1.weight" if layer_norm else "0.weight")[:4] = 0.0
    assert float(compute_dormant_fraction(head, inputs)) == pytest.approx(4 / 10)


def test_a_layer_that_is_all_zero_is_dormant_and_outputs_do_not_count() -> None:
    head = mlp(5, 10, 3)
    with torch.no_grad():
        head.get_parameter("2.bias").fill_(-1e6)
        head.get_parameter("4.weight").zero_()
    assert float(compute_dormant_fraction(head, torch.randn(64, 5))) == pytest.approx(10 / 20)


def test_weak_units_are_dormant_relative_to_their_layer() -> None:
    head = mlp(1, 10, 1)
    first, second = head.get_parameter("0.weight"), head.get_parameter("2.weight")
    with torch.no_grad():
        first.fill_(1.0)[0] = 0.02  # 0.022 times the mean
        second.copy_(100 * torch.eye(10))[0, 0] = 5000  # active again in the second layer
    assert float(compute_dormant_fraction(head, torch.ones(4, 1))) == pytest.approx(1 / 20)
    assert float(compute_dormant_fraction(head, 1e-3 * torch.ones(4, 1))) == pytest.approx(1 / 20)


def test_measuring_dormant_units_changes_nothing() -> None:
    head, inputs = mlp(5, 10, 3), torch.randn(8, 5, requires_grad=True)
    before = inputs.detach().clone()
    saved: list[Tensor] = []
    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(saved.append, lambda x: x):
        fraction = compute_dormant_fraction(head, inputs)
    assert not saved, "a graph was recorded"
    assert torch.equal(inputs, before)
    assert float(fraction) == float(compute_dormant_fraction(head, inputs))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in head.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in head.parameters())

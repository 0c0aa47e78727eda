"""Heads of actors and critics: three linear layers on the representation's state."""

import torch
from torch import Tensor, nn


class Head(nn.Sequential):
    """Sequential head that always computes in float32.

    The bfloat16 values next to 150 are 149 and 151: the step is as large as a reward.
    """

    def forward(self, state: Tensor) -> Tensor:
        with torch.autocast(state.device.type, enabled=False):
            out: Tensor = super().forward(state.float())  # type: ignore[no-untyped-call]
        return out


def mlp(inputs: int, hidden: int, outputs: int, *, gain: float = 1.0, last_gain: float = 1.0) -> Head:
    """Return three linear layers with ReLU: orthogonal weights with these gains, zero biases."""
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
    for layer, factor in zip(layers, (gain, gain, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, factor)
        nn.init.zeros_(layer.bias)
    return Head(layers[0], nn.ReLU(inplace=True), layers[1], nn.ReLU(inplace=True), layers[2])


class TwinCritic(nn.Module):
    """Two independent Q-functions on the same input."""

    def __init__(self, state_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(mlp(state_dim + action_dim, hidden, 1) for _ in range(2))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the two Q-values [2, B] of `state` [B, S] and `action` [B, A]."""
        inputs = torch.cat([state, action], dim=1)
        return torch.stack([head(inputs).squeeze(1) for head in self.heads])


def saturation_penalty(pre_tanh: Tensor, *, threshold: float = 2.0) -> Tensor:
    """Return the mean squared excess of `pre_tanh` beyond ±`threshold`.

    There tanh has almost no gradient.
    """
    return (pre_tanh.abs() - threshold).clamp(min=0).pow(2).mean()

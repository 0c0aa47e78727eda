"""Heads of actors and critics: three linear layers on the representation's state."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyview.nn.trunks import init_orthogonal


class Head(nn.Sequential):
    """Sequential head that always computes in float32.

    The bfloat16 values next to 150 are 149 and 151: the step is as large as a reward.
    """

    def forward(self, state: Tensor) -> Tensor:
        with torch.autocast(state.device.type, enabled=False):
            out: Tensor = super().forward(state.float())  # type: ignore[no-untyped-call]
        return out


def mlp(
    inputs: int, hidden: int, outputs: int, *, gain: float = 1.0, last_gain: float = 1.0, layer_norm: bool = False
) -> Head:
    """Return three linear layers with ReLU: orthogonal weights with these gains, zero biases.

    With `layer_norm`, a LayerNorm precedes each ReLU.
    """
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
    for layer, factor in zip(layers, (gain, gain, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, factor)
        nn.init.zeros_(layer.bias)
    blocks: list[nn.Module] = []
    for layer in layers[:-1]:
        blocks += [layer, *([nn.LayerNorm(hidden)] if layer_norm else []), nn.ReLU(inplace=True)]
    return Head(*blocks, layers[-1])


def make_projection(inputs: int, outputs: int) -> Head:
    """Return DrQ-v2's projection of convolution features: a linear layer, LayerNorm and tanh."""
    projection = Head(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.Tanh())
    init_orthogonal(projection[0])
    return projection


class TwinCritic(nn.Module):
    """Two independent Q-functions on the same input, trained by the squared error.

    With `projection_dim` they share a projection of the state, which is a part of the critic.
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        hidden: int,
        *,
        layer_norm: bool = False,
        projection_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.projection = nn.Identity() if projection_dim is None else make_projection(state_dim, projection_dim)
        self.heads = nn.ModuleList(
            mlp((projection_dim or state_dim) + action_dim, hidden, 1, layer_norm=layer_norm) for _ in range(2)
        )

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the two Q-values [2, B] of `state` [B, S] and `action` [B, A]."""
        inputs = self.join(state, action)
        return torch.stack([head(inputs) for head in self.heads]).squeeze(2)

    def join(self, state: Tensor, action: Tensor) -> Tensor:
        """Return the input of both heads: the state, projected if the critic has a projection, and the action."""
        return torch.cat([self.projection(state), action], dim=1)

    def compute_loss(self, predictions: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean squared error against `target` [B], by `weights` [B] if given, summed over both critics."""
        losses = F.mse_loss(predictions, target.expand_as(predictions), reduction="none")  # [2, B]
        return weighted_mean(losses, weights).sum()


@torch.no_grad()
def compute_dormant_fraction(head: nn.Sequential, inputs: Tensor, *, threshold: float = 0.025) -> Tensor:
    """Return the share of a head's hidden units that are dormant for `inputs` [B, I].

    A unit is dormant if the batch mean of its ReLU output is at most `threshold` times the mean of its layer
    (Sokar et al., 2023). DrM uses the same threshold, but on the outputs of the linear layers.
    """
    dormant, outputs = [], inputs.float()
    with torch.autocast(inputs.device.type, enabled=False):
        for layer in head:
            outputs = layer(outputs)
            if isinstance(layer, nn.ReLU):
                activity = outputs.mean(0)  # [H]
                dormant.append(activity <= threshold * activity.mean())
    return torch.cat(dormant).float().mean()


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of `values` [..., B] over the last dimension, by `weights` [B] of sum 1 if given."""
    return values.mean(-1) if weights is None else (values * weights).sum(-1)


def saturation_penalty(pre_tanh: Tensor, weights: Tensor | None = None, *, threshold: float = 2.0) -> Tensor:
    """Return the mean squared excess of `pre_tanh` [B, A] beyond ±`threshold`, by `weights` [B] if given.

    There tanh has almost no gradient.
    """
    penalties = (pre_tanh.abs() - threshold).clamp(min=0).pow(2)
    return penalties.mean() if weights is None else weighted_mean(penalties.mean(1), weights)

"""Two-hot code of scalars: values learned by classification over bins (Hafner et al., 2023)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TwoHot(nn.Module):
    """Code of a scalar as weights of the two bins around it, always in float32.

    The bins are symmetric around 0 and end at ±`max_abs_value`; values beyond are clipped. They are evenly spaced, or
    with `symlog` evenly spaced in sign(x) log(1 + |x|): fine around 0, coarse for large values.
    """

    centers: Tensor

    def __init__(self, max_abs_value: float, num_bins: int, *, symlog: bool = True) -> None:
        super().__init__()
        if num_bins < 2 or not 0 < max_abs_value < torch.finfo(torch.float32).max:
            raise ValueError(
                f"invalid two-hot bins: expected num_bins >= 2 and a finite max_abs_value > 0, got {num_bins} and "
                f"{max_abs_value}. Use bins that cover the returns, e.g. 101 up to 100."
            )
        limit = math.log1p(max_abs_value) if symlog else max_abs_value
        centers = torch.linspace(-limit, limit, num_bins, dtype=torch.float64)  # [N]
        if symlog:
            centers = centers.sign() * centers.abs().expm1()
        # Mirrored, since rounding must not make the mean of equal weights differ from 0.
        self.register_buffer("centers", (0.5 * (centers - centers.flip(0))).float())

    def encode(self, values: Tensor) -> Tensor:
        """Return the weights [..., N] of `values` [...]; their mean bin is the clipped value."""
        values = values.float().clamp(self.centers[0], self.centers[-1]).contiguous()
        lower = torch.bucketize(values, self.centers[1:-1])  # [...], from 0 to N - 2
        low, high = self.centers[lower], self.centers[lower + 1]
        one_hot = F.one_hot(torch.stack([lower, lower + 1]), len(self.centers)).float()  # [2, ..., N]
        return torch.lerp(one_hot[0], one_hot[1], ((values - low) / (high - low)).unsqueeze(-1))

    def decode(self, logits: Tensor) -> Tensor:
        """Return the expected values [...] of `logits` [..., N]."""
        weighted = logits.float().softmax(-1) * self.centers
        # Opposite bins first: equal weights give exactly 0, and large bins cancel before they hide small ones.
        return 0.5 * (weighted + weighted.flip(-1)).sum(-1)

    def cross_entropy(self, logits: Tensor, values: Tensor) -> Tensor:
        """Return the cross-entropy [...] of `logits` [..., N] against `values`, broadcast to [...]."""
        return -(self.encode(values) * logits.float().log_softmax(-1)).sum(-1)

"""Two-hot code against float64 loops."""

import math

import pytest
import torch
from torch import Tensor

from manyview.nn.two_hot import TwoHot

SCALES = pytest.mark.parametrize("symlog", [True, False])


def compute_centers(max_abs_value: float, num_bins: int, *, symlog: bool) -> list[float]:
    """Return the centers one by one, in float64."""
    limit = math.log(1 + max_abs_value) if symlog else max_abs_value
    grid = [limit * (2 * index / (num_bins - 1) - 1) for index in range(num_bins)]
    return [math.copysign(math.exp(abs(x)) - 1, x) if symlog else x for x in grid]


def encode_by_loop(value: float, centers: list[float]) -> list[float]:
    """Return the share of each bin by the definition of linear interpolation."""
    value = min(max(value, centers[0]), centers[-1])
    weights = [0.0] * len(centers)
    for index in range(len(centers) - 1):
        low, high = centers[index], centers[index + 1]
        if low <= value <= high:
            weights[index], weights[index + 1] = (high - value) / (high - low), (value - low) / (high - low)
            break
    return weights


def sample_values(two_hot: TwoHot) -> Tensor:
    """Return values between, on and beyond the bins."""
    between = torch.empty(200).uniform_(-1.3, 1.3) * two_hot.centers[-1]
    return torch.cat([between, torch.randn(100), two_hot.centers])


@SCALES
@pytest.mark.parametrize(("max_abs_value", "num_bins"), [(1.0, 2), (10.0, 3), (50.0, 64), (100.0, 101), (1e6, 255)])
def test_codes_equal_the_loop(max_abs_value: float, num_bins: int, symlog: bool) -> None:
    two_hot = TwoHot(max_abs_value, num_bins, symlog=symlog)
    centers = compute_centers(max_abs_value, num_bins, symlog=symlog)
    torch.testing.assert_close(two_hot.centers, torch.tensor(centers), rtol=1e-6, atol=1e-6)
    values = sample_values(two_hot)
    expected = torch.tensor([encode_by_loop(value, two_hot.centers.tolist()) for value in values.tolist()])
    torch.testing.assert_close(two_hot.encode(values), expected, rtol=0, atol=1e-5)


@SCALES
def test_a_code_has_two_neighbors_that_sum_to_one_and_mean_the_value(symlog: bool) -> None:
    two_hot = TwoHot(100.0, 101, symlog=symlog)
    values = sample_values(two_hot)
    code = two_hot.encode(values)  # [B, N]
    assert (code >= 0).all()
    assert ((code > 0).sum(1) <= 2).all()
    torch.testing.assert_close(code.sum(1), torch.ones_like(values))
    mean = (code.double() * two_hot.centers.double()).sum(1)
    torch.testing.assert_close(mean.float(), values.clamp(-100, 100), rtol=1e-5, atol=1e-5)


@SCALES
def test_a_value_on_a_bin_is_that_bin_alone(symlog: bool) -> None:
    two_hot = TwoHot(20.0, 41, symlog=symlog)
    assert torch.equal(two_hot.encode(two_hot.centers), torch.eye(41))
    assert torch.equal(two_hot.encode(torch.tensor([-1e9, 1e9])), torch.eye(41)[[0, -1]])


def test_values_of_any_shape_and_layout_are_coded_alone() -> None:
    two_hot, values = TwoHot(5.0, 11), torch.randn(4, 3).T  # not contiguous: bucketize would warn
    code = two_hot.encode(values)
    assert code.shape == (3, 4, 11)
    assert torch.equal(code.flatten(0, 1), two_hot.encode(values.flatten()))


@SCALES
def test_decoding_is_the_expectation(symlog: bool) -> None:
    two_hot, logits = TwoHot(100.0, 101, symlog=symlog), 3 * torch.randn(50, 101)
    weights = logits.double().exp()
    expected = (weights * two_hot.centers.double()).sum(1) / weights.sum(1)
    torch.testing.assert_close(two_hot.decode(logits), expected.float(), rtol=1e-4, atol=1e-4)
    values = torch.linspace(-99, 99, 37)
    torch.testing.assert_close(two_hot.decode(two_hot.encode(values).log()), values, rtol=1e-5, atol=1e-5)


@SCALES
@pytest.mark.parametrize("num_bins", [2, 17, 64, 101, 255])
@pytest.mark.parametrize("max_abs_value", [0.3, 77.7, 1e8])
def test_equal_logits_decode_to_exactly_zero(num_bins: int, max_abs_value: float, symlog: bool) -> None:
    two_hot = TwoHot(max_abs_value, num_bins, symlog=symlog)
    assert not two_hot.decode(torch.full((3, num_bins), 0.7)).any()


@SCALES
def test_cross_entropy_and_its_gradient_equal_the_closed_form(symlog: bool) -> None:
    two_hot = TwoHot(100.0, 51, symlog=symlog)
    logits, values = torch.randn(2, 6, 51, requires_grad=True), torch.randn(6) * 60
    loss = two_hot.cross_entropy(logits, values)
    assert loss.shape == (2, 6)
    code = torch.tensor([encode_by_loop(value, two_hot.centers.tolist()) for value in values.tolist()])
    log_probs = logits.detach().double() - logits.detach().double().exp().sum(-1, keepdim=True).log()
    torch.testing.assert_close(loss, -(code * log_probs).sum(-1).float(), rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(gradient, (log_probs.exp() - code).float(), rtol=1e-5, atol=1e-6)


@SCALES
def test_the_gradient_of_the_decoded_value_equals_finite_differences(symlog: bool) -> None:
    two_hot = TwoHot(3.0, 7, symlog=symlog)
    logits = torch.randn(4, 7, requires_grad=True)
    (gradient,) = torch.autograd.grad(two_hot.decode(logits).sum(), logits)
    probs, centers = logits.detach().double().softmax(1), two_hot.centers.double()
    expected = probs * (centers - (probs * centers).sum(1, keepdim=True))
    torch.testing.assert_close(gradient, expected.float(), rtol=1e-5, atol=1e-6)


def test_the_minimum_of_the_cross_entropy_decodes_to_the_mean_target() -> None:
    two_hot, targets = TwoHot(20.0, 21), torch.tensor([0.0, 0.0, 0.0, 13.0])
    optimum = two_hot.encode(targets).mean(0).log()
    torch.testing.assert_close(two_hot.decode(optimum), targets.mean(), rtol=1e-5, atol=1e-5)


def test_extreme_logits_stay_finite() -> None:
    two_hot = TwoHot(1e6, 101)
    logits = torch.zeros(2, 101).index_fill_(1, torch.tensor([3]), 1e4).requires_grad_()
    loss, value = two_hot.cross_entropy(logits, torch.tensor([0.0, 5e5])), two_hot.decode(logits)
    loss.sum().backward()
    assert logits.grad is not None
    assert torch.equal(value, two_hot.centers[3].expand(2))
    assert all(tensor.isfinite().all() for tensor in (loss, logits.grad))


def test_a_target_that_is_nan_makes_the_loss_nan() -> None:
    """The optimizer step then skips it, instead of learning an arbitrary bin."""
    assert TwoHot(10.0, 11).cross_entropy(torch.zeros(1, 11), torch.tensor([math.nan])).isnan().all()


def test_autocast_keeps_float32() -> None:
    two_hot, logits, values = TwoHot(100.0, 101), torch.randn(8, 101), 30 * torch.randn(8)
    expected = two_hot.encode(values), two_hot.decode(logits), two_hot.cross_entropy(logits, values)
    with torch.autocast("cpu", torch.bfloat16):
        got = two_hot.encode(values), two_hot.decode(logits), two_hot.cross_entropy(logits, values)
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(got, expected, strict=True))
    assert two_hot.decode(logits.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(("max_abs_value", "num_bins"), [(0.0, 9), (-1.0, 9), (math.inf, 9), (math.nan, 9), (1.0, 1)])
def test_impossible_bins_are_refused(max_abs_value: float, num_bins: int) -> None:
    with pytest.raises(ValueError, match="invalid two-hot bins: expected num_bins >= 2"):
        TwoHot(max_abs_value, num_bins)


def test_a_compiler_sees_one_graph() -> None:
    two_hot, logits, values = TwoHot(10.0, 21), torch.randn(5, 21), torch.randn(5)
    compiled = torch.compile(two_hot.cross_entropy, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(logits, values), two_hot.cross_entropy(logits, values))
    decode = torch.compile(two_hot.decode, fullgraph=True, backend="eager")
    torch.testing.assert_close(decode(logits), two_hot.decode(logits))

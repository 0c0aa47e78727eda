"""RND against a reference implementation in float64."""

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from manyview.methods import RND, RNDConfig
from tests.support.batches import IMAGE_SHAPE, make_batch

CONFIG = RNDConfig(trunk="tiny", latent_dim=6, hidden=16, lr=1e-3)


def make_rnd(**changes: object) -> RND:
    torch.manual_seed(0)
    return RND(2, IMAGE_SHAPE, RNDConfig(**{**vars(CONFIG), **changes}))


def compute_errors(rnd: RND, views: Tensor, mask: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the errors [B] by loops in float64, given the statistics of the pixels [C]."""
    target, predictor = (deepcopy(part).double() for part in (rnd.target, rnd.predictor))
    errors = []
    for row, present in zip(views, mask, strict=True):
        by_view = []
        for view, is_present in zip(row, present, strict=True):
            if is_present:
                pixels = ((view.double() - mean[:, None, None]) / std[:, None, None]).clamp(-5, 5).unsqueeze(0)
                by_view.append((predictor(pixels) - target(pixels)).square().mean())
        errors.append(torch.stack(by_view).mean())
    return torch.stack(errors)


def compute_pixel_statistics(*views: Tensor) -> tuple[Tensor, Tensor]:
    pixels = torch.cat([part.double().movedim(2, -1).reshape(-1, IMAGE_SHAPE[0]) for part in views])
    return pixels.mean(0), pixels.std(0, correction=0)


def test_the_bonus_is_the_error_over_the_running_std() -> None:
    rnd, past_errors = make_rnd(), []
    batches = [make_batch(8, seed=seed) for seed in range(3)]
    batches[1].mask[:4, 0] = False
    seen_views = []
    for data in batches:
        seen_views.append(data.views[data.mask].unsqueeze(1))
        mean, std = compute_pixel_statistics(*seen_views)
        expected = compute_errors(rnd, data.views, data.mask, mean, std).detach()
        past_errors += expected.tolist()
        actual = rnd.compute(data, None, data.reward_ext)
        torch.testing.assert_close(actual, (expected / np.std(past_errors)).float(), rtol=1e-3, atol=1e-4)


def test_the_next_state_is_rewarded_if_set() -> None:
    rnd, data = make_rnd(rewarded_state="next", reward_scale="raw"), make_batch(8)
    mean, std = compute_pixel_statistics(data.next_views)
    expected = compute_errors(rnd, data.next_views, data.next_mask, mean, std).detach()
    torch.testing.assert_close(rnd.compute(data, None, data.reward_ext), expected.float(), rtol=1e-3, atol=1e-4)


def test_the_predictor_takes_adams_steps_and_nothing_else_changes() -> None:
    rnd, seen_views = make_rnd(), []
    predictor = deepcopy(rnd.predictor).double()
    target = {name: part.clone() for name, part in rnd.target.named_parameters()}
    adam = torch.optim.Adam(predictor.parameters(), lr=CONFIG.lr)
    for seed in range(3):
        data = make_batch(8, seed=seed)
        seen_views.append(data.views)
        mean, std = compute_pixel_statistics(*seen_views)
        reference = deepcopy(rnd).double()
        reference.predictor = predictor
        loss = _compute_loss(reference, data.views, mean, std)
        adam.zero_grad()
        loss.backward()
        adam.step()
        rnd.compute(data, None, data.reward_ext)  # also moves the statistics of the pixels
        metrics = rnd.update(data)
        torch.testing.assert_close(metrics["rnd_loss"], loss.detach().float(), rtol=1e-3, atol=1e-4)
    for actual, expected in zip(rnd.predictor.parameters(), predictor.parameters(), strict=True):
        torch.testing.assert_close(actual, expected.float(), rtol=1e-3, atol=1e-4)
    for name, part in rnd.target.named_parameters():
        assert torch.equal(part, target[name])


def _compute_loss(rnd: RND, views: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    pixels = ((views.double().flatten(0, 1) - mean[:, None, None]) / std[:, None, None]).clamp(-5, 5)
    loss: Tensor = (rnd.predictor(pixels) - rnd.target(pixels).detach()).square().mean()
    return loss


def test_learned_observations_have_a_smaller_bonus() -> None:
    rnd, known, new = make_rnd(reward_scale="raw"), make_batch(8, seed=0), make_batch(8, seed=1)
    before = rnd.compute(known, None, known.reward_ext).mean()
    rnd.eval()
    for _ in range(200):
        rnd.update(known)
    assert rnd.compute(known, None, known.reward_ext).mean() < 0.5 * before
    assert rnd.compute(new, None, new.reward_ext).mean() > 1.5 * rnd.compute(known, None, known.reward_ext).mean()


def test_r_hat_has_no_gradient() -> None:
    data = make_batch(8)
    assert not make_rnd().compute(data, None, data.reward_ext).requires_grad


def test_pixels_far_from_those_seen_are_clipped() -> None:
    rnd, dark, bright = make_rnd(reward_scale="raw"), make_batch(8, seed=0), make_batch(8, seed=1)
    dark = dark._replace(views=dark.views // 32)
    rnd.compute(dark, None, dark.reward_ext)
    rnd.eval()
    mean, std = compute_pixel_statistics(dark.views)
    expected = compute_errors(rnd, bright.views, bright.mask, mean, std).detach()
    torch.testing.assert_close(rnd.compute(bright, None, bright.reward_ext), expected.float(), rtol=1e-3, atol=1e-4)


def test_the_predictor_learns_the_states_that_are_rewarded() -> None:
    """Final states are never s_t: without updates their bonus would not decrease."""
    rnd, data = make_rnd(rewarded_state="next", reward_scale="raw"), make_batch(8)
    before = rnd.compute(data, None, data.reward_ext).mean()
    rnd.eval()
    for _ in range(200):
        rnd.update(data)
    assert rnd.compute(data, None, data.reward_ext).mean() < 0.5 * before


def test_a_batch_without_the_chosen_view_changes_no_statistics() -> None:
    torch.manual_seed(0)
    rnd, data = RND(2, IMAGE_SHAPE, CONFIG, view_indices=[1]), make_batch(8)
    rnd.compute(data, None, data.reward_ext)
    mean = rnd.pixel_moments.mean.clone()
    data.mask[:, 1] = False
    assert rnd.compute(data, None, data.reward_ext).isfinite().all()
    assert torch.equal(rnd.pixel_moments.mean, mean)


def test_rewarding_states_of_an_evaluation_changes_nothing() -> None:
    rnd, data = make_rnd(), make_batch(8)
    before = {name: part.clone() for name, part in rnd.state_dict().items()}
    assert rnd.reward_states(data.views, data.mask).isfinite().all()
    assert all(torch.equal(part, before[name]) for name, part in rnd.state_dict().items())

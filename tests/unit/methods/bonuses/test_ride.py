"""RIDE: episodic visit counts, the bonus, and the losses of its models."""

from typing import Any

import pytest
import torch

from manyview.data import Minibatch
from manyview.methods import RIDE, RIDEConfig
from manyview.methods.bonuses.ride import count_visits
from manyview.methods.representations.pixel import PixelFeatures
from manyview.nn.optim import NonFiniteError

IMAGE_SHAPE = (1, 20, 20)


def make_features(states: torch.Tensor, mask: torch.Tensor | None = None) -> PixelFeatures:
    """Return features of states [T + 1, E, V * P], by default of a single view."""
    return PixelFeatures(states, torch.ones(*states.shape[:2], 1, dtype=torch.bool) if mask is None else mask)


def test_visits_of_the_same_state_are_counted_exactly() -> None:
    state_indices = torch.tensor([0, 1, 0, 0, 2, 1, 0])
    states = torch.eye(3)[state_indices].unsqueeze(1) * 5  # one environment
    visits = count_visits(make_features(states), torch.zeros(6, 1, dtype=torch.bool), k=10, kernel=1e-3, cluster=0.0)
    assert torch.allclose(visits.squeeze(1), torch.tensor([1, 1, 2, 3, 1, 2, 4.0]), atol=0.02)


def test_visit_counts_restart_with_each_episode() -> None:
    states = torch.ones(6, 1, 4)
    done = torch.tensor([0, 1, 0, 0, 0]).bool().unsqueeze(1)  # the step from the second to the third state
    visits = count_visits(make_features(states), done, k=10, kernel=1e-3, cluster=0.0)
    assert visits.squeeze(1).tolist() == [1, 2, 1, 2, 3, 4]


def test_at_most_k_neighbors_count() -> None:
    visits = count_visits(
        make_features(torch.ones(9, 2, 4)), torch.zeros(8, 2, dtype=torch.bool), k=3, kernel=1e-3, cluster=0.0
    )
    assert visits[:, 1].tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4]


def test_the_bonus_is_the_change_over_the_root_of_the_visits() -> None:
    ride = RIDE(1, IMAGE_SHAPE, 2, RIDEConfig(latent_dim=4, trunk="tiny"))
    positions = torch.tensor([0.0, 3.0, 0.0, 3.0, 3.0, 9.0])  # the first state, then the states after five steps
    embedding = make_features(positions.view(6, 1, 1).expand(6, 1, 4) / 2)  # a change of 3 has length 3
    done = torch.zeros(5, 1, dtype=torch.bool)
    actual = ride.compute_reward(embedding, done).squeeze(1)
    expected = torch.tensor([3.0, 3 / 2**0.5, 3 / 2**0.5, 0.0, 6.0])  # the second step leads back to the start
    assert torch.allclose(actual, expected, atol=0.03)
    done[1] = True
    assert ride.compute_reward(embedding, done)[1] == 0, "what the last step led to is not known"


def test_the_models_learn_the_effect_of_an_action() -> None:
    """The action moves a bar in the image to the left or to the right."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    ride = RIDE(
        1,
        IMAGE_SHAPE,
        2,
        RIDEConfig(latent_dim=16, trunk="tiny", hidden=64, lr=3e-3, forward_coef=1.0, inverse_coef=1.0),
    )

    def draw_minibatch() -> Minibatch:
        position, action = (torch.randint(high, (64,), generator=generator) for high in (8, 2))
        views, next_views = (torch.zeros(64, 1, *IMAGE_SHAPE, dtype=torch.uint8) for _ in range(2))
        for row in range(64):
            left = 4 + int(position[row])
            views[row, ..., left : left + 3] = 255
            next_left = left + (3 if action[row] else -3)
            next_views[row, ..., next_left : next_left + 3] = 255
        mask, zeros = torch.ones(64, 1).bool(), torch.zeros(64)
        return Minibatch(views, mask, action, zeros, zeros, zeros, zeros, None, next_views, mask, torch.ones(64).bool())

    losses = [ride.update(draw_minibatch()) for _ in range(150)]
    first, last = losses[0], losses[-1]
    assert last["ride_inverse_loss"] < 0.2 < first["ride_inverse_loss"]
    assert last["ride_forward_loss"] < first["ride_forward_loss"]


def test_a_centered_bonus_has_mean_zero_and_is_zero_at_the_end_of_an_episode() -> None:
    ride = RIDE(1, (3, 24, 24), 4, RIDEConfig(trunk="tiny", reward_scale="centered"))
    embedding = make_features(torch.randn(41, 8, 6, generator=torch.Generator().manual_seed(0)))
    done = torch.zeros(40, 8, dtype=torch.bool)
    done[7, 3] = True
    reward = ride.compute_reward(embedding, done)
    assert reward[7, 3] == 0
    torch.testing.assert_close(reward[~done].mean(), torch.tensor(0.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(reward[~done].std(), torch.tensor(1.0), atol=1e-2, rtol=0)
    ride.eval()
    before = ride.reward_moments.mean.clone()
    ride.compute_reward(embedding, done)
    assert ride.reward_moments.mean.equal(before)


def make_minibatch(*, seed: int = 0) -> Minibatch:
    generator = torch.Generator().manual_seed(seed)
    views, next_views = torch.randint(256, (2, 16, 2, *IMAGE_SHAPE), generator=generator, dtype=torch.uint8)
    action, zeros = torch.rand(16, 3, generator=generator), torch.zeros(16)
    mask = torch.arange(32).view(16, 2) % 3 > 0
    has_next = torch.arange(16) % 2 == 0
    return Minibatch(views, mask, action, zeros, zeros, zeros, zeros, None, next_views, mask.flip(0), has_next)


def make_ride(**options: Any) -> RIDE:
    torch.manual_seed(0)
    return RIDE(2, IMAGE_SHAPE, 3, RIDEConfig(latent_dim=8, trunk="tiny", hidden=16, **options), discrete=False)


def test_the_losses_are_means_over_rows_with_a_next_state() -> None:
    ride, data = make_ride(), make_minibatch()
    rows = data.has_next
    assert data.next_views is not None
    assert data.next_mask is not None
    with torch.no_grad():
        state = ride.encoder.encode(data.views, data.mask).state[rows]
        next_state = ride.encoder.encode(data.next_views, data.next_mask).state[rows]
        action = data.action[rows]
        errors = (ride.forward_model(torch.cat([state, action], 1)) - next_state).view(-1, 2, 8)
        common = data.mask[rows] & data.next_mask[rows]
        squares = (errors.square().sum(2) * common).sum(1) * 2 / common.sum(1).clamp(min=1)
        forward = squares.sqrt().mean()
        inverse = (ride.inverse_model(torch.cat([state, next_state], 1)).tanh() - action).norm(dim=1).mean()
    metrics = ride.update(data)
    torch.testing.assert_close(metrics["ride_forward_loss"], forward)
    torch.testing.assert_close(metrics["ride_inverse_loss"], inverse)


@pytest.mark.parametrize(("coef", "model"), [("forward_coef", "forward_model"), ("inverse_coef", "inverse_model")])
def test_a_model_with_a_coefficient_of_zero_learns_nothing(coef: str, model: str) -> None:
    ride = make_ride(**{coef: 0.0})
    before = getattr(ride, model)[0].weight.clone()
    ride.update(make_minibatch())
    assert getattr(ride, model)[0].weight.equal(before)


def test_a_non_finite_update_changes_no_parameter() -> None:
    ride, data = make_ride(), make_minibatch()
    before = [parameter.detach().clone() for parameter in ride.parameters()]
    with pytest.raises(NonFiniteError):
        ride.update(data._replace(action=torch.full_like(data.action, torch.nan)))
    assert all(map(torch.equal, before, ride.parameters()))


def test_visit_distances_are_relative_to_their_mean() -> None:
    """The squared distances 4, 1 and 1 are divided by their mean, 2."""
    visits = count_visits(
        make_features(torch.tensor([0.0, 2.0, 1.0]).view(3, 1, 1)),
        torch.zeros(2, 1).bool(),
        k=2,
        kernel=0.5,
        cluster=0.25,
    )
    expected = [1, 1 + 0.5 / (1.75 + 0.5), 1 + 2 * 0.5 / (0.25 + 0.5)]
    assert visits.squeeze(1).tolist() == pytest.approx(expected)


def test_the_models_stay_float32_under_bfloat16_autocast() -> None:
    ride, dtypes = make_ride(), list[torch.dtype]()
    for model in (ride.forward_model, ride.inverse_model):
        model.register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ride.update(make_minibatch())
    assert dtypes == [torch.float32, torch.float32]


def test_noisy_visits_of_a_cluster_count_as_visits() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.cat([torch.zeros(6, 8), 3 * torch.randn(30, 8, generator=generator)])
    states += 0.02 * torch.randn(36, 8, generator=generator)
    done = torch.zeros(35, 1, dtype=torch.bool)
    features = make_features(states.unsqueeze(1))
    exact_count, clustered_count = (
        count_visits(features, done, k=10, kernel=1e-4, cluster=cluster)[5].item() for cluster in (0.0, 0.008)
    )
    assert clustered_count == pytest.approx(6, abs=0.01)
    assert exact_count < 5


def test_a_camera_that_fails_for_a_step_gives_no_bonus() -> None:
    ride = RIDE(2, IMAGE_SHAPE, 2, RIDEConfig(latent_dim=4, trunk="tiny"))
    torch.nn.init.ones_(ride.encoder.absent_token)
    image = torch.randint(256, (1, 2, *IMAGE_SHAPE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    features = ride.encode(image.expand(3, -1, -1, -1, -1), mask)
    steps = PixelFeatures(features.state.unsqueeze(1), features.mask.unsqueeze(1))
    assert ride.compute_reward(steps, torch.zeros(2, 1, dtype=torch.bool)).tolist() == [[0.0], [0.0]]


def test_actions_beyond_their_bounds_are_clipped() -> None:
    data = make_minibatch()
    unclipped, clipped = (data._replace(action=torch.full_like(data.action, action)) for action in (3.0, 1.0))
    assert make_ride().update(unclipped) == make_ride().update(clipped)

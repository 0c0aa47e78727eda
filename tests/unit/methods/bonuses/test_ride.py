"""RIDE: visits that are counted, and models that learn."""

from typing import Any

import pytest
import torch

from manyview.data import Minibatch
from manyview.methods import RIDE, RIDEConfig
from manyview.methods.bonuses.ride import count_visits
from manyview.methods.representations.pixel import PixelFeatures
from manyview.nn.optim import NonFiniteError

IMAGE = (1, 20, 20)


def make_features(states: torch.Tensor, mask: torch.Tensor | None = None) -> PixelFeatures:
    """Return features of states [T + 1, E, V * P], by default of a single view."""
    return PixelFeatures(states, torch.ones(*states.shape[:2], 1, dtype=torch.bool) if mask is None else mask)


def test_visits_of_the_same_state_are_counted_exactly() -> None:
    places = torch.tensor([0, 1, 0, 0, 2, 1, 0])
    states = torch.eye(3)[places].unsqueeze(1) * 5  # one environment
    visits = count_visits(make_features(states), torch.zeros(6, 1, dtype=torch.bool), k=10, kernel=1e-3, cluster=0.0)
    assert torch.allclose(visits.squeeze(1), torch.tensor([1, 1, 2, 3, 1, 2, 4.0]), atol=0.02)


def test_another_episode_begins_to_count_anew() -> None:
    states = torch.ones(6, 1, 4)
    ended = torch.tensor([0, 1, 0, 0, 0]).bool().unsqueeze(1)  # the step from the second state to the third
    visits = count_visits(make_features(states), ended, k=10, kernel=1e-3, cluster=0.0)
    assert visits.squeeze(1).tolist() == [1, 2, 1, 2, 3, 4]


def test_no_more_than_k_neighbours_count() -> None:
    visits = count_visits(
        make_features(torch.ones(9, 2, 4)), torch.zeros(8, 2, dtype=torch.bool), k=3, kernel=1e-3, cluster=0.0
    )
    assert visits[:, 1].tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4]


def test_the_bonus_is_the_change_over_the_root_of_the_visits() -> None:
    ride = RIDE(1, IMAGE, 2, RIDEConfig(latent_dim=4, trunk="tiny"))
    path = torch.tensor([0.0, 3.0, 0.0, 3.0, 3.0, 9.0])  # the start, then what five steps led to
    embedding = make_features(path.view(6, 1, 1).expand(6, 1, 4) / 2)  # a change of 3 has length 3
    ended = torch.zeros(5, 1, dtype=torch.bool)
    found = ride.compute_reward(embedding, ended).squeeze(1)
    expected = torch.tensor([3.0, 3 / 2**0.5, 3 / 2**0.5, 0.0, 6.0])  # the second step leads back to the start
    assert torch.allclose(found, expected, atol=0.03)
    ended[1] = True
    assert ride.compute_reward(embedding, ended)[1] == 0, "what the last step led to is not known"


def test_its_models_learn_what_an_action_does() -> None:
    """The action moves a bar left or right: both models can find that out, from pictures."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    ride = RIDE(
        1, IMAGE, 2, RIDEConfig(latent_dim=16, trunk="tiny", hidden=64, lr=3e-3, forward_coef=1.0, inverse_coef=1.0)
    )

    def batch() -> Minibatch:
        place, action = (torch.randint(high, (64,), generator=generator) for high in (8, 2))
        now, then = (torch.zeros(64, 1, *IMAGE, dtype=torch.uint8) for _ in range(2))
        for row in range(64):
            left = 4 + int(place[row])
            now[row, ..., left : left + 3] = 255
            moved = left + (3 if action[row] else -3)
            then[row, ..., moved : moved + 3] = 255
        mask, zeros = torch.ones(64, 1).bool(), torch.zeros(64)
        return Minibatch(now, mask, action, zeros, zeros, zeros, zeros, None, then, mask, torch.ones(64).bool())

    losses = [ride.update(batch()) for _ in range(150)]
    first, last = losses[0], losses[-1]
    assert last["ride_inverse_loss"] < 0.2 < first["ride_inverse_loss"]
    assert last["ride_forward_loss"] < first["ride_forward_loss"]


def test_a_centred_bonus_has_no_mean_and_the_step_that_ends_an_episode_pays_it() -> None:
    ride = RIDE(1, (3, 24, 24), 4, RIDEConfig(trunk="tiny", reward_scale="centered"))
    embedding = make_features(torch.randn(41, 8, 6, generator=torch.Generator().manual_seed(0)))
    ended = torch.zeros(40, 8, dtype=torch.bool)
    ended[7, 3] = True
    reward = ride.compute_reward(embedding, ended)
    assert reward[7, 3] == 0
    torch.testing.assert_close(reward[~ended].mean(), torch.tensor(0.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(reward[~ended].std(), torch.tensor(1.0), atol=1e-2, rtol=0)
    ride.eval()
    before = ride.reward_moments.mean.clone()
    ride.compute_reward(embedding, ended)
    assert ride.reward_moments.mean.equal(before)


def drawn(*, seed: int = 0) -> Minibatch:
    generator = torch.Generator().manual_seed(seed)
    now, then = torch.randint(256, (2, 16, 2, *IMAGE), generator=generator, dtype=torch.uint8)
    action, zeros = torch.rand(16, 3, generator=generator), torch.zeros(16)
    mask = torch.arange(32).view(16, 2) % 3 > 0
    follows = torch.arange(16) % 2 == 0
    return Minibatch(now, mask, action, zeros, zeros, zeros, zeros, None, then, mask.flip(0), follows)


def ride_of(**options: Any) -> RIDE:
    torch.manual_seed(0)
    return RIDE(2, IMAGE, 3, RIDEConfig(latent_dim=8, trunk="tiny", hidden=16, **options), discrete=False)


def test_its_losses_are_of_the_rows_whose_next_state_follows() -> None:
    ride, data = ride_of(), drawn()
    rows = data.has_next
    assert data.next_views is not None
    assert data.next_mask is not None
    with torch.no_grad():
        now = ride.encoder.encode(data.views, data.mask).state[rows]
        then = ride.encoder.encode(data.next_views, data.next_mask).state[rows]
        action = data.action[rows]
        missed = (ride.forward_model(torch.cat([now, action], 1)) - then).view(-1, 2, 8)
        common = data.mask[rows] & data.next_mask[rows]
        squares = (missed.square().sum(2) * common).sum(1) * 2 / common.sum(1).clamp(min=1)
        forward = squares.sqrt().mean()
        inverse = (ride.inverse_model(torch.cat([now, then], 1)).tanh() - action).norm(dim=1).mean()
    found = ride.update(data)
    torch.testing.assert_close(found["ride_forward_loss"], forward)
    torch.testing.assert_close(found["ride_inverse_loss"], inverse)


@pytest.mark.parametrize(("coef", "model"), [("forward_coef", "forward_model"), ("inverse_coef", "inverse_model")])
def test_a_model_without_weight_learns_nothing(coef: str, model: str) -> None:
    ride = ride_of(**{coef: 0.0})
    before = getattr(ride, model)[0].weight.clone()
    ride.update(drawn())
    assert getattr(ride, model)[0].weight.equal(before)


def test_a_step_that_is_not_finite_is_not_taken() -> None:
    ride, data = ride_of(), drawn()
    before = [parameter.detach().clone() for parameter in ride.parameters()]
    with pytest.raises(NonFiniteError):
        ride.update(data._replace(action=torch.full_like(data.action, torch.nan)))
    assert all(map(torch.equal, before, ride.parameters()))


def test_visits_are_measured_by_the_neighbours_that_were_found() -> None:
    """Two states at distance 2 and 1: each counts by its square over the mean, 2, beyond the cluster."""
    visits = count_visits(
        make_features(torch.tensor([0.0, 2.0, 1.0]).view(3, 1, 1)),
        torch.zeros(2, 1).bool(),
        k=2,
        kernel=0.5,
        cluster=0.25,
    )
    expected = [1, 1 + 0.5 / (1.75 + 0.5), 1 + 2 * 0.5 / (0.25 + 0.5)]
    assert visits.squeeze(1).tolist() == pytest.approx(expected)


def test_its_models_stay_float32_where_the_encoder_computes_in_less() -> None:
    ride, kinds = ride_of(), list[torch.dtype]()
    for model in (ride.forward_model, ride.inverse_model):
        model.register_forward_hook(lambda _, __, found: kinds.append(found.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ride.update(drawn())
    assert kinds == [torch.float32, torch.float32]


def test_noisy_visits_of_a_cluster_count_as_visits() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.cat([torch.zeros(6, 8), 3 * torch.randn(30, 8, generator=generator)])
    states += 0.02 * torch.randn(36, 8, generator=generator)
    done = torch.zeros(35, 1, dtype=torch.bool)
    features = make_features(states.unsqueeze(1))
    alone, clustered = (
        count_visits(features, done, k=10, kernel=1e-4, cluster=cluster)[5].item() for cluster in (0.0, 0.008)
    )
    assert clustered == pytest.approx(6, abs=0.01)
    assert alone < 5


def test_a_camera_that_fails_for_a_step_is_no_impact() -> None:
    ride = RIDE(2, IMAGE, 2, RIDEConfig(latent_dim=4, trunk="tiny"))
    torch.nn.init.ones_(ride.encoder.absent_token)
    image = torch.randint(256, (1, 2, *IMAGE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    features = ride.encode(image.expand(3, -1, -1, -1, -1), mask)
    steps = PixelFeatures(features.state.unsqueeze(1), features.mask.unsqueeze(1))
    assert ride.compute_reward(steps, torch.zeros(2, 1, dtype=torch.bool)).tolist() == [[0.0], [0.0]]


def test_an_action_beyond_its_bounds_counts_as_the_one_that_was_taken() -> None:
    data = drawn()
    beyond, bound = (data._replace(action=torch.full_like(data.action, action)) for action in (3.0, 1.0))
    assert ride_of().update(beyond) == ride_of().update(bound)

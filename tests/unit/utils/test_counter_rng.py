"""Random numbers by counter."""

import torch

from manyview.utils.counter_rng import UNIFORM_STEP, derive_keys, integers, normal, to_open_interval, uniform


def test_a_key_has_the_same_numbers_whatever_is_asked_beside_it() -> None:
    steps, envs = torch.arange(50), torch.arange(50) % 7
    together = uniform(derive_keys(3, steps, envs), 5)
    alone = torch.cat([uniform(derive_keys(3, steps[[row]], envs[[row]]), 5) for row in reversed(range(50))]).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together[:, :2], uniform(derive_keys(3, steps, envs), 2)), "asking for fewer changes none"


def test_seeds_counters_and_streams_have_numbers_of_their_own() -> None:
    one = torch.arange(1_000)
    drawn = [
        uniform(derive_keys(1, one, one), 1),
        uniform(derive_keys(2, one, one), 1),
        uniform(derive_keys(1, one, one + 1), 1),
        uniform(derive_keys(1, one + 1, one), 1),
        uniform(derive_keys(1, one, one), 1, stream=1),
    ]
    columns = torch.cat(drawn, 1)
    assert len(columns.flatten().unique()) > 4_990
    correlations = torch.corrcoef(columns.T) - torch.eye(len(drawn))
    assert correlations.abs().max() < 0.15


def test_numbers_are_spread_as_they_should_be() -> None:
    key = derive_keys(0, torch.arange(20_000))
    drawn = uniform(key, 10)
    assert (drawn >= 0).all()
    assert (drawn < 1).all()
    counts = torch.histc(drawn, 20, 0, 1) / drawn.numel() * 20
    assert (counts - 1).abs().max() < 0.05
    found = integers(key, 10, -3, 3)
    assert found.unique().tolist() == [*range(-3, 4)]
    gauss = normal(key, 10)
    assert abs(float(gauss.mean())) < 0.01
    assert abs(float(gauss.std()) - 1) < 0.01
    assert abs(float(gauss.pow(4).mean()) - 3) < 0.1
    assert gauss.isfinite().all()


def test_the_last_number_before_one_has_finite_inverses() -> None:
    last = to_open_interval(torch.tensor(1 - UNIFORM_STEP))
    assert float(last) < 1
    assert torch.special.ndtri(last).isfinite()
    assert (-(-last.log()).log()).isfinite()

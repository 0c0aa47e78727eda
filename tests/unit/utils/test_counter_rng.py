"""Counter-based random numbers: reproducibility, independence and distribution."""

import torch

from manyview.utils.counter_rng import UNIFORM_STEP, derive_keys, integers, normal, to_open_interval, uniform


def test_the_numbers_of_a_key_do_not_depend_on_the_rest_of_the_batch() -> None:
    steps, envs = torch.arange(50), torch.arange(50) % 7
    batch_numbers = uniform(derive_keys(3, steps, envs), 5)
    single_numbers = torch.cat(
        [uniform(derive_keys(3, steps[[row]], envs[[row]]), 5) for row in reversed(range(50))]
    ).flip(0)
    assert torch.equal(batch_numbers, single_numbers)
    assert torch.equal(batch_numbers[:, :2], uniform(derive_keys(3, steps, envs), 2)), (
        "fewer columns do not change the numbers"
    )


def test_seeds_counters_and_streams_give_independent_numbers() -> None:
    counter = torch.arange(1_000)
    samples = [
        uniform(derive_keys(1, counter, counter), 1),
        uniform(derive_keys(2, counter, counter), 1),
        uniform(derive_keys(1, counter, counter + 1), 1),
        uniform(derive_keys(1, counter + 1, counter), 1),
        uniform(derive_keys(1, counter, counter), 1, stream=1),
    ]
    columns = torch.cat(samples, 1)
    assert len(columns.flatten().unique()) > 4_990
    correlations = torch.corrcoef(columns.T) - torch.eye(len(samples))
    assert correlations.abs().max() < 0.15


def test_numbers_have_their_distribution() -> None:
    key = derive_keys(0, torch.arange(20_000))
    uniforms = uniform(key, 10)
    assert (uniforms >= 0).all()
    assert (uniforms < 1).all()
    counts = torch.histc(uniforms, 20, 0, 1) / uniforms.numel() * 20
    assert (counts - 1).abs().max() < 0.05
    draws = integers(key, 10, -3, 3)
    assert draws.unique().tolist() == [*range(-3, 4)]
    normals = normal(key, 10)
    assert abs(float(normals.mean())) < 0.01
    assert abs(float(normals.std()) - 1) < 0.01
    assert abs(float(normals.pow(4).mean()) - 3) < 0.1
    assert normals.isfinite().all()


def test_the_last_number_before_one_has_finite_inverses() -> None:
    last = to_open_interval(torch.tensor(1 - UNIFORM_STEP))
    assert float(last) < 1
    assert torch.special.ndtri(last).isfinite()
    assert (-(-last.log()).log()).isfinite()

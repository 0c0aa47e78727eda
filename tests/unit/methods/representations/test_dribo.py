"""DRIBO: losses in float64, order of updates, and recurrent states of sequences."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from manyview.agents import SAC, SACConfig, sac
from manyview.config.overrides import apply_overrides
from manyview.config.presets import make_config
from manyview.data import Batch
from manyview.data.batch_augmentation import ImageAugmentation
from manyview.data.sequences import Sequences, pack_sequences
from manyview.methods import DRIBO, DRIBOConfig
from manyview.methods.representations import dribo as dribo_module
from manyview.methods.representations.dribo import (
    DRIBOFeatures,
    compute_balanced_kl,
    compute_info_nce,
    compute_symmetric_kl,
)
from manyview.nn.optim import optimizer_step
from manyview.nn.rssm import DiagonalGaussian
from manyview.utils.seeding import make_rng
from tests.support.batches import make_batch as make_transitions

IMAGE_SHAPE, ACTION_SIZE = (3, 20, 20), 2
SMALL_CONFIG = DRIBOConfig(
    sequence_length=5, trunk="tiny", latent_dim=6, deterministic_dim=5, stochastic_dim=3, hidden=7, lr=1e-3
)
LENGTHS = (4, 1, 2)  # transitions of each sequence


def make_dribo(**changes: Any) -> DRIBO:
    torch.manual_seed(0)
    return DRIBO(2, IMAGE_SHAPE, ACTION_SIZE, replace(SMALL_CONFIG, **changes))


def make_batch(lengths: tuple[int, ...] = LENGTHS, *, seed: int = 0) -> Batch:
    """Return a batch of sequences; next views are the views of the next row."""
    batch = make_transitions(sum(lengths), seed=seed)
    position = torch.cat([torch.arange(length) for length in lengths])
    views = batch.next_views.clone()
    has_next = position.roll(-1) > 0
    views[has_next] = batch.views.roll(-1, 0)[has_next]
    return batch._replace(next_views=views, positions=torch.stack([position, position + 1], 1))


def make_agent(**changes: Any) -> Any:
    return SAC(make_dribo(), ACTION_SIZE, SACConfig(hidden=16, **changes), augmentation=ImageAugmentation("shift", 1))


def make_gaussian(generator: torch.Generator) -> DiagonalGaussian:
    mean, std = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    return DiagonalGaussian(mean.requires_grad_(), std.exp().requires_grad_())


def compute_kl_by_loop(first: DiagonalGaussian, second: DiagonalGaussian) -> float:
    """Return the KL divergence: the mean over rows of the sum over dimensions."""
    total = 0.0
    for row in range(len(first.mean)):
        for m, s, n, t in zip(*(part[row].tolist() for part in (*first, *second)), strict=True):
            total += float(torch.tensor(t / s).log()) + (s * s + (m - n) ** 2) / (2 * t * t) - 0.5
    return total / len(first.mean)


def test_info_nce_is_the_cross_entropy_of_the_key_of_the_same_row() -> None:
    rng = make_rng(0, "info nce")
    states, keys, similarity = rng.normal(size=(5, 4)), rng.normal(size=(5, 4)), rng.uniform(size=(4, 4))
    expected = 0.0
    for row in range(5):
        logits = [
            sum(states[row, i] * similarity[i, j] * keys[key, j] for i in range(4) for j in range(4))
            for key in range(5)
        ]
        expected -= logits[row] - float(torch.tensor(logits, dtype=torch.float64).exp().sum().log())
    actual = compute_info_nce(*(torch.from_numpy(part) for part in (states, keys, similarity)))
    assert actual.item() == pytest.approx(expected / 5)


def test_the_symmetric_divergence_is_the_mean_of_both() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = make_gaussian(generator), make_gaussian(generator)
    expected = (compute_kl_by_loop(first, second) + compute_kl_by_loop(second, first)) / 2
    assert compute_symmetric_kl(first, second).item() == pytest.approx(expected)
    assert compute_kl_by_loop(first, second) != pytest.approx(expected), "the two directions differ"


def test_balancing_gives_the_prior_its_share_of_the_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    posterior, prior = make_gaussian(generator), make_gaussian(generator)
    loss = compute_balanced_kl(posterior, prior, 0.8)
    assert loss.item() == pytest.approx(compute_kl_by_loop(posterior, prior))
    gradients = torch.autograd.grad(loss, [*posterior, *prior])
    full_gradients = torch.autograd.grad(posterior.kl_divergence(prior).mean(), [*posterior, *prior])
    for balanced, full, share in zip(gradients, full_gradients, (0.2, 0.2, 0.8, 0.8), strict=True):
        torch.testing.assert_close(balanced, share * full)


@pytest.mark.parametrize(
    ("updates", "weight"),
    [(0, 1e-4), (10_000, 1e-4), (22_500, 1e-4 * 10**0.25), (35_000, 1e-4 * 10**0.5), (60_000, 1e-3), (10**6, 1e-3)],
)
def test_the_weight_of_the_divergences_grows_exponentially_after_a_wait(updates: int, weight: float) -> None:
    assert DRIBO(1, IMAGE_SHAPE, 1, replace(DRIBOConfig(), trunk="tiny", latent_dim=4, hidden=4)).compute_kl_weight(
        updates
    ) == pytest.approx(weight)


def encode_step_by_step(dribo: DRIBO, batch: Batch) -> list[Any]:
    """Return the features of each sequence, encoded alone and step by step."""
    features, start = [], 0
    assert batch.positions is not None
    starts = [row for row, position in enumerate(batch.positions[:, 0].tolist()) if position == 0]
    for start, end in zip(starts, [*starts[1:], len(batch.action)], strict=True):
        state = {"deterministic": torch.zeros(1, 5), "stochastic": torch.zeros(1, 3)}
        observations = [*batch.views[start:end], batch.next_views[end - 1]]
        masks = [*batch.mask[start:end], batch.next_mask[end - 1]]
        actions = [torch.zeros(ACTION_SIZE), *batch.action[start:end]]
        steps = []
        for views, mask, action in zip(observations, masks, actions, strict=True):
            state, step_features = dribo.step(state, views[None], mask[None], action[None])
            steps.append(step_features)
        features.append(type(steps[0])._make(torch.cat(parts) for parts in zip(*steps, strict=True)))
    return features


@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (3, 3), (1, 4)])
def test_sequences_are_encoded_independently(lengths: tuple[int, ...]) -> None:
    dribo, batch = make_dribo(), make_batch(lengths)
    sequences = pack_sequences(batch)
    features = dribo.encode_sequences(sequences)
    for index, expected in enumerate(encode_step_by_step(dribo, batch)):
        rows = sorted(
            (time, row)
            for row, (time, sequence) in enumerate(
                zip(sequences.time.tolist(), sequences.sequence.tolist(), strict=True)
            )
            if sequence == index
        )
        for name, part in expected._asdict().items():
            torch.testing.assert_close(getattr(features, name)[[row for _, row in rows]], part, msg=name)


def test_padding_does_not_enter_the_loss_of_unequal_sequences() -> None:
    """The expected loss and gradient are of sequences encoded alone, without padding."""
    dribo, target, batch = make_dribo(), make_dribo(), make_batch()
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    online, keys = ([*encode_step_by_step(part, batch)] for part in (dribo, target))
    features, key = (
        DRIBOFeatures(*(torch.cat(parts) for parts in zip(*sequences, strict=True))) for sequences in (online, keys)
    )
    expected = compute_info_nce(features.state, key.state.detach(), dribo.similarity) + dribo.config.kl_start * (
        compute_symmetric_kl(features.posterior, key.posterior.detach())
        + compute_balanced_kl(features.posterior, features.prior, 0.8)
    )
    parameters = [parameter for parameter in dribo.parameters() if parameter is not dribo.absent_token]
    expected_gradients = torch.autograd.grad(expected, parameters)
    generator: Any = None
    actual_gradients: list[Tensor] = []

    def record_gradients(loss: Tensor, _: Any) -> Tensor:
        actual_gradients.extend(torch.autograd.grad(loss, parameters))
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dribo_module, "optimizer_step", record_gradients)
        metrics = dribo.update_sequences(pack_sequences(batch), pack_sequences(batch), target, generator)
    torch.testing.assert_close(metrics["dribo_grad_norm"], expected.detach())
    for actual_gradient, expected_gradient in zip(actual_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(actual_gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_the_critic_trains_the_encoder_and_the_actor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent()
    trained_modules: list[set[str]] = []

    def record(loss: Tensor, optimizer: Any, **options: Any) -> Tensor:
        norm = step(loss, optimizer, **options)
        names = {name.split(".")[0] for name, p in agent.representation.named_parameters() if p.grad is not None}
        trained_modules.append(names)
        agent.zero_grad(set_to_none=True)
        return norm

    step = optimizer_step
    monkeypatch.setattr(sac, "optimizer_step", record)
    agent.update(make_batch(), 0)
    assert trained_modules[0] == {"trunk", "head", "absent_token", "rssm"}
    assert trained_modules[1:] == [set(), set()], "actor and temperature"


def test_an_update_is_critic_actor_temperature_targets_and_then_the_representation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = make_agent(target_every_updates=1, encoder_tau=0.25)
    names = {id(value): name for name, value in vars(agent).items() if isinstance(value, torch.optim.Optimizer)}
    names[id(agent.representation.optimizer)] = "own"
    order: list[str] = []

    def record(loss: Tensor, optimizer: Any, **options: Any) -> Tensor:
        order.append(names[id(optimizer)])
        return optimizer_step(loss, optimizer, **options)

    for module in (sac, dribo_module):
        monkeypatch.setattr(module, "optimizer_step", record)
    before, original_update, representations = deepcopy(agent.target_representation), agent.update_targets, []

    def update_targets(*networks: Any, **options: Any) -> None:
        order.append("targets")
        representations.append(deepcopy(agent.representation))
        original_update(*networks, **options)

    monkeypatch.setattr(agent, "update_targets", update_targets)
    agent.update(make_batch(), 0)
    assert order == ["critic_optimizer", "actor_optimizer", "temperature_optimizer", "targets", "own"]
    # The target follows the encoder as it was before the step of the representation.
    for old, online, new in zip(
        before.parameters(), representations[0].parameters(), agent.target_representation.parameters(), strict=True
    ):
        torch.testing.assert_close(new, old + 0.25 * (online - old))
        assert new.grad is None
    assert any(
        not torch.equal(*pair)
        for pair in zip(representations[0].parameters(), agent.representation.parameters(), strict=True)
    )


@pytest.mark.parametrize("train", [True, False])
def test_the_bilinear_matrix_is_trained_only_if_set(train: bool) -> None:
    dribo = make_dribo(train_bilinear=train)
    agent = SAC(dribo, ACTION_SIZE, SACConfig(hidden=16), augmentation=ImageAugmentation("shift", 1))
    before = dribo.similarity.clone()
    for seed in range(2):
        agent.update(make_batch(seed=seed), seed)
    assert torch.equal(before, dribo.similarity) is not train


def test_an_update_uses_two_augmentations_and_keys_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, calls = make_agent(), []
    update = agent.representation.update_sequences

    def record(first: Sequences, second: Sequences, target: Any, generator: torch.Generator) -> Any:
        calls.append((first, second, target))
        return update(first, second, target, generator)

    monkeypatch.setattr(agent.representation, "update_sequences", record)
    agent.update(make_batch(), 0)
    ((first, second, target),) = calls
    assert target is agent.target_representation
    assert not torch.equal(first.views, second.views)
    assert all(torch.equal(*parts) for parts in zip(first[1:], second[1:], strict=True))


@pytest.mark.parametrize(("cameras", "depends"), [("first", False), ("all", True)])
def test_further_cameras_are_encoded_if_they_are_chosen(cameras: str, depends: bool) -> None:
    dribo, batch = make_dribo(cameras=cameras), make_batch()
    changed_views = batch.views.clone()
    changed_views[:, 1] = 255 - changed_views[:, 1]
    is_equal = torch.equal(dribo.encode(batch.views).state, dribo.encode(changed_views).state)
    assert is_equal is not depends
    absent_mask = torch.zeros(len(changed_views), 2, dtype=torch.bool)
    assert torch.equal(dribo.encode(batch.views, absent_mask).state, dribo.encode(255 - batch.views, absent_mask).state)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("drqv2+dribo", {}, "representation=dribo learns from sequences data, .* expected agent sac, got drqv2"),
        ("ppo+dribo", {}, "expected agent sac, got ppo"),
        ("sac+dribo", {"replay": {"augmentation": "none"}}, "expected replay.augmentation=crop or shift, got none"),
        ("sac+dribo", {"agent": {"view_dropout": 0.1}}, "expected agent.view_dropout=0, got 0.1"),
        (
            "sac+dribo",
            {"replay": {"batch_size": 100}},
            "representation.sequence_length: expected a divisor .* 100, got",
        ),
        ("sac+dribo", {"scale": {"actors": 2, "replay_shards": 16}}, "every replay shard|over 16 learners and shards"),
    ],
)
def test_an_incompatible_run_is_refused_with_a_reason(method: str, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_overrides(make_config("toy/cue_continuous", method=method), changes)

"""The class MEM: losses, reward scales, feature bank, settings and diagnostics."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch

from manyview.mem import MEM, BetaSchedule, Features, MEMConfig, total_reward
from manyview.mem.diagnostics import count_different, effective_rank
from manyview.nn.normalization import RunningMoments
from tests.support.mem import VIEW_NAMES, make_images, make_mem, make_random_features, make_random_mask


def test_a_training_step_lowers_the_loss() -> None:
    mem, views, next_views = make_mem(), make_images(32), make_images(32, seed=1)
    optimizer = torch.optim.Adam(mem.encoder.parameters(), lr=1e-3)
    first_loss, _ = mem.compute_loss(mem.encode(views), mem.encode(next_views))
    for _ in range(20):
        features = mem.encode(views)
        loss, _ = mem.compute_loss(features, mem.encode(next_views))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mem.update_discriminator(features)
    assert loss < first_loss


def test_the_loss_requires_next_features_only_if_it_uses_them() -> None:
    features = make_mem().encode(make_images(4))
    assert make_mem(temporal_coef=0.0).compute_loss(features)[0].isfinite()
    with pytest.raises(ValueError, match=r"compute_loss\(features, next_features\), or set temporal_coef=0"):
        make_mem(temporal_coef=0.5).compute_loss(features)


@pytest.mark.parametrize("temporal", ["closeness", "contrast"])
def test_the_temporal_loss_brings_consecutive_features_closer(temporal: str) -> None:
    mem = make_mem(temporal=temporal, temporal_coef=1.0, floor_coef=1.0)
    views = make_images(32)
    next_views = (views.int() + 20).clamp(0, 255).to(torch.uint8)

    def compute_relative_distance() -> float:
        terms, next_terms = mem.encode(views).terms, mem.encode(next_views).terms
        return float(
            (
                (terms - next_terms).norm(dim=-1).mean() / torch.cdist(terms.flatten(1), next_terms.flatten(1)).mean()
            ).detach()
        )

    before = compute_relative_distance()
    optimizer = torch.optim.Adam(mem.parameters(), lr=1e-3)
    for _ in range(30):
        loss, _ = mem.compute_loss(mem.encode(views), mem.encode(next_views))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert compute_relative_distance() < before


def test_metrics_are_detached_and_sum_to_the_loss() -> None:
    mem = make_mem(diff_coef=0.3, con_coef=0.2, adv_coef=0.1, floor_coef=2.0, decorrelation_coef=0.7, temporal_coef=0.5)
    loss, metrics = mem.compute_loss(mem.encode(make_images(8)), mem.encode(make_images(8, seed=1)))
    assert not any(value.requires_grad for value in metrics.values())
    weights = {"diff_loss": 0.3, "con_loss": 0.2, "adv_loss": 0.1, "floor_loss": 2.0}
    weights |= {"decorrelation_loss": 0.7, "temporal_loss": 0.5}
    assert sum(w * metrics[name] for name, w in weights.items()).item() == pytest.approx(loss.item(), rel=1e-5)  # type: ignore[union-attr]


def test_the_same_seed_gives_the_same_model() -> None:
    first_state, second_state = make_mem(seed=3).state_dict(), make_mem(seed=3).state_dict()
    assert all(value.equal(second_state[name]) for name, value in first_state.items())


@pytest.mark.parametrize("scale", ["std", "centered"])
def test_a_scaled_reward_has_a_standard_deviation_near_one(scale: str) -> None:
    mem = make_mem(reward_scale=scale)
    for seed in range(300):
        reward = mem.compute_reward(make_random_features(64, 4, 16, seed=seed))
    assert reward.std().item() == pytest.approx(1.0, abs=0.25)
    if scale == "centered":
        assert reward.mean().item() == pytest.approx(0.0, abs=1e-5)


def test_a_centered_reward_does_not_depend_on_the_scale_of_features() -> None:
    """A slow running mean would give every state a negative reward (D42)."""
    mem = make_mem(reward_scale="centered")
    for step in range(5):
        large = make_random_features(64, 4, 16, seed=step)
        features = scale_features(large, 0.3**step)
        reward = mem.compute_reward(features)
        assert reward.mean().item() == pytest.approx(0.0, abs=1e-5)
        assert reward.std(correction=0).item() == pytest.approx(1.0, abs=1e-2)
    assert mem.compute_reward(scale_features(large, 1e-7)).abs().max() < 0.1  # only rounding remains


def scale_features(features: Features, factor: float) -> Features:
    return Features(*(part * factor if part.is_floating_point() else part for part in features))


def test_relative_distances_do_not_depend_on_the_scale_of_features() -> None:
    small_mem, large_mem = make_mem(distance_scale="relative"), make_mem(distance_scale="relative")
    for seed in range(3):
        features = make_random_features(64, 4, 16, seed=seed)
        scaled_features = features._replace(
            shared=features.shared * 100, specific=features.specific * 100, shared_mean=features.shared_mean * 100
        )
        torch.testing.assert_close(
            small_mem.compute_reward(features), large_mem.compute_reward(scaled_features), rtol=1e-4, atol=1e-5
        )


def test_running_scales_change_in_training_only() -> None:
    mem = make_mem(reward_scale="centered", distance_scale="relative", bank=32)
    mem.compute_reward(make_random_features(64, 4, 16))
    before = copy.deepcopy(mem.state_dict())
    mem.eval().compute_reward(make_random_features(64, 4, 16, seed=1))
    mem.train().diagnose(make_random_features(64, 4, 16, seed=1), beta=0.1)
    assert mem.training
    assert all(value.equal(before[name]) for name, value in mem.state_dict().items())
    mem.compute_reward(make_random_features(64, 4, 16, seed=1))
    changed_modules = {
        name.rsplit(".", 1)[0] for name, value in mem.state_dict().items() if not value.equal(before[name])
    }
    assert changed_modules == {"bonus.distance_moments", "bonus.reward_moments", "bonus.bank"}


def test_running_moments_are_unbiased_from_the_first_batch() -> None:
    mem = make_mem(reward_scale="std")
    features = make_random_features(64, 4, 16)
    raw = make_mem().compute_reward(features)
    torch.testing.assert_close(mem.compute_reward(features), raw / raw.std(correction=0))


def test_diagnostics_use_the_neighbors_of_the_reward() -> None:
    mem = make_mem(bank=64, reward_scale="centered")
    for seed in range(4):
        mem.compute_reward(make_random_features(32, 4, 16, seed=seed), indices=torch.arange(32) + 32 * seed)
    mem.eval()
    features, indices = make_random_features(32, 4, 16, seed=9), torch.arange(32) + 1_000
    reward = mem.compute_reward(features, indices=indices)
    assert mem.diagnose(features, beta=0.5, indices=indices).contrast == pytest.approx(
        0.5 * reward.std(correction=0).item()
    )


def test_diagnostics_show_a_vanishing_bonus_with_any_reward_scale() -> None:
    mem, features = make_mem(reward_scale="centered"), make_random_features(64, 4, 16)
    normal, vanishing = (mem.diagnose(scale_features(features, factor), beta=1.0) for factor in (1.0, 1e-3))
    assert 0 < vanishing.reward_mean < 0.01 < normal.reward_mean
    assert 0 < vanishing.reward_std < 0.01 < normal.reward_std


def test_the_bank_adds_the_rows_of_recent_batches() -> None:
    mem = make_mem(bank=20, k=1)
    first = make_random_features(12, 4, 16)
    torch.testing.assert_close(mem.compute_reward(first), make_mem(k=1).compute_reward(first))  # the bank is empty
    assert mem.compute_reward(first).eq(0).all()  # their copies are in the bank
    for seed in (1, 2):
        mem.compute_reward(make_random_features(12, 4, 16, seed=seed))
    assert mem.compute_reward(first).gt(0).all()  # the bank has dropped them


def test_a_transition_sampled_again_is_not_its_own_neighbor() -> None:
    mem = make_mem(bank=20, k=1)
    features, indices = make_random_features(12, 4, 16), torch.arange(100, 112)
    expected = mem.compute_reward(features, indices=indices)
    torch.testing.assert_close(
        mem.compute_reward(features, indices=indices), expected
    )  # copies in the bank have the same indices
    doubled_features = Features(*(torch.cat([tensor, tensor]) for tensor in features))
    torch.testing.assert_close(
        make_mem(k=1).compute_reward(doubled_features, indices=indices.repeat(2))[:12], expected
    )  # as have those in a batch
    assert mem.compute_reward(features, indices=indices + 50).eq(0).all()  # equal rows with other indices are neighbors


def test_a_bank_smaller_than_the_batch_keeps_its_last_rows() -> None:
    mem = make_mem(bank=5)
    features = make_random_features(12, 4, 16)
    mem.compute_reward(features)
    assert mem.bonus.bank is not None
    assert mem.bonus.bank.points.transpose(0, 1).equal(features.terms[-5:])


def test_a_windowed_search_ignores_the_bank() -> None:
    mem, features = make_mem(bank=32), make_random_features(64, 4, 16)
    mem.compute_reward(features)
    assert mem.compute_reward(features, window=64).equal(make_mem().compute_reward(features))


@pytest.mark.parametrize("entropy", ["marginal", "joint"])
def test_each_rollout_is_searched_separately(entropy: str) -> None:
    mem, features = make_mem(entropy=entropy), make_random_features(60, 4, 16)
    rewards = mem.compute_reward(features, num_rollouts=3)
    for index in range(3):
        torch.testing.assert_close(
            rewards[index::3], mem.compute_reward(Features(*(part[index::3] for part in features)))
        )


def test_rollouts_have_one_scale_in_any_order() -> None:
    """One update by three rollouts has the weight of three updates."""
    features = make_random_features(60, 4, 16)
    mem, permuted_mem, sequential_mem = (make_mem(reward_scale="std", distance_scale="relative") for _ in range(3))
    permuted_features = Features(*(part.unflatten(0, (20, 3))[:, [2, 0, 1]].flatten(0, 1) for part in features))
    rewards = mem.compute_reward(features, num_rollouts=3, num_batches=3).unflatten(0, (20, 3))
    torch.testing.assert_close(
        permuted_mem.compute_reward(permuted_features, num_rollouts=3, num_batches=3).unflatten(0, (20, 3)),
        rewards[:, [2, 0, 1]],
    )
    for _ in range(3):
        sequential_mem.compute_reward(features)
    torch.testing.assert_close(mem.bonus.reward_moments.weight, sequential_mem.bonus.reward_moments.weight)


@pytest.mark.parametrize(
    "scale", [{"reward_scale": "std"}, {"reward_scale": "centered"}, {"distance_scale": "relative"}]
)
def test_scales_without_measurements_change_nothing(scale: dict[str, Any]) -> None:
    features = make_random_features(64, 4, 16)
    assert make_mem(**scale).eval().compute_reward(features).equal(make_mem().compute_reward(features))


def test_a_std_far_below_the_mean_is_raised_to_a_hundredth_of_the_mean() -> None:
    moments, rewards = RunningMoments(1), torch.tensor([1.0, 1.001])
    moments.update(rewards[:, None])
    assert moments.scale_reward(rewards, "std").max().item() == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("scale", ["std", "centered"])
def test_equal_rewards_do_not_amplify_those_of_other_states(scale: str) -> None:
    """In a toy task all states of a batch may have a duplicate, and so r̂ = 0."""
    mem, features = make_mem(reward_scale=scale), make_random_features(64, 4, 16)
    duplicates = Features(*(part[:1].expand_as(part) for part in features))
    assert (mem.compute_reward(duplicates) == 0).all()
    assert mem.eval().compute_reward(features).equal(make_mem().eval().compute_reward(features))


def test_rewards_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[4, 1\] and \[4\]"):
        total_reward(torch.zeros(4, 1), torch.zeros(4), 0.1)


def test_next_features_of_another_batch_size_are_refused() -> None:
    mem = make_mem()
    with pytest.raises(ValueError, match=r"\[8, 4\], got \[1, 4\]"):
        mem.compute_loss(mem.encode(make_images(8)), mem.encode(make_images(1)))


def test_beta_names_its_unit() -> None:
    assert BetaSchedule().unit == "agent_steps"
    assert BetaSchedule(0.1, 1e-5, "episodes")(10) == pytest.approx(0.1 * (1 - 1e-5) ** 10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("k", 0), ("latent_dim", 0), ("diff_coef", -1.0), ("temporal_temperature", 0.0), ("floor", -0.1)),
        *(("bank", -1), ("discriminator_lr", 0.0), ("temporal", "closness"), ("trunk", "papre"), ("entropy", "Joint")),
    ],
)
def test_impossible_values_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(MEMConfig(), **{field: value})


@pytest.mark.parametrize("views", [("a", "a"), "front"])
def test_view_names_must_be_a_sequence_of_different_strings(views: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="sequence of different view names"):
        MEM(views, (3, 24, 24))


@pytest.mark.parametrize(
    ("beta0", "decay", "message"),
    [
        (-0.1, 1e-5, "beta0: expected at least 0, got -0.1"),
        (0.05, 2.0, "beta_decay: expected at least 0 and less than 1, got 2.0"),
        (0.05, -1e-5, "beta_decay: expected at least 0 and less than 1, got -1e-05"),
    ],
)
def test_an_impossible_schedule_is_refused(beta0: float, decay: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BetaSchedule(beta0, decay)


def test_an_affine_norm_learns_gain_and_offset() -> None:
    plain_mem, affine_mem = make_mem(), make_mem(affine_norm=True)
    assert plain_mem.encoder.gain is None
    gain, offset = affine_mem.encoder.gain, affine_mem.encoder.offset
    assert gain is not None
    assert offset is not None
    with torch.no_grad():
        gain.copy_(torch.tensor([[2.0], [3.0]]).expand_as(gain))
        offset[1] += 1
        affine_mem.encoder.load_state_dict({**affine_mem.encoder.state_dict(), **plain_mem.encoder.state_dict()})
    views = make_images(4)
    plain_features, affine_features = plain_mem.encode(views), affine_mem.encode(views)
    torch.testing.assert_close(affine_features.shared, 2 * plain_features.shared)
    torch.testing.assert_close(affine_features.specific, 3 * plain_features.specific + 1)


def test_the_discriminator_has_its_own_learning_rate() -> None:
    slow_mem, fast_mem = make_mem(discriminator_lr=1e-4), make_mem(discriminator_lr=1e-1)
    before = slow_mem.discriminator.weight.detach().clone()
    for mem in (slow_mem, fast_mem):
        mem.update_discriminator(make_random_features(64, 4, 16))
    changes = [(mem.discriminator.weight.detach() - before).abs().max().item() for mem in (slow_mem, fast_mem)]
    assert changes == pytest.approx([1e-4, 1e-1], rel=0.01)


def test_the_literal_config_has_the_losses_of_the_paper_alone() -> None:
    config = MEMConfig.literal()
    assert (config.floor_coef, config.decorrelation_coef, config.temporal_coef, config.bank) == (0, 0, 0, 0)
    assert (config.l1, config.adversary, config.others) == ("sum", "reversal", "pooled")
    assert (config.margin, config.margin_unit, config.affine_norm) == (1.0, "raw", True)
    assert (config.entropy, config.reward_scale, config.distance_scale, config.k) == ("marginal", "raw", "raw", 3)


def test_healthy_features_are_reported_as_healthy() -> None:
    mem = make_mem()
    diagnostics = mem.diagnose(make_random_features(256, 4, 16), beta=0.05)
    assert diagnostics.summarize().startswith("healthy")
    assert sum(diagnostics.share.values()) == pytest.approx(1.0)
    assert diagnostics.chance == pytest.approx(0.25)
    assert diagnostics.contrast == pytest.approx(0.05 * diagnostics.reward_std)
    assert diagnostics.rank["front"] == pytest.approx(16, abs=1.0)
    assert "share/shared mean" in diagnostics.to_metrics()


def test_a_collapsed_view_is_reported_with_a_remedy() -> None:
    features = make_random_features(64, 4, 16)
    features.specific[:, 3] = features.specific[0, 3] + 1e-3 * torch.randn(64, 16)
    (warning,) = make_mem().diagnose(features, beta=0.05).list_warnings()
    assert warning.startswith("view `wrist` has collapsed")
    assert "floor_coef" in warning


def test_a_view_of_rank_one_is_reported() -> None:
    features = make_random_features(64, 4, 16)
    features.specific[:, 1] = torch.randn(64, 1) * torch.randn(16)
    assert any(
        "view `side` has a low effective rank (1.0)" in w for w in make_mem().diagnose(features, beta=1).list_warnings()
    )


def repeat_rows(features: Features, num_rows: int) -> Features:
    """Return `num_rows` rows that repeat those of `features`, as few images do."""
    return features.__class__(*(part[torch.arange(num_rows) % len(part)] for part in features))


@pytest.mark.parametrize("num_images", [2, 3, 10])
def test_a_task_of_few_images_is_healthy(num_images: int) -> None:
    """With three images a view cannot have three directions, and its third neighbor is at distance 0."""
    features = repeat_rows(make_random_features(num_images, 4, 16), 128)
    diagnostics = make_mem().diagnose(features, beta=0.05)
    assert diagnostics.different == dict.fromkeys(diagnostics.std, num_images)
    assert diagnostics.list_warnings() == []
    assert diagnostics.summarize().startswith("healthy: every view varies. Few images differ in a batch")
    assert f"front {num_images}, side {num_images}" in diagnostics.summarize()


def test_features_close_to_few_points_are_reported() -> None:
    """A collapse onto clusters keeps small differences between different images."""
    features = repeat_rows(make_random_features(3, 4, 16), 128)
    features.specific.add_(1e-3 * torch.randn_like(features.specific))
    diagnostics = make_mem().diagnose(features, beta=0.05)
    assert diagnostics.different["front"] > 100
    assert "view `front` has a low effective rank (2." in diagnostics.summarize()


@pytest.mark.quality("C7")
def test_the_collapse_of_the_literal_losses_is_reported_also_with_few_images() -> None:
    views = make_images(3)[torch.arange(64) % 3]
    config = dataclasses.replace(MEMConfig.literal(), latent_dim=16, trunk="tiny")
    mem = MEM(VIEW_NAMES, (views.shape[2], views.shape[3], views.shape[4]), config)
    optimizer = torch.optim.Adam(mem.parameters(), lr=3e-3)
    assert mem.diagnose(mem.encode(views), beta=0.05).summarize().startswith("healthy")
    for _ in range(60):
        features = mem.encode(views)
        optimizer.zero_grad()
        mem.compute_loss(features, features)[0].backward()
        optimizer.step()
    diagnostics = mem.diagnose(mem.encode(views), beta=0.05)
    assert diagnostics.different["front"] == 3
    for name in VIEW_NAMES:
        assert f"view `{name}` has collapsed" in diagnostics.summarize()


def test_a_constant_image_is_reported_as_a_collapse() -> None:
    features = repeat_rows(make_random_features(1, 4, 16), 64)
    assert "view `front` has collapsed" in make_mem().diagnose(features, beta=0.05).summarize()


def test_a_view_with_a_small_reward_share_is_reported_unless_its_images_repeat() -> None:
    features = make_random_features(64, 4, 16)
    features.specific[:, 1] *= 0.06  # above the bar of a collapse
    (warning,) = make_mem().diagnose(features, beta=1.0).list_warnings()
    assert warning.startswith("view `side` pays only ")
    features.specific[:, 1] = features.specific[torch.arange(64) % 8, 1]
    assert not make_mem().diagnose(features, beta=1.0).list_warnings()


def test_different_points_are_counted_up_to_rounding() -> None:
    points = torch.randn(40, 16)[torch.arange(400) % 40]
    assert count_different(points) == 40
    assert count_different(points + 1e-7 * torch.randn(400, 16)) == 40
    assert count_different(1e-3 * points + 5) == 40
    assert count_different(1e-6 * points) == 40
    assert count_different(points[:1]) == 1
    assert count_different(points[:0]) == 0
    assert count_different(torch.ones(9, 4)) == 1
    assert count_different(torch.full((9, 4), math.nan)) == 9


def test_the_accuracy_bar_depends_on_the_number_of_different_images() -> None:
    mem = make_mem(("left", "right"))
    direction = 10 * mem.discriminator.weight.detach() / mem.discriminator.weight.norm(dim=1, keepdim=True)
    for num_images, is_reported in ((3, False), (40, True)):
        features = repeat_rows(make_random_features(num_images, 2, 16), 80)
        features.shared.add_(direction)
        diagnostics = mem.diagnose(features, beta=1.0)
        assert diagnostics.discriminator_accuracy > 0.9
        assert any("reveal their view" in warning for warning in diagnostics.list_warnings()) == is_reported


def test_shared_features_that_reveal_their_view_are_reported() -> None:
    mem = make_mem()
    features = make_random_features(64, 4, 16)
    features.shared.add_(10 * mem.discriminator.weight.detach() / mem.discriminator.weight.norm(dim=1, keepdim=True))
    diagnostics = mem.diagnose(features, beta=1.0)
    assert diagnostics.discriminator_accuracy > 0.9
    assert any("reveal their view" in warning for warning in diagnostics.list_warnings())


def test_overlap_a_small_bonus_and_absent_views_are_reported() -> None:
    mem = make_mem()
    features = make_random_features(64, 4, 16)
    overlapping = features._replace(shared=features.specific.clone())
    assert any("overlap" in warning for warning in mem.diagnose(overlapping, beta=1.0).list_warnings())
    assert any("no longer steers" in warning for warning in mem.diagnose(features, beta=1e-9).list_warnings())
    mask = torch.ones(64, 4, dtype=torch.bool)
    mask[:60, 2] = False
    warnings = mem.diagnose(make_random_features(64, 4, 16, mask=mask), beta=1.0).list_warnings()
    assert "view `top` is absent in 94% of the batch: check the camera." in warnings


def test_diagnostics_with_missing_views_are_finite() -> None:
    mem = make_mem()
    diagnostics = mem.diagnose(mem.encode(make_images(64), make_random_mask(64)), beta=0.1)
    assert all(math.isfinite(value) for value in diagnostics.to_metrics().values())
    assert set(diagnostics.present) == set(VIEW_NAMES)


@pytest.mark.parametrize("batch_size", [1, 3, 12])
def test_few_rows_give_no_warning_of_a_view(batch_size: int) -> None:
    assert not [
        w
        for w in make_mem().diagnose(make_random_features(batch_size, 4, 16), beta=1.0).list_warnings()
        if "view `" in w
    ]


def test_non_finite_features_are_reported() -> None:
    features = make_random_features(64, 4, 16)
    features.specific[3, 1, 2] = torch.nan
    assert "not finite" in make_mem().diagnose(features, beta=1.0).summarize()


def test_effective_rank_of_known_matrices() -> None:
    assert effective_rank(torch.ones(10, 4)) == 0.0
    assert effective_rank(torch.randn(1, 4)) == 0.0
    line = torch.arange(10.0)[:, None] * torch.ones(4)
    assert effective_rank(line) == pytest.approx(1.0)
    assert effective_rank(torch.cat([torch.eye(4), -torch.eye(4)])) == pytest.approx(4.0)

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
    mem, views, later = make_mem(), make_images(32), make_images(32, seed=1)
    optimizer = torch.optim.Adam(mem.encoder.parameters(), lr=1e-3)
    first, _ = mem.compute_loss(mem.encode(views), mem.encode(later))
    for _ in range(20):
        features = mem.encode(views)
        loss, _ = mem.compute_loss(features, mem.encode(later))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mem.update_discriminator(features)
    assert loss < first


def test_loss_asks_for_later_features_only_if_it_uses_them() -> None:
    features = make_mem().encode(make_images(4))
    assert make_mem(temporal_coef=0.0).compute_loss(features)[0].isfinite()
    with pytest.raises(ValueError, match=r"compute_loss\(features, next_features\), or set temporal_coef=0"):
        make_mem(temporal_coef=0.5).compute_loss(features)


@pytest.mark.parametrize("temporal", ["closeness", "contrast"])
def test_what_follows_in_time_is_drawn_closer(temporal: str) -> None:
    mem = make_mem(temporal=temporal, temporal_coef=1.0, floor_coef=1.0)
    views = make_images(32)
    later = (views.int() + 20).clamp(0, 255).to(torch.uint8)

    def apart() -> float:
        now, then = mem.encode(views).terms, mem.encode(later).terms
        return float(((now - then).norm(dim=-1).mean() / torch.cdist(now.flatten(1), then.flatten(1)).mean()).detach())

    before = apart()
    optimizer = torch.optim.Adam(mem.parameters(), lr=1e-3)
    for _ in range(30):
        loss, _ = mem.compute_loss(mem.encode(views), mem.encode(later))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert apart() < before


def test_metrics_are_detached_and_sum_to_the_loss() -> None:
    mem = make_mem(diff_coef=0.3, con_coef=0.2, adv_coef=0.1, floor_coef=2.0, decorrelation_coef=0.7, temporal_coef=0.5)
    loss, metrics = mem.compute_loss(mem.encode(make_images(8)), mem.encode(make_images(8, seed=1)))
    assert not any(value.requires_grad for value in metrics.values())
    weights = {"diff_loss": 0.3, "con_loss": 0.2, "adv_loss": 0.1, "floor_loss": 2.0}
    weights |= {"decorrelation_loss": 0.7, "temporal_loss": 0.5}
    assert sum(w * metrics[name] for name, w in weights.items()).item() == pytest.approx(loss.item(), rel=1e-5)  # type: ignore[union-attr]


def test_the_same_seed_gives_the_same_model() -> None:
    one, other = make_mem(seed=3).state_dict(), make_mem(seed=3).state_dict()
    assert all(value.equal(other[name]) for name, value in one.items())


@pytest.mark.parametrize("scale", ["std", "centered"])
def test_a_scaled_reward_spreads_by_about_one(scale: str) -> None:
    mem = make_mem(reward_scale=scale)
    for seed in range(300):
        reward = mem.compute_reward(make_random_features(64, 4, 16, seed=seed))
    assert reward.std().item() == pytest.approx(1.0, abs=0.25)
    if scale == "centered":
        assert reward.mean().item() == pytest.approx(0.0, abs=1e-5)


def test_a_centred_reward_says_nothing_of_features_that_shrink() -> None:
    """A mean that follows slowly would call every state bad, and a critic that learns this shrinks them on (D42)."""
    mem = make_mem(reward_scale="centered")
    for step in range(5):
        large = make_random_features(64, 4, 16, seed=step)
        features = shrunk(large, 0.3**step)
        reward = mem.compute_reward(features)
        assert reward.mean().item() == pytest.approx(0.0, abs=1e-5)
        assert reward.std(correction=0).item() == pytest.approx(1.0, abs=1e-2)
    assert mem.compute_reward(shrunk(large, 1e-7)).abs().max() < 0.1  # what is left then is rounding


def shrunk(features: Features, factor: float) -> Features:
    return Features(*(part * factor if part.is_floating_point() else part for part in features))


def test_relative_distances_forget_the_scale_of_the_features() -> None:
    small, large = make_mem(distance_scale="relative"), make_mem(distance_scale="relative")
    for seed in range(3):
        features = make_random_features(64, 4, 16, seed=seed)
        bigger = features._replace(
            shared=features.shared * 100, specific=features.specific * 100, shared_mean=features.shared_mean * 100
        )
        torch.testing.assert_close(small.compute_reward(features), large.compute_reward(bigger), rtol=1e-4, atol=1e-5)


def test_running_scales_move_in_training_and_rest_in_evaluation() -> None:
    mem = make_mem(reward_scale="centered", distance_scale="relative", bank=32)
    mem.compute_reward(make_random_features(64, 4, 16))
    before = copy.deepcopy(mem.state_dict())
    mem.eval().compute_reward(make_random_features(64, 4, 16, seed=1))
    mem.train().diagnose(make_random_features(64, 4, 16, seed=1), beta=0.1)
    assert mem.training
    assert all(value.equal(before[name]) for name, value in mem.state_dict().items())
    mem.compute_reward(make_random_features(64, 4, 16, seed=1))
    moved = {name.rsplit(".", 1)[0] for name, value in mem.state_dict().items() if not value.equal(before[name])}
    assert moved == {"bonus.distance_moments", "bonus.reward_moments", "bonus.bank"}


def test_running_moments_are_unbiased_from_the_first_batch() -> None:
    mem = make_mem(reward_scale="std")
    features = make_random_features(64, 4, 16)
    raw = make_mem().compute_reward(features)
    torch.testing.assert_close(mem.compute_reward(features), raw / raw.std(correction=0))


def test_health_looks_for_neighbours_where_the_reward_does() -> None:
    mem = make_mem(bank=64, reward_scale="centered")
    for seed in range(4):
        mem.compute_reward(make_random_features(32, 4, 16, seed=seed), indices=torch.arange(32) + 32 * seed)
    mem.eval()
    features, rows = make_random_features(32, 4, 16, seed=9), torch.arange(32) + 1_000
    paid = mem.compute_reward(features, indices=rows)
    assert mem.diagnose(features, beta=0.5, indices=rows).contrast == pytest.approx(0.5 * paid.std(correction=0).item())


def test_health_shows_a_bonus_that_dies_whatever_its_scale() -> None:
    mem, features = make_mem(reward_scale="centered"), make_random_features(64, 4, 16)
    alive, dead = (mem.diagnose(shrunk(features, factor), beta=1.0) for factor in (1.0, 1e-3))
    assert 0 < dead.reward_mean < 0.01 < alive.reward_mean
    assert 0 < dead.reward_std < 0.01 < alive.reward_std


def test_the_bank_adds_the_rows_of_recent_batches() -> None:
    mem = make_mem(bank=20, k=1)
    first = make_random_features(12, 4, 16)
    torch.testing.assert_close(
        mem.compute_reward(first), make_mem(k=1).compute_reward(first)
    )  # an empty bank adds nothing
    assert mem.compute_reward(first).eq(0).all()  # the same rows again: their copies are in the bank
    for seed in (1, 2):
        mem.compute_reward(make_random_features(12, 4, 16, seed=seed))
    assert mem.compute_reward(first).gt(0).all()  # pushed out by now


def test_a_transition_sampled_again_is_not_its_own_neighbour() -> None:
    mem = make_mem(bank=20, k=1)
    features, rows = make_random_features(12, 4, 16), torch.arange(100, 112)
    alone = mem.compute_reward(features, indices=rows)
    torch.testing.assert_close(
        mem.compute_reward(features, indices=rows), alone
    )  # the copies in the bank are the rows themselves
    twice = Features(*(torch.cat([tensor, tensor]) for tensor in features))
    torch.testing.assert_close(
        make_mem(k=1).compute_reward(twice, indices=rows.repeat(2))[:12], alone
    )  # so are those in a batch
    assert (
        mem.compute_reward(features, indices=rows + 50).eq(0).all()
    )  # other transitions that look the same are neighbours


def test_a_bank_smaller_than_the_batch_keeps_its_last_rows() -> None:
    mem = make_mem(bank=5)
    features = make_random_features(12, 4, 16)
    mem.compute_reward(features)
    assert mem.bonus.bank is not None
    assert mem.bonus.bank.points.transpose(0, 1).equal(features.terms[-5:])


def test_a_window_searches_the_rollout_alone() -> None:
    mem, features = make_mem(bank=32), make_random_features(64, 4, 16)
    mem.compute_reward(features)
    assert mem.compute_reward(features, window=64).equal(make_mem().compute_reward(features))


@pytest.mark.parametrize("entropy", ["marginal", "joint"])
def test_rollouts_apart_are_searched_among_their_own(entropy: str) -> None:
    mem, features = make_mem(entropy=entropy), make_random_features(60, 4, 16)
    together = mem.compute_reward(features, num_rollouts=3)
    for first in range(3):
        torch.testing.assert_close(
            together[first::3], mem.compute_reward(Features(*(part[first::3] for part in features)))
        )


def test_rollouts_apart_have_one_scale_whatever_their_order() -> None:
    """Which moves as far as it would by one after the other."""
    features = make_random_features(60, 4, 16)
    mem, turned, single = (make_mem(reward_scale="std", distance_scale="relative") for _ in range(3))
    other = Features(*(part.unflatten(0, (20, 3))[:, [2, 0, 1]].flatten(0, 1) for part in features))
    paid = mem.compute_reward(features, num_rollouts=3, num_batches=3).unflatten(0, (20, 3))
    torch.testing.assert_close(
        turned.compute_reward(other, num_rollouts=3, num_batches=3).unflatten(0, (20, 3)), paid[:, [2, 0, 1]]
    )
    for _ in range(3):
        single.compute_reward(features)
    torch.testing.assert_close(mem.bonus.reward_moments.weight, single.bonus.reward_moments.weight)


@pytest.mark.parametrize(
    "scale", [{"reward_scale": "std"}, {"reward_scale": "centered"}, {"distance_scale": "relative"}]
)
def test_scales_that_have_measured_nothing_change_nothing(scale: dict[str, Any]) -> None:
    features = make_random_features(64, 4, 16)
    assert make_mem(**scale).eval().compute_reward(features).equal(make_mem().compute_reward(features))


def test_a_spread_far_below_the_mean_counts_as_a_hundredth_of_it() -> None:
    moments, rewards = RunningMoments(1), torch.tensor([1.0, 1.001])
    moments.update(rewards[:, None])
    assert moments.scale_reward(rewards, "std").max().item() == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("scale", ["std", "centered"])
def test_equal_rewards_do_not_amplify_those_of_other_states(scale: str) -> None:
    """On a toy all states of the last batch may have a duplicate, and r̂ of 0; a video shows others."""
    mem, features = make_mem(reward_scale=scale), make_random_features(64, 4, 16)
    duplicates = Features(*(part[:1].expand_as(part) for part in features))
    assert (mem.compute_reward(duplicates) == 0).all()
    assert mem.eval().compute_reward(features).equal(make_mem().eval().compute_reward(features))


def test_rewards_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[4, 1\] and \[4\]"):
        total_reward(torch.zeros(4, 1), torch.zeros(4), 0.1)


def test_later_features_of_another_batch_are_refused() -> None:
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
def test_view_names_must_be_several_strings_that_differ(views: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="sequence of different view names"):
        MEM(views, (3, 24, 24))


@pytest.mark.parametrize(
    ("beta0", "decay", "named"),
    [
        (-0.1, 1e-5, "beta0: expected at least 0, got -0.1"),
        (0.05, 2.0, "beta_decay: expected at least 0 and less than 1, got 2.0"),
        (0.05, -1e-5, "beta_decay: expected at least 0 and less than 1, got -1e-05"),
    ],
)
def test_an_impossible_schedule_is_refused(beta0: float, decay: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        BetaSchedule(beta0, decay)


def test_an_affine_norm_learns_gain_and_offset() -> None:
    plain, affine = make_mem(), make_mem(affine_norm=True)
    assert plain.encoder.gain is None
    gain, offset = affine.encoder.gain, affine.encoder.offset
    assert gain is not None
    assert offset is not None
    with torch.no_grad():
        gain.copy_(torch.tensor([[2.0], [3.0]]).expand_as(gain))
        offset[1] += 1
        affine.encoder.load_state_dict({**affine.encoder.state_dict(), **plain.encoder.state_dict()})
    views = make_images(4)
    before, after = plain.encode(views), affine.encode(views)
    torch.testing.assert_close(after.shared, 2 * before.shared)
    torch.testing.assert_close(after.specific, 3 * before.specific + 1)


def test_the_discriminator_learns_at_its_own_rate() -> None:
    slow, fast = make_mem(discriminator_lr=1e-4), make_mem(discriminator_lr=1e-1)
    before = slow.discriminator.weight.detach().clone()
    for mem in (slow, fast):
        mem.update_discriminator(make_random_features(64, 4, 16))
    moved = [(mem.discriminator.weight.detach() - before).abs().max().item() for mem in (slow, fast)]
    assert moved == pytest.approx([1e-4, 1e-1], rel=0.01)


def test_literal_is_the_papers_text_without_our_terms() -> None:
    literal = MEMConfig.literal()
    assert (literal.floor_coef, literal.decorrelation_coef, literal.temporal_coef, literal.bank) == (0, 0, 0, 0)
    assert (literal.l1, literal.adversary, literal.others) == ("sum", "reversal", "pooled")
    assert (literal.margin, literal.margin_unit, literal.affine_norm) == (1.0, "raw", True)
    assert (literal.entropy, literal.reward_scale, literal.distance_scale, literal.k) == ("marginal", "raw", "raw", 3)


def test_healthy_features_are_called_healthy() -> None:
    mem = make_mem()
    health = mem.diagnose(make_random_features(256, 4, 16), beta=0.05)
    assert health.summarize().startswith("healthy")
    assert sum(health.share.values()) == pytest.approx(1.0)
    assert health.chance == pytest.approx(0.25)
    assert health.contrast == pytest.approx(0.05 * health.reward_std)
    assert health.rank["front"] == pytest.approx(16, abs=1.0)
    assert "share/shared mean" in health.to_metrics()


def test_a_collapsed_view_is_named_with_what_to_do() -> None:
    features = make_random_features(64, 4, 16)
    features.specific[:, 3] = features.specific[0, 3] + 1e-3 * torch.randn(64, 16)
    (warning,) = make_mem().diagnose(features, beta=0.05).list_warnings()
    assert warning.startswith("view `wrist` has collapsed")
    assert "floor_coef" in warning


def test_a_view_in_one_direction_is_called_narrow() -> None:
    features = make_random_features(64, 4, 16)
    features.specific[:, 1] = torch.randn(64, 1) * torch.randn(16)
    assert any(
        "view `side` has a low effective rank (1.0)" in w for w in make_mem().diagnose(features, beta=1).list_warnings()
    )


def repeat_rows(features: Features, rows: int) -> Features:
    """Repeat the rows of features, as a task with as few images does."""
    return features.__class__(*(part[torch.arange(rows) % len(part)] for part in features))


@pytest.mark.parametrize("images", [2, 3, 10])
def test_a_task_of_few_images_is_healthy(images: int) -> None:
    """With three images a view cannot have three directions, and its third neighbor is at distance 0."""
    features = repeat_rows(make_random_features(images, 4, 16), 128)
    health = make_mem().diagnose(features, beta=0.05)
    assert health.different == dict.fromkeys(health.std, images)
    assert health.list_warnings() == []
    assert health.summarize().startswith("healthy: every view varies. Few images differ in a batch")
    assert f"front {images}, side {images}" in health.summarize()


def test_features_close_to_few_points_are_no_task_of_few_images() -> None:
    """A collapse onto clusters keeps small differences between different images."""
    features = repeat_rows(make_random_features(3, 4, 16), 128)
    features.specific.add_(1e-3 * torch.randn_like(features.specific))
    health = make_mem().diagnose(features, beta=0.05)
    assert health.different["front"] > 100
    assert "view `front` has a low effective rank (2." in health.summarize()


@pytest.mark.quality("C7")
def test_the_collapse_of_the_literal_losses_is_named_also_with_few_images() -> None:
    few = make_images(3)[torch.arange(64) % 3]
    literal = dataclasses.replace(MEMConfig.literal(), latent_dim=16, trunk="tiny")
    mem = MEM(VIEW_NAMES, (few.shape[2], few.shape[3], few.shape[4]), literal)
    optimizer = torch.optim.Adam(mem.parameters(), lr=3e-3)
    assert mem.diagnose(mem.encode(few), beta=0.05).summarize().startswith("healthy")
    for _ in range(60):
        features = mem.encode(few)
        optimizer.zero_grad()
        mem.compute_loss(features, features)[0].backward()
        optimizer.step()
    health = mem.diagnose(mem.encode(few), beta=0.05)
    assert health.different["front"] == 3
    for name in VIEW_NAMES:
        assert f"view `{name}` has collapsed" in health.summarize()


def test_one_image_is_a_frozen_camera() -> None:
    features = repeat_rows(make_random_features(1, 4, 16), 64)
    assert "view `front` has collapsed" in make_mem().diagnose(features, beta=0.05).summarize()


def test_a_view_that_pays_little_is_reported_unless_its_images_repeat() -> None:
    features = make_random_features(64, 4, 16)
    features.specific[:, 1] *= 0.06  # still above the collapse
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


def test_a_discriminator_of_few_images_is_judged_by_their_number() -> None:
    mem = make_mem(("left", "right"))
    direction = 10 * mem.discriminator.weight.detach() / mem.discriminator.weight.norm(dim=1, keepdim=True)
    for count, is_reported in ((3, False), (40, True)):
        features = repeat_rows(make_random_features(count, 2, 16), 80)
        features.shared.add_(direction)
        health = mem.diagnose(features, beta=1.0)
        assert health.discriminator_accuracy > 0.9
        assert any("reveal their view" in warning for warning in health.list_warnings()) == is_reported


def test_shared_features_that_tell_their_view_are_reported() -> None:
    mem = make_mem()
    features = make_random_features(64, 4, 16)
    features.shared.add_(10 * mem.discriminator.weight.detach() / mem.discriminator.weight.norm(dim=1, keepdim=True))
    health = mem.diagnose(features, beta=1.0)
    assert health.discriminator_accuracy > 0.9
    assert any("reveal their view" in warning for warning in health.list_warnings())


def test_overlap_faint_bonus_and_absence_are_reported() -> None:
    mem = make_mem()
    features = make_random_features(64, 4, 16)
    overlapping = features._replace(shared=features.specific.clone())
    assert any("overlap" in warning for warning in mem.diagnose(overlapping, beta=1.0).list_warnings())
    assert any("no longer steers" in warning for warning in mem.diagnose(features, beta=1e-9).list_warnings())
    mask = torch.ones(64, 4, dtype=torch.bool)
    mask[:60, 2] = False
    absent = mem.diagnose(make_random_features(64, 4, 16, mask=mask), beta=1.0).list_warnings()
    assert "view `top` is absent in 94% of the batch: check the camera." in absent


def test_health_with_missing_views_is_finite() -> None:
    mem = make_mem()
    health = mem.diagnose(mem.encode(make_images(64), make_random_mask(64)), beta=0.1)
    assert all(math.isfinite(value) for value in health.to_metrics().values())
    assert set(health.present) == set(VIEW_NAMES)


@pytest.mark.parametrize("batch", [1, 3, 12])
def test_few_rows_raise_no_false_alarm(batch: int) -> None:
    assert not [
        w for w in make_mem().diagnose(make_random_features(batch, 4, 16), beta=1.0).list_warnings() if "view `" in w
    ]


def test_features_that_are_not_finite_are_said_to_be_worthless() -> None:
    features = make_random_features(64, 4, 16)
    features.specific[3, 1, 2] = torch.nan
    assert "not finite" in make_mem().diagnose(features, beta=1.0).summarize()


def test_effective_rank_of_known_matrices() -> None:
    assert effective_rank(torch.ones(10, 4)) == 0.0
    assert effective_rank(torch.randn(1, 4)) == 0.0
    line = torch.arange(10.0)[:, None] * torch.ones(4)
    assert effective_rank(line) == pytest.approx(1.0)
    assert effective_rank(torch.cat([torch.eye(4), -torch.eye(4)])) == pytest.approx(4.0)

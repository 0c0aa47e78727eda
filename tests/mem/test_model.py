import copy
import dataclasses

import pytest
import torch

from manyview.mem import MEM, BetaSchedule, MEMConfig
from manyview.mem.health import effective_rank
from tests.mem.helpers import NAMES, images, random_features, random_mask, small_mem


def test_a_training_step_lowers_the_loss() -> None:
    mem, views, later = small_mem(), images(32), images(32, seed=1)
    optimizer = torch.optim.Adam(mem.encoder.parameters(), lr=1e-3)
    first, _ = mem.loss(mem.encode(views), mem.encode(later))
    for _ in range(20):
        features = mem.encode(views)
        loss, _ = mem.loss(features, mem.encode(later))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mem.update_discriminator(features)
    assert loss < first


def test_loss_asks_for_later_features_only_if_it_uses_them() -> None:
    features = small_mem().encode(images(4))
    assert small_mem(temporal_coef=0.0).loss(features)[0].isfinite()
    with pytest.raises(ValueError, match=r"loss\(features, later\), or set temporal_coef=0"):
        small_mem(temporal_coef=0.5).loss(features)


@pytest.mark.parametrize("temporal", ["closeness", "contrast"])
def test_what_follows_in_time_is_drawn_closer(temporal: str) -> None:
    mem = small_mem(temporal=temporal, temporal_coef=1.0, floor_coef=1.0)
    views = images(32)
    later = (views.int() + 20).clamp(0, 255).to(torch.uint8)

    def apart() -> float:
        now, then = mem.encode(views).terms, mem.encode(later).terms
        return float(((now - then).norm(dim=-1).mean() / torch.cdist(now.flatten(1), then.flatten(1)).mean()).detach())

    before = apart()
    optimizer = torch.optim.Adam(mem.parameters(), lr=1e-3)
    for _ in range(30):
        loss, _ = mem.loss(mem.encode(views), mem.encode(later))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert apart() < before


def test_metrics_are_detached_and_sum_to_the_loss() -> None:
    mem = small_mem(
        diff_coef=0.3, con_coef=0.2, adv_coef=0.1, floor_coef=2.0, decorrelation_coef=0.7, temporal_coef=0.5
    )
    loss, metrics = mem.loss(mem.encode(images(8)), mem.encode(images(8, seed=1)))
    assert not any(value.requires_grad for value in metrics.values())
    weights = {"diff_loss": 0.3, "con_loss": 0.2, "adv_loss": 0.1, "floor_loss": 2.0}
    weights |= {"decorrelation_loss": 0.7, "temporal_loss": 0.5}
    assert sum(w * metrics[name] for name, w in weights.items()).item() == pytest.approx(loss.item(), rel=1e-5)  # type: ignore[union-attr]


def test_the_same_seed_gives_the_same_model() -> None:
    one, other = small_mem(seed=3).state_dict(), small_mem(seed=3).state_dict()
    assert all(value.equal(other[name]) for name, value in one.items())


@pytest.mark.parametrize("scale", ["std", "centered"])
def test_a_scaled_reward_spreads_by_about_one(scale: str) -> None:
    mem = small_mem(reward_scale=scale)
    for seed in range(300):
        reward = mem.reward(random_features(64, 4, 16, seed=seed))
    assert reward.std().item() == pytest.approx(1.0, abs=0.25)
    if scale == "centered":
        assert reward.mean().item() == pytest.approx(0.0, abs=0.4)


def test_relative_distances_forget_the_scale_of_the_features() -> None:
    small, large = small_mem(distance_scale="relative"), small_mem(distance_scale="relative")
    for seed in range(3):
        features = random_features(64, 4, 16, seed=seed)
        bigger = features._replace(
            shared=features.shared * 100, specific=features.specific * 100, shared_mean=features.shared_mean * 100
        )
        torch.testing.assert_close(small.reward(features), large.reward(bigger), rtol=1e-4, atol=1e-5)


def test_running_scales_move_in_training_and_rest_in_evaluation() -> None:
    mem = small_mem(reward_scale="std", distance_scale="relative", bank=32)
    mem.reward(random_features(64, 4, 16))
    before = copy.deepcopy(mem.state_dict())
    mem.eval().reward(random_features(64, 4, 16, seed=1))
    mem.train().health(random_features(64, 4, 16, seed=1), beta=0.1)
    assert mem.training
    assert all(value.equal(before[name]) for name, value in mem.state_dict().items())
    mem.reward(random_features(64, 4, 16, seed=1))
    assert any(not value.equal(before[name]) for name, value in mem.state_dict().items())


def test_running_moments_are_unbiased_from_the_first_batch() -> None:
    mem = small_mem(reward_scale="std")
    features = random_features(64, 4, 16)
    raw = small_mem().reward(features)
    torch.testing.assert_close(mem.reward(features), raw / raw.std(correction=0))


def test_the_bank_adds_the_rows_of_recent_batches() -> None:
    mem = small_mem(bank=20, k=1)
    first, second = random_features(12, 4, 16), random_features(12, 4, 16, seed=1)
    torch.testing.assert_close(mem.reward(first), small_mem(k=1).reward(first))  # an empty bank adds nothing
    assert mem.reward(first).eq(0).all()  # the same rows again: their copies are in the bank
    for seed in (1, 2):
        mem.reward(random_features(12, 4, 16, seed=seed))
    assert mem.reward(first).gt(0).all()  # pushed out by now
    assert mem.bank is not None
    assert not mem.eval().reward(second).eq(0).all()


def test_a_bank_smaller_than_the_batch_keeps_its_last_rows() -> None:
    mem = small_mem(bank=5)
    features = random_features(12, 4, 16)
    mem.reward(features)
    assert mem.bank is not None
    assert mem.bank.points.transpose(0, 1).equal(features.terms[-5:])


def test_a_window_searches_the_rollout_alone() -> None:
    mem, features = small_mem(bank=32), random_features(64, 4, 16)
    mem.reward(features)
    assert mem.reward(features, window=64).equal(small_mem().reward(features))


def test_beta_names_its_unit() -> None:
    assert BetaSchedule().unit == "agent_steps"
    assert BetaSchedule(0.1, 1e-5, "episodes")(10) == pytest.approx(0.1 * (1 - 1e-5) ** 10)


@pytest.mark.parametrize(
    ("field", "value"), [("k", 0), ("diff_coef", -1.0), ("temporal_temperature", 0.0), ("floor", -0.1), ("bank", -1)]
)
def test_impossible_values_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(MEMConfig(), **{field: value})  # type: ignore[arg-type]


def test_view_names_must_differ() -> None:
    with pytest.raises(ValueError, match="different view names"):
        MEM(("a", "a"), (3, 24, 24))


def test_literal_is_the_papers_text_without_our_terms() -> None:
    literal = MEMConfig.literal()
    assert (literal.floor_coef, literal.temporal_coef, literal.bank) == (0.0, 0.0, 0)
    assert (literal.l1, literal.adversary, literal.others) == ("sum", "reversal", "pooled")


def test_healthy_features_are_called_healthy() -> None:
    mem = small_mem()
    health = mem.health(random_features(256, 4, 16), beta=0.05)
    assert health.verdict().startswith("healthy")
    assert sum(health.share.values()) == pytest.approx(1.0)
    assert health.chance == pytest.approx(0.25)
    assert health.contrast == pytest.approx(0.05 * health.reward_std)
    assert health.rank["front"] == pytest.approx(16, abs=1.0)
    assert "share/shared mean" in health.metrics()


def test_a_collapsed_view_is_named_with_what_to_do() -> None:
    features = random_features(64, 4, 16)
    features.specific[:, 3] = features.specific[0, 3] + 1e-3 * torch.randn(64, 16)
    (warning,) = small_mem().health(features, beta=0.05).warnings()
    assert warning.startswith("view `wrist` has collapsed")
    assert "floor_coef" in warning


def test_a_view_in_one_direction_is_called_narrow() -> None:
    features = random_features(64, 4, 16)
    features.specific[:, 1] = torch.randn(64, 1) * torch.randn(16)
    assert any(
        "view `side` has narrowed to 1.0 directions" in w for w in small_mem().health(features, beta=1).warnings()
    )


def test_shared_features_that_tell_their_view_are_reported() -> None:
    mem = small_mem()
    features = random_features(64, 4, 16)
    features.shared.add_(10 * mem.discriminator.weight.detach() / mem.discriminator.weight.norm(dim=1, keepdim=True))
    health = mem.health(features, beta=1.0)
    assert health.discriminator_accuracy > 0.9
    assert any("tell their view" in warning for warning in health.warnings())


def test_overlap_faint_bonus_and_absence_are_reported() -> None:
    mem = small_mem()
    features = random_features(64, 4, 16)
    overlapping = features._replace(shared=features.specific.clone())
    assert any("overlap" in warning for warning in mem.health(overlapping, beta=1.0).warnings())
    assert any("no longer steers" in warning for warning in mem.health(features, beta=1e-9).warnings())
    mask = torch.ones(64, 4, dtype=torch.bool)
    mask[:60, 2] = False
    absent = mem.health(random_features(64, 4, 16, mask=mask), beta=1.0).warnings()
    assert "view `top` is absent in 94% of the batch: check the camera." in absent


def test_health_with_missing_views_is_finite() -> None:
    mem = small_mem()
    health = mem.health(mem.encode(images(64), random_mask(64)), beta=0.1)
    assert all(value == value for value in health.metrics().values())
    assert set(health.present) == set(NAMES)


def test_effective_rank_of_known_matrices() -> None:
    assert effective_rank(torch.ones(10, 4)) == 0.0
    assert effective_rank(torch.randn(1, 4)) == 0.0
    line = torch.arange(10.0)[:, None] * torch.ones(4)
    assert effective_rank(line) == pytest.approx(1.0)
    assert effective_rank(torch.cat([torch.eye(4), -torch.eye(4)])) == pytest.approx(4.0)

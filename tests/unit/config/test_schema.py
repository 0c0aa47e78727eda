"""Settings that do not fit together are refused with a reason."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest

from manyview.config.overrides import apply_overrides
from manyview.config.presets import load_preset
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS, BonusConfig, OwnEncoderConfig, RunSettings
from manyview.methods.registry import Part
from manyview.training import RunConfig, make_config
from manyview.utils.validation import SettingError

TASK = "toy/hidden_goal_continuous"


def make_changed_config(method: str, **overrides: Any) -> RunConfig:
    """Return the config of a method on the toy task, with overrides."""
    return apply_overrides(make_config(TASK, method=method), overrides)


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("drqv2+mem", {"seed": -1}, "seed: expected at least 0 and less than"),
        ("drqv2+mem", {"seed": 2**64}, "seed: expected at least 0 and less than"),
        (
            "drqv2+mem",
            {"bonus": {"name": "ride"}},
            "bonus=ride learns from rollout data, drqv2 from replay data: expected agent ppo, got",
        ),
        ("ppo+ride", {"agent": {"name": "sac"}}, "expected agent ppo, got sac"),
        ("drqv2+mem", {"bonus": {"encoder": {"lr": 0.1}}}, "bonus.encoder has no effect: the bonus shares the encoder"),
        (
            "drqv2+mem",
            {"bonus": {"target_encoder": True}},
            "bonus.target_encoder needs representation=mem and an agent",
        ),
        ("sac+pixel+mem", {"bonus": {"target_encoder": True}}, "bonus.target_encoder needs .*, got pixel and sac"),
        ("drqv2+mem", {"bonus": {"unit": "rollouts"}}, "bonus.unit must be agent_steps for drqv2, got 'rollouts'"),
        ("sac+re3", {"bonus": {"unit": "episodes"}}, "bonus.unit must be agent_steps for sac"),
        (
            "ppo+mem",
            {"bonus": {"rewarded_state": "next"}},
            "bonus.rewarded_state=next needs an agent with a replay buffer",
        ),
        ("ppo+mem", {"bonus": {"bank": 64}}, "bonus.bank needs an off-policy agent, got ppo with bonus.bank=64"),
        ("ppo+mem", {"bonus": {"k": 256}}, "rollout.steps must be more than bonus.k, got 256 and 256"),
        (
            "ppo+re3",
            {"agent": {"neighbors": "pooled", "window": 4}, "bonus": {"k": 4}},
            "agent.window must be more than bonus.k",
        ),
        (
            "ppo+mem",
            {"agent": {"neighbors": "pooled"}, "rollout": {"envs": 1, "steps": 3}},
            "rollout.envs times rollout.steps must",
        ),
        (
            "drqv2+mem",
            {"bonus": {"reward_frames": "clean"}, "replay": {"augmentation": "crop"}},
            "bonus.reward_frames: expected None or augmented with replay.augmentation=crop, .*, got clean",
        ),
        (
            "sac+mem",
            {"agent": {"encoder_tau": 0.05}, "bonus": {"target_encoder": True, "reward_frames": "clean"}},
            "bonus.reward_frames: expected None or augmented with bonus.target_encoder=true, got clean",
        ),
        (
            "sac+pixel+mem",
            {"bonus": {"reward_frames": "augmented"}},
            "bonus.reward_frames: expected None or clean, since r̂ of bonus.encoder is of clean frames, got augmented",
        ),
        (
            "sac+mem",
            {"bonus": {"reward_frames": "augmented", "search": "buffer"}},
            "bonus.reward_frames: expected None or clean, since stored features are of clean frames, got augmented",
        ),
        (
            "ppo+mem",
            {"bonus": {"reward_frames": "augmented"}},
            "bonus.reward_frames: expected None for ppo, .*, got aug",
        ),
        (
            "ppo+pixel+mem",
            {"bonus": {"reward_frames": "clean"}},
            "bonus.reward_frames: expected None for ppo, .*, got cl",
        ),
        (
            "sac+mem",
            {"bonus": {"bank": 64}, "replay": {"augmentation": "shift"}},
            "bonus.bank: expected 0 with frames that replay.augmentation=shift changes, got 64. Set .*=clean",
        ),
        ("ppo+mem", {"bonus": {"search": "buffer"}}, "bonus.search: expected batch for ppo, .*, got buffer"),
        ("ppo+re3", {"bonus": {"search": "batch"}}, "bonus.search: expected buffer for ppo, .*, got batch"),
        ("ppo+re3", {"bonus": {"k": 256}}, "rollout.steps must be more than bonus.k, got 256 and 256"),
        ("ppo+none", {"agent": {"window": 64}}, "agent.window: expected neighbors=pooled, got env with 64"),
        (
            "drqv2+none",
            {"agent": {"projection_dim": 64}},
            "agent.projection_dim: expected structure=official, got shared with 64",
        ),
        ("drqv2+none", {"agent": {"structure": "official"}}, "expected representation=pixel with .*projection=true"),
        ("drqv2+mem", {"agent": {"structure": "official"}}, "expected representation=pixel with .*representation=mem"),
        ("sac+mem", {"env": {"augmented_view": "crop"}}, "env.augmented_view needs an on-policy agent, got sac"),
        (
            "drqv2+none",
            {"agent": {"critic_trains_encoder": False}},
            "nothing would train the encoder: representation=pixel",
        ),
        (
            "sac+re3",
            {"agent": {"critic_trains_encoder": False}},
            "nothing would train the encoder: representation=pixel",
        ),
        ("ppo+mem", {"scale": {"actors": 2}}, "scale.actors needs an off-policy agent, got ppo"),
        ("sac+mem", {"scale": {"learners": 2}}, "scale.learners=2 needs actors: expected scale.actors of at least 1"),
        ("sac+mem", {"scale": {"replay_shards": 2}}, "scale.replay_shards=2 needs actors"),
        ("sac+mem", {"scale": {"actors": 2, "learners": 3}}, "replay.batch_size must be a multiple of"),
        ("sac+mem", {"scale": {"actors": 1, "replay_shards": 2}}, "every replay shard needs at least one actor"),
        (
            "sac+mem",
            {"scale": {"actors": 1, "chunk_steps": 401}},
            "scale.chunk_steps must be from replay.n_step, 3, to 400",
        ),
        ("sac+mem", {"scale": {"actors": 1, "chunk_steps": 2}}, "scale.chunk_steps must be from replay.n_step, 3"),
    ],
)
def test_settings_that_do_not_fit_are_refused(method: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_changed_config(method, **overrides)


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("sac+mem", {"agent": {"encoder_tau": 0.05}, "bonus": {"target_encoder": True}}),
        ("ppo+mem", {"bonus": {"unit": "rollouts", "k": 255}}),
        ("ppo+mem", {"env": {"augmented_view": "crop"}}),
        ("ppo+ride", {"rollout": {"steps": 2}}),
        ("drqv2+curl+re3", {"agent": {"critic_trains_encoder": False}}),
        ("drqv2+mem", {"bonus": {"rewarded_state": "next"}}),
        ("drqv2+mem", {"bonus": {"reward_frames": "augmented"}}),
        ("sac+pixel+mem", {"bonus": {"reward_frames": "clean"}, "replay": {"augmentation": "crop"}}),
        ("sac+mem", {"bonus": {"reward_frames": "clean", "search": "buffer"}}),
        ("ppo+none", {"agent": {"neighbors": "pooled", "window": 64}}),
        (
            "drqv2+none",
            {"agent": {"structure": "official", "projection_dim": 64}, "representation": {"projection": False}},
        ),
        ("sac+mem", {"scale": {"actors": 2, "learners": 2, "replay_shards": 2, "chunk_steps": 400}}),
    ],
)
def test_settings_at_their_limits_are_accepted(method: str, overrides: dict[str, Any]) -> None:
    make_changed_config(method, **overrides)


@dataclass(frozen=True, kw_only=True)
class OneStepConfig(BonusConfig):
    """Settings of a third-party bonus that needs one-step returns."""

    width: int = 8

    def check(self, run: RunSettings) -> None:
        super().check(run)
        if run.replay.n_step > 1:
            raise SettingError("width", f"expected 0 with replay.n_step={run.replay.n_step}, got {self.width}")


def test_a_third_party_part_can_refuse_the_settings_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BONUSES._parts, "picky", Part("picky", OneStepConfig, lambda *_: None, ("replay", "rollout")))
    with pytest.raises(ValueError, match=r"^bonus\.width: expected 0 with replay\.n_step=3, got 8$"):
        make_changed_config("sac+pixel+picky")
    config = replace(make_changed_config("sac+none", replay={"n_step": 1}), bonus=OneStepConfig())
    assert config.bonus_name == "picky"
    with pytest.raises(ValueError, match=r"^bonus\.width: expected 0 with replay\.n_step=2, got 8$"):
        apply_overrides(config, {"replay": {"n_step": 2}})


@pytest.mark.parametrize("preset", ["minute", "cpu", "minute,cpu"])
def test_presets_fit_all_parts(preset: str) -> None:
    for agent, representation, bonus in product(
        AGENTS.list_names(), REPRESENTATIONS.list_names(), BONUSES.list_names()
    ):
        if all(part.shares_data(AGENTS[agent]) for part in (REPRESENTATIONS[representation], BONUSES[bonus])):
            load_preset(preset, task=TASK, method=f"{agent}+{representation}+{bonus}", seed=1)


def test_the_mem_bonus_has_its_own_encoder_unless_it_can_share_one() -> None:
    assert make_changed_config("drqv2+mem").bonus.encoder is None
    for method in ("drqv2+pixel+mem", "sac+curl+mem"):
        assert make_changed_config(method).bonus.encoder == OwnEncoderConfig()
    config = make_changed_config("drqv2+pixel+mem", bonus={"encoder": {"lr": 0.1}})
    assert config.bonus.encoder == OwnEncoderConfig(lr=0.1)
    assert make_changed_config("drqv2+mem", representation={"name": "pixel"}).bonus.encoder == OwnEncoderConfig()

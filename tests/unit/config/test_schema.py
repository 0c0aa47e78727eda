"""Settings that do not fit together are refused with a reason."""

from typing import Any

import pytest

from manyview.config.overrides import apply_overrides
from manyview.methods import OwnEncoderConfig
from manyview.train import RunConfig, make_config

TASK = "toy/hidden_goal_continuous"


def make(method: str, **overrides: Any) -> RunConfig:
    return apply_overrides(make_config(TASK, method=method), overrides)


@pytest.mark.parametrize(
    ("method", "overrides", "says"),
    [
        ("drqv2+mem", {"seed": -1}, "seed: expected at least 0 and less than"),
        ("drqv2+mem", {"seed": 2**64}, "seed: expected at least 0 and less than"),
        (
            "drqv2+mem",
            {"bonus": {"name": "ride"}},
            "bonus=ride learns from a rollout, drqv2 from a replay: expected agent ppo, got",
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
            "bonus.reward_frames=clean needs images of the encoder's size, got replay.augmentation=crop",
        ),
        ("sac+mem", {"env": {"augmented_view": "crop"}}, "env.augmented_view needs agent ppo, got sac"),
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
def test_settings_that_do_not_fit_are_refused(method: str, overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make(method, **overrides)


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("sac+mem", {"agent": {"encoder_tau": 0.05}, "bonus": {"target_encoder": True}}),
        ("ppo+mem", {"bonus": {"unit": "rollouts", "k": 255}}),
        ("ppo+mem", {"env": {"augmented_view": "crop"}}),
        ("ppo+ride", {"rollout": {"steps": 2}}),
        ("drqv2+curl+re3", {"agent": {"critic_trains_encoder": False}}),
        ("drqv2+mem", {"bonus": {"rewarded_state": "next"}}),
        ("sac+mem", {"scale": {"actors": 2, "learners": 2, "replay_shards": 2, "chunk_steps": 400}}),
    ],
)
def test_settings_at_the_edge_of_a_refusal_are_accepted(method: str, overrides: dict[str, Any]) -> None:
    make(method, **overrides)


def test_the_bonus_of_mem_has_an_encoder_of_its_own_unless_it_can_share_one() -> None:
    assert make("drqv2+mem").bonus.encoder is None
    for method in ("drqv2+pixel+mem", "sac+curl+mem"):
        assert make(method).bonus.encoder == OwnEncoderConfig()
    own = make("drqv2+pixel+mem", bonus={"encoder": {"lr": 0.1}})
    assert own.bonus.encoder == OwnEncoderConfig(lr=0.1)
    assert make("drqv2+mem", representation={"name": "pixel"}).bonus.encoder == OwnEncoderConfig()

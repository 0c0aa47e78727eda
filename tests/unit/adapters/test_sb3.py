"""Adapters for Stable-Baselines3."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.testing import assert_array_equal
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch.testing import assert_close

import manyview
from manyview.adapters.sb3 import MEMCallback, MEMExtractor, MEMReplayBuffer, MEMRolloutBuffer, MEMSACPolicy
from manyview.agents.advantages import gae
from manyview.envs.wrappers.faults import Fault
from manyview.mem import BetaSchedule, Features
from tests.support.adapters import (
    BONUSES,
    IMAGE_SHAPE,
    TOLERANCE,
    VIEW_NAMES,
    compute_bonuses,
    make_images,
    make_library_bonus,
    make_mem_config,
    make_rollout,
    stack_images,
)

ENVS, STEPS = 3, 25
BETA = 0.5


def return_beta(_: int) -> float:
    return BETA


def make_space(*, mask: bool = True, joints: bool = False) -> spaces.Dict:
    entries: list[tuple[str, spaces.Space[Any]]] = [
        (name, spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)) for name in VIEW_NAMES
    ]
    if joints:
        entries.append(("joints", spaces.Box(-np.inf, np.inf, (3,), np.float32)))
    if mask:
        entries.append(("mask", spaces.MultiBinary(len(VIEW_NAMES))))
    return spaces.Dict(entries)


def make_policy_kwargs(**changes: Any) -> dict[str, Any]:
    return {
        "features_extractor_class": MEMExtractor,
        "features_extractor_kwargs": {"config": make_mem_config(**changes)},
    }


def make_ppo(
    task: str = "toy/hidden_goal", *, seed: int = 0, policy: dict[str, Any] | None = None, **changes: Any
) -> PPO:
    env = make_vec_env(partial(manyview.make, task), ENVS, seed=seed)
    settings: dict[str, Any] = {"n_steps": STEPS, "batch_size": 15, "n_epochs": 2, "seed": seed, "device": "cpu"}
    settings["rollout_buffer_class"] = MEMRolloutBuffer
    return PPO("MultiInputPolicy", env, policy_kwargs=policy or make_policy_kwargs(), **(settings | changes))


def make_sac(*, seed: int = 0, envs: int = 1, policy: dict[str, Any] | None = None, **changes: Any) -> SAC:
    env = make_vec_env(partial(manyview.make, "toy/hidden_goal_continuous"), envs, seed=seed)
    settings: dict[str, Any] = {"buffer_size": 200, "batch_size": 16, "learning_starts": 30, "device": "cpu"}
    settings |= {"seed": seed, "replay_buffer_class": MEMReplayBuffer}
    policy = {"features_extractor_kwargs": {"config": make_mem_config()}} if policy is None else policy
    return SAC(MEMSACPolicy, env, policy_kwargs=policy, **(settings | changes))


def connect_callback(model: PPO | SAC, callback: MEMCallback) -> Any:
    """Connect the callback as `learn` does."""
    _, connected_callback = model._setup_learn(1_000, callback)
    connected_callback.on_training_start({}, {})
    return connected_callback


def collect_rollout(model: PPO, callback: MEMCallback) -> MEMRolloutBuffer:
    """Fill one rollout, as `learn` does before it trains."""
    buffer = model.rollout_buffer
    assert isinstance(buffer, MEMRolloutBuffer)
    assert model.env is not None
    model.collect_rollouts(model.env, connect_callback(model, callback), buffer, STEPS)
    return buffer


def get_extractor(model: PPO | SAC) -> MEMExtractor:
    extractor = model.policy.features_extractor if isinstance(model, PPO) else model.critic.features_extractor
    assert isinstance(extractor, MEMExtractor)
    return extractor


def fill_replay_buffer(model: SAC, *, steps: int = 60) -> None:
    """Fill the replay buffer by random actions."""
    model.learning_starts = steps
    model.learn(steps, callback=MEMCallback(return_beta))


# Features extractor


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_pixels_arrive_unchanged_with_and_without_normalization(agent: str, normalize: bool) -> None:
    policy = {**make_policy_kwargs(), "normalize_images": normalize}
    model: Any = make_ppo(policy=policy) if agent == "ppo" else make_sac(policy=policy)
    network = model.policy if agent == "ppo" else model.critic
    pixels = np.arange(400, dtype=np.int64).reshape(1, *IMAGE_SHAPE)
    images = {name: (pixels + row).astype(np.uint8) for row, name in enumerate(VIEW_NAMES)}  # all values, in both views
    observation = {name: torch.as_tensor(image) for name, image in images.items()} | {"mask": torch.ones(1, 2)}
    extractor = get_extractor(model)
    with torch.no_grad():
        state = network.extract_features(observation, extractor)
    assert_close(state, extractor.mem.encode(stack_images(images)).state, rtol=0, atol=0)


def test_an_absent_view_is_masked_and_vectors_follow_the_state() -> None:
    extractor = MEMExtractor(make_space(joints=True), make_mem_config(), normalized_image=True)
    images, joints = make_images(2), torch.arange(6.0).view(2, 3)
    mask = torch.tensor([[True, True], [False, True]])
    observation = {name: torch.as_tensor(image).float() for name, image in images.items()}
    state = extractor(observation | {"joints": joints, "mask": mask.float()})
    assert extractor.features_dim == state.shape[1] == 3 * 8 + 3
    assert_close(state[:, :24], extractor.mem.encode(stack_images(images), mask).state)
    assert_close(state[:, 24:], joints)
    features = extractor.encode({**images, "joints": joints.numpy(), "mask": mask.numpy()})
    assert_array_equal(features.mask, mask)
    assert_close(features.state, state[:, :24])


def test_many_rows_are_encoded_in_parts() -> None:
    extractor = MEMExtractor(make_space(mask=False), make_mem_config())
    images = make_images(600)
    assert_close(extractor.encode(images).state, extractor.mem.encode(stack_images(images)).state)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 255, IMAGE_SHAPE, np.uint8), "expected a dict of uint8 images"),
        (spaces.Dict({"joints": spaces.Box(-1, 1, (2,))}), "expected at least one image"),
        (
            spaces.Dict({"a": spaces.Box(0, 255, IMAGE_SHAPE, np.uint8), "b": spaces.Box(0, 255, (1, 9, 9), np.uint8)}),
            "shape",
        ),
    ],
)
def test_other_observations_are_refused(space: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        MEMExtractor(space)


# Training of the encoder


def test_the_loss_of_mem_is_added_to_that_of_the_algorithm_in_one_backward_pass() -> None:
    extractor = MEMExtractor(make_space(mask=False), make_mem_config(), normalized_image=True)
    mem, images = extractor.mem, make_images(8)
    next_features = extractor.encode(make_images(8, seed=1))
    observation = {name: torch.as_tensor(image).float() for name, image in images.items()}
    features = mem.encode(stack_images(images))
    loss, _ = mem.compute_loss(features, next_features)
    (features.state.square().sum() + loss).backward()
    expected = {name: p.grad.clone() for name, p in mem.named_parameters() if p.grad is not None}
    mem.zero_grad()

    extractor.train_next_batch(next_features)
    with torch.no_grad():
        extractor(observation)  # without gradients: not part of the loss
    extractor(observation).square().sum().backward()
    assert {name for name, p in mem.named_parameters() if p.grad is not None} == expected.keys()
    for name, parameter in mem.named_parameters():
        if name in expected:
            assert_close(parameter.grad, expected[name], msg=name)

    mem.zero_grad()
    mem.encode(stack_images(images)).state.square().sum().backward()
    gradients_without_loss = {name: p.grad.clone() for name, p in mem.encoder.named_parameters() if p.grad is not None}
    mem.zero_grad()
    extractor(observation).square().sum().backward()  # without features of a next batch
    for name, parameter in mem.encoder.named_parameters():
        assert_close(parameter.grad, gradients_without_loss[name], msg=name)


def test_the_actor_of_sac_never_trains_the_encoder_and_the_critic_does() -> None:
    model = make_sac()
    fill_replay_buffer(model)
    extractor = get_extractor(model)
    assert model.actor.features_extractor is model.critic.features_extractor
    encoder = list(extractor.mem.encoder.parameters())

    def get_parameters(optimizer: torch.optim.Optimizer) -> set[int]:
        return {id(p) for group in optimizer.param_groups for p in group["params"]}

    encoder_ids, actor_ids = {id(p) for p in encoder}, get_parameters(model.actor.optimizer)
    assert not encoder_ids & actor_ids
    assert encoder_ids <= get_parameters(model.critic.optimizer)
    assert actor_ids == {id(p) for n, p in model.actor.named_parameters() if "features_extractor" not in n}

    samples: Any = model.replay_buffer.sample(16)  # type: ignore[union-attr]
    actions, log_prob = model.actor.action_log_prob(samples.observations)
    values = torch.cat(model.critic(samples.observations, actions), dim=1)
    (log_prob.mean() - values.mean()).backward()
    assert all(p.grad is None for p in encoder), "of the actor's loss"
    assert all(p.grad is not None for p in model.actor.mu.parameters()), "which still reaches the actor"
    sum(v.mean() for v in model.critic(samples.observations, samples.actions)).backward()
    assert all(p.grad is not None for p in encoder)


def test_target_critics_have_a_copy_of_the_encoder_that_follows_slowly() -> None:
    model = make_sac(tau=0.1, learning_rate=1e-2)
    target = model.critic_target.features_extractor
    assert target is not model.critic.features_extractor
    fill_replay_buffer(model)
    old_parameters = {name: p.detach().clone() for name, p in target.named_parameters()}
    model.train(1, batch_size=16)
    online_parameters = dict(model.critic.features_extractor.named_parameters())
    for name, parameter in target.named_parameters():
        assert_close(parameter, 0.9 * old_parameters[name] + 0.1 * online_parameters[name], msg=name)
    assert any(not torch.equal(p, old_parameters[n]) for n, p in target.named_parameters())


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_training_trains_encoder_and_discriminator(agent: str) -> None:
    model: Any = make_ppo() if agent == "ppo" else make_sac()
    mem = get_extractor(model).mem
    old_parameters = {name: p.detach().clone() for name, p in mem.named_parameters()}
    callback = MEMCallback(return_beta)
    model.learn(2 * ENVS * STEPS, callback=callback, log_interval=1_000)
    unchanged = {name for name, p in mem.named_parameters() if torch.equal(p, old_parameters[name])}
    assert unchanged == {"encoder.absent_token"}
    assert {"mem_loss", "temporal_loss", "discriminator_loss"} <= callback.extractor.metrics.keys()
    metrics = model.logger.name_to_value
    assert {"mem/reward_int", "mem/beta", "mem/mem_loss"} <= metrics.keys()
    assert metrics["mem/beta"] == BETA
    assert metrics["mem/reward_int"] > 0


# Bonus of a replay batch


@pytest.mark.parametrize("name", BONUSES)
def test_the_bonus_of_sampled_batches_is_that_of_the_library(name: str) -> None:
    changes = BONUSES[name]
    model = make_sac(envs=2, policy={"features_extractor_kwargs": {"config": make_mem_config(**changes)}})
    fill_replay_buffer(model)
    model.policy.set_training_mode(True)
    buffer: Any = model.replay_buffer
    library = make_library_bonus(get_extractor(model).mem, **changes)
    for draw in range(3):
        np.random.seed(draw)
        samples = buffer.sample(32)
        np.random.seed(draw)
        rows = np.random.randint(0, 30, size=32), np.random.randint(2, size=32)
        views = stack_images({view: buffer.observations[view][rows] for view in VIEW_NAMES})
        expected = compute_bonuses(library, views, torch.ones(32, 2).bool(), torch.as_tensor(rows[0] * 2 + rows[1]))
        bonus = (samples.rewards.squeeze(1) - torch.as_tensor(buffer.rewards[rows])) / BETA
        assert_close(bonus, expected, rtol=0, atol=TOLERANCE)


def test_apart_from_the_bonus_batches_are_those_of_stable_baselines() -> None:
    model = make_sac(envs=2)
    fill_replay_buffer(model)
    mem_buffer: Any = model.replay_buffer
    sb3_buffer = DictReplayBuffer(200, model.observation_space, model.action_space, "cpu", n_envs=2)  # type: ignore[arg-type]
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "pos", "full"):
        setattr(sb3_buffer, name, getattr(mem_buffer, name))
    assert mem_buffer.timeouts.any()
    mem_buffer.rewards[:] = np.random.default_rng(0).normal(size=mem_buffer.rewards.shape)
    connect_callback(model, MEMCallback(BetaSchedule(beta0=0)))
    env = VecNormalize(model.env, norm_obs=False, norm_reward=True, clip_reward=1.0)  # type: ignore[arg-type]
    env.ret_rms.var = np.array(4.0)
    for normalization_env in (None, env):
        batches = []
        for buffer in (mem_buffer, sb3_buffer):
            np.random.seed(7)
            batches.append(buffer.sample(40, env=normalization_env))
        for field, mem_values, sb3_values in zip(batches[0]._fields, *batches, strict=True):
            assert_close(mem_values, sb3_values, rtol=0, atol=0, msg=field)


def test_stored_rewards_do_not_change() -> None:
    model = make_sac()
    fill_replay_buffer(model)
    buffer: Any = model.replay_buffer
    expected = buffer.rewards.copy()
    buffer.sample(32)
    assert_array_equal(buffer.rewards, expected)


# Bonus of a rollout


def get_views(buffer: MEMRolloutBuffer, new_obs: dict[str, Any]) -> torch.Tensor:
    """Return the views [T + 1, E, V, C, H, W] of a rollout."""
    observations: Any = buffer.observations
    return stack_images(
        {name: np.concatenate([observations[name], new_obs[name][None]]) for name in DEEP_SEA_VIEWS}, DEEP_SEA_VIEWS
    )


DEEP_SEA_VIEWS = ("depth", "column")


def collect_deep_sea_rollout(callback: MEMCallback, **changes: Any) -> tuple[PPO, MEMRolloutBuffer]:
    model = make_ppo("toy/deep_sea", policy=make_policy_kwargs(**changes))
    return model, collect_rollout(model, callback)


@pytest.mark.parametrize("name", sorted(BONUSES.keys() - {"bank"}))
@pytest.mark.parametrize("window", [None, 40])
def test_the_bonus_of_a_rollout_is_that_of_the_library(name: str, window: int | None) -> None:
    changes = BONUSES[name]
    callback = MEMCallback(return_beta, window=window)
    model, buffer = collect_deep_sea_rollout(callback, **changes)
    _, buffer_without_bonus = collect_deep_sea_rollout(MEMCallback(BetaSchedule(beta0=0)), **changes)
    views = get_views(buffer, callback.locals["new_obs"])
    library = make_library_bonus(get_extractor(model).mem, **changes)
    rollout = make_rollout(views, torch.ones(views.shape[:3]).bool())
    expected = library.compute_rollout(rollout, None, window=window)
    bonus = torch.as_tensor(buffer.rewards - buffer_without_bonus.rewards) / BETA
    assert_close(bonus, expected, rtol=0, atol=2e-6 if name == "std" else 1e-6)


def test_returns_of_a_rollout_are_recomputed_with_the_bonus() -> None:
    callback = MEMCallback(return_beta)
    _, buffer = collect_deep_sea_rollout(callback)
    rewards, values = torch.as_tensor(buffer.rewards), torch.as_tensor(buffer.values)
    done = torch.as_tensor(np.concatenate([buffer.episode_starts[1:], callback.locals["dones"][None]])).bool()
    assert done.any()
    next_values = torch.cat([values[1:], callback.locals["values"].view(1, -1)])
    next_values = torch.where(done, 0.0, next_values)
    expected = gae(rewards, values, next_values, done, discount=0.99, gae_lambda=0.95)
    assert_close(torch.as_tensor(buffer.advantages), expected, rtol=1e-5, atol=1e-5)
    assert_close(torch.as_tensor(buffer.returns), expected + values, rtol=1e-5, atol=1e-5)


def test_each_minibatch_is_followed_by_the_features_of_its_next_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    callback = MEMCallback(return_beta)
    model, buffer = collect_deep_sea_rollout(callback)
    extractor = get_extractor(model)
    views = get_views(buffer, callback.locals["new_obs"])
    done = np.concatenate([buffer.episode_starts[1:], callback.locals["dones"][None]]).astype(bool)
    with torch.no_grad():
        expected = extractor.mem.encode(views[1:].flatten(0, 1))
    next_batches: list[Features] = []
    monkeypatch.setattr(extractor, "train_next_batch", next_batches.append)
    rng = np.random.RandomState(3)
    np.random.seed(3)
    list(buffer.get(20))
    order = rng.permutation(ENVS * STEPS)  # environment by environment
    indices = torch.as_tensor(order % STEPS * ENVS + order // STEPS)
    features = Features(*(torch.cat(parts) for parts in zip(*next_batches, strict=True)))
    assert_close(features.specific, expected.specific[indices])
    assert_array_equal(features.mask.all(1), ~done.flatten()[indices])


# Connection


def test_beta_counts_agent_steps_or_rollouts() -> None:
    elapsed_values: list[int] = []

    def record_elapsed(elapsed: int) -> float:
        elapsed_values.append(elapsed)
        return 0.0

    make_ppo().learn(2 * ENVS * STEPS, callback=MEMCallback(record_elapsed))
    assert set(elapsed_values) == {ENVS * STEPS, 2 * ENVS * STEPS}
    callback = MEMCallback(BetaSchedule(1.0, beta_decay=0.5, unit="rollouts"))
    make_ppo().learn(3 * ENVS * STEPS, callback=callback)
    assert callback.get_beta() == 0.125
    with pytest.raises(ValueError, match="expected agent_steps or rollouts, got frames"):
        MEMCallback(BetaSchedule(unit="frames"))


def make_invalid_models() -> list[tuple[Callable[[], Any], str]]:
    no_buffer_class: dict[str, Any] = {"rollout_buffer_class": None}
    separate_extractors = {**make_policy_kwargs(), "share_features_extractor": False}
    flat_extractor: dict[str, Any] = {"features_extractor_class": FlattenExtractor}
    return [
        (lambda: make_ppo(**no_buffer_class), "Set rollout_buffer_class=MEMRolloutBuffer"),
        (lambda: make_ppo(policy=separate_extractors), "expected share_features_extractor=True"),
        (lambda: make_ppo(policy=flat_extractor), "expected MEMExtractor, got FlattenExtractor"),
        (lambda: make_sac(replay_buffer_class=None), "Set replay_buffer_class=MEMReplayBuffer"),
        (lambda: make_sac(policy={"share_features_extractor": True}), "the actor would train the encoder"),
    ]


@pytest.mark.parametrize(("make_model", "message"), make_invalid_models())
def test_models_without_the_adapters_are_refused(make_model: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make_model().learn(50, callback=MEMCallback(return_beta))


def test_a_policy_of_sac_that_is_not_ours_is_refused() -> None:
    env = make_vec_env(partial(manyview.make, "toy/hidden_goal_continuous"), 1)
    policy = make_policy_kwargs()
    model = SAC("MultiInputPolicy", env, policy_kwargs=policy, replay_buffer_class=MEMReplayBuffer, buffer_size=100)
    with pytest.raises(TypeError, match="expected MEMSACPolicy"):
        model.learn(50, callback=MEMCallback(return_beta))


@pytest.mark.parametrize("make_model", [make_ppo, make_sac])
def test_a_missing_callback_is_named(make_model: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="MEMCallback"):
        make_model().learn(200)


def test_the_callback_works_in_a_list() -> None:
    callback = MEMCallback(return_beta)
    make_sac().learn(40, callback=CallbackList([callback]))
    assert "mem_loss" in callback.extractor.metrics


# Saving


@pytest.mark.parametrize("agent", ["ppo", "sac"])
def test_a_loaded_model_trains_exactly_as_the_saved_one(agent: str, tmp_path: Path) -> None:
    cls: Any = PPO if agent == "ppo" else SAC
    changes = {"reward_scale": "std"} if agent == "ppo" else {"bank": 64}
    saved_model: Any = (make_ppo if agent == "ppo" else make_sac)(policy=make_policy_kwargs(**changes))
    saved_model.learn(ENVS * STEPS, callback=MEMCallback(return_beta))
    saved_model.save(tmp_path / "model.zip")
    loaded_model = cls.load(tmp_path / "model.zip", env=saved_model.env, device="cpu")
    if agent == "sac":
        saved_model.save_replay_buffer(tmp_path / "replay")
        loaded_model.load_replay_buffer(tmp_path / "replay")
    states = []
    for model in (saved_model, loaded_model):
        if agent == "sac":
            connect_callback(model, MEMCallback(return_beta))
        else:
            model.seed = None
            collect_seeded_rollout(model)
        torch.manual_seed(5)
        np.random.seed(5)
        model.train(3, batch_size=16) if agent == "sac" else model.train()
        states.append(model.policy.state_dict())
    for name, values in states[0].items():
        if isinstance(values, torch.Tensor):
            assert_close(values, states[1][name], rtol=0, atol=0, msg=name)


def collect_seeded_rollout(model: PPO) -> None:
    """Collect a rollout that depends on the model's weights alone."""
    torch.manual_seed(4)
    assert model.env is not None
    model.env.seed(4)
    model._last_obs = model.env.reset()  # type: ignore[assignment]
    model._last_episode_starts = np.ones(ENVS, bool)
    collect_rollout(model, MEMCallback(return_beta))


def test_an_absent_camera_is_masked_from_the_environment_to_the_bonus() -> None:
    def make_env() -> gym.Env[Any, Any]:
        return manyview.make(
            "toy/hidden_goal_continuous", faults=[Fault(view="row", kind="gone", at_step=5, lasts="episode")]
        )

    model = SAC(
        MEMSACPolicy,
        make_vec_env(make_env, 1, seed=0),
        policy_kwargs={"features_extractor_kwargs": {"config": make_mem_config()}},
        replay_buffer_class=MEMReplayBuffer,
        buffer_size=100,
        batch_size=16,
        learning_starts=20,
    )
    model.learn(40, callback=MEMCallback(return_beta))
    assert not model.replay_buffer.observations["mask"].all()  # type: ignore[union-attr]
    assert get_extractor(model).mem.encoder.absent_token.abs().sum() > 0

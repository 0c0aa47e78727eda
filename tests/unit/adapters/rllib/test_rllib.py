"""Adapters for RLlib."""

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from gymnasium import spaces
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.registry import register_env
from torch.testing import assert_close

import manyview
from manyview.adapters.rllib import NEXT_MASK, NEXT_TERMS, MEMConnector, MEMModule
from manyview.mem import BetaSchedule
from tests.support.adapters import BONUSES, TOLERANCE, make_library_bonus, make_rollout, stack_images

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns about its own code

VIEWS = ("depth", "column")
ENVS, STEPS, BETA = 2, 24, 0.5


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False)
    yield
    ray.shutdown()


def return_beta(_: int) -> float:
    return BETA


def make_config(*, beta: Any = return_beta, window: int | None = None, **mem: Any) -> PPOConfig:
    register_env("sea", lambda _: manyview.make("toy/deep_sea"))
    config = PPOConfig().environment("sea").debugging(seed=0, log_level="ERROR")
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=ENVS, rollout_fragment_length=STEPS)
    config.learners(num_learners=0, learner_connector=lambda *_: MEMConnector(beta, window=window))
    model_config = {"mem": {"trunk": "tiny", "latent_dim": 8, **mem}, "hidden": 32}
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=MEMModule, model_config=model_config))
    config.training(train_batch_size_per_learner=ENVS * STEPS, minibatch_size=20, num_epochs=2, lr=1e-3)
    return config


@pytest.fixture
def algorithm() -> Iterator[Any]:
    algo = make_config().build_algo()
    yield algo
    algo.stop()


def get_learner_module(algorithm: Any) -> MEMModule:
    module = algorithm.learner_group._learner.module[DEFAULT_MODULE_ID].unwrapped()
    assert isinstance(module, MEMModule)
    return module


def make_batch(algorithm: Any, episodes: Any) -> Any:
    """Return the train batch of episodes, as the learner makes it."""
    learner = algorithm.learner_group._learner
    batch = learner._learner_connector(
        rl_module=learner.module, batch={}, episodes=episodes, shared_data={}, metrics=learner.metrics
    )
    return batch[DEFAULT_MODULE_ID]


def stack_observations(episodes: Any) -> list[torch.Tensor]:
    """Return the views [T + 1, V, C, H, W] of each episode."""
    images = [{name: episode.get_observations()[name].transpose(0, 3, 1, 2) for name in VIEWS} for episode in episodes]
    return [stack_images(image, VIEWS) for image in images]


@pytest.mark.parametrize("name", sorted(BONUSES.keys() - {"bank"}))
@pytest.mark.parametrize("window", [None, 30])
def test_the_bonus_is_that_of_the_library(name: str, window: int | None) -> None:
    algorithm = make_config(window=window, **BONUSES[name]).build_algo()
    episodes = algorithm.env_runner.sample(num_timesteps=ENVS * STEPS)
    rewards = [np.array(episode.get_rewards()) for episode in episodes]
    assert len(episodes) > ENVS, "with ends in between"
    views = torch.cat([episode_views[:-1] for episode_views in stack_observations(episodes)])
    rollout = make_rollout(torch.cat([views, views[-1:]]).unsqueeze(1), torch.ones(len(views) + 1, 1, 2).bool())
    library = make_library_bonus(get_learner_module(algorithm).mem, **BONUSES[name])
    expected = library.compute_rollout(rollout, None, window=window).squeeze(1)
    batch = make_batch(algorithm, deepcopy(episodes))
    weighted_bonus = batch[Columns.REWARDS][batch[Columns.LOSS_MASK]] - torch.as_tensor(np.concatenate(rewards)).float()
    assert_close(weighted_bonus / BETA, expected, rtol=0, atol=TOLERANCE)
    algorithm.stop()


def test_rows_are_followed_by_the_features_of_the_next_observation(algorithm: Any) -> None:
    episodes = algorithm.env_runner.sample(num_timesteps=ENVS * STEPS)
    mem = get_learner_module(algorithm).mem
    with torch.no_grad():
        expected = torch.cat([mem.encode(views[1:]).terms for views in stack_observations(episodes)])
    batch = make_batch(algorithm, deepcopy(episodes))
    assert_close(batch[NEXT_TERMS][batch[Columns.LOSS_MASK]], expected)
    assert batch[NEXT_MASK].all()
    assert not batch[Columns.REWARDS][~batch[Columns.LOSS_MASK]].any(), "of the rows that RLlib appends"


def test_episodes_and_their_returns_stay_as_they_were(algorithm: Any) -> None:
    episodes = algorithm.env_runner.sample(num_timesteps=ENVS * STEPS)
    expected = [np.array(episode.get_rewards()) for episode in episodes]
    make_batch(algorithm, episodes)
    for episode, rewards in zip(episodes, expected, strict=True):
        np.testing.assert_array_equal(episode.get_rewards()[: len(rewards)], rewards)


def test_the_loss_of_mem_is_added_to_that_of_ppo_on_the_rows_that_are_states(algorithm: Any) -> None:
    episodes = algorithm.env_runner.sample(num_timesteps=ENVS * STEPS)
    batch, module = make_batch(algorithm, deepcopy(episodes)), get_learner_module(algorithm)
    mem, views = module.mem, stack_observations(episodes)
    features = mem.encode(torch.cat([episode_views[:-1] for episode_views in views]))
    with torch.no_grad():
        next_features = mem.encode(torch.cat([episode_views[1:] for episode_views in views]))
    loss, _ = mem.compute_loss(features, next_features)
    (loss + features.state.square().sum()).backward()
    expected = {name: p.grad.clone() for name, p in mem.encoder.named_parameters() if p.grad is not None}
    module.zero_grad()
    old_weight = mem.discriminator.weight.detach().clone()
    embeddings = module.forward_train(batch)[Columns.EMBEDDINGS]
    embeddings[batch[Columns.LOSS_MASK]].square().sum().backward()
    assert len(expected) >= 6
    for name, parameter in mem.encoder.named_parameters():
        assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.equal(mem.discriminator.weight, old_weight)


def test_training_trains_the_encoder_and_counts_the_steps(algorithm: Any, tmp_path: Path) -> None:
    module = get_learner_module(algorithm)
    old_parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    algorithm.train()
    unchanged = {name for name, p in module.named_parameters() if torch.equal(p, old_parameters[name])}
    assert unchanged == {"mem.encoder.absent_token"}
    assert int(module.elapsed) == ENVS * STEPS
    acting_module = algorithm.get_module()
    for name, parameter in module.named_parameters():
        assert_close(dict(acting_module.named_parameters())[name], parameter.detach(), msg=name)

    algorithm.save_to_path(tmp_path / "checkpoint")
    restored_algorithm = make_config().build_algo()
    restored_algorithm.restore_from_path(tmp_path / "checkpoint")
    restored_module = get_learner_module(restored_algorithm)
    assert int(restored_module.elapsed) == ENVS * STEPS
    for name, values in module.state_dict().items():
        assert_close(restored_module.state_dict()[name], values, rtol=0, atol=0, msg=name)
    restored_algorithm.stop()


def test_beta_decays_by_the_steps_of_the_learner() -> None:
    algorithm = make_config(beta=BetaSchedule(1.0, beta_decay=0.5)).build_algo()
    module = get_learner_module(algorithm)
    module.elapsed += 1_000
    episodes = algorithm.env_runner.sample(num_timesteps=ENVS * STEPS)
    batch = make_batch(algorithm, deepcopy(episodes))
    rewards = np.concatenate([episode.get_rewards() for episode in episodes])
    assert_close(batch[Columns.REWARDS][batch[Columns.LOSS_MASK]], torch.as_tensor(rewards).float())
    assert int(module.elapsed) == 1_000 + len(rewards)
    algorithm.stop()


def make_module(space: Any, **model_config: Any) -> MEMModule:
    return MEMModule(observation_space=space, action_space=spaces.Discrete(2), model_config=model_config)


def test_an_absent_view_is_masked() -> None:
    image = spaces.Box(0, 255, (20, 20, 1), np.uint8)
    space: Any = spaces.Dict({"a": image, "b": image, "mask": spaces.MultiBinary(2)})
    module = make_module(space, mem={"trunk": "tiny", "latent_dim": 8})
    rows = torch.randint(256, (3, 20, 20, 1), dtype=torch.uint8)
    mask = torch.tensor([[1, 1], [0, 1], [1, 0]], dtype=torch.int8)
    features = module.encode({"a": rows, "b": rows, "mask": mask})
    assert torch.equal(features.mask, mask.bool())


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-1, 1, (2,)), "expected a dict of uint8 images"),
        (spaces.Dict({"joints": spaces.Box(-1, 1, (2,))}), "at least one and all of one shape"),
        (spaces.Dict({n: spaces.Box(0, 255, (s, s, 1), np.uint8) for n, s in (("a", 9), ("b", 20))}), "of one shape"),
    ],
)
def test_other_observations_are_refused(space: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make_module(space)


def test_another_module_is_refused() -> None:
    class ModuleHolder(dict[str, Any]):
        def unwrapped(self) -> str:
            return "module"

    with pytest.raises(TypeError, match="expected MEMModule, got str"):
        MEMConnector()(rl_module={DEFAULT_MODULE_ID: ModuleHolder()}, batch={}, episodes=[])


def test_the_example_of_rllib_finds_the_treasure() -> None:
    example = Path(__file__).parents[4] / "examples" / "rllib_mem.py"
    process = subprocess.run([sys.executable, str(example)], check=True, capture_output=True, text=True, timeout=600)
    assert "return 0.990" in process.stdout

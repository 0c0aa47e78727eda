"""The presets `paper/dmc/...` hold the paper's tables, row by row."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from manyview.config.overrides import apply_overrides
from manyview.config.presets import choose_preset
from manyview.envs import View, get_views, list_tasks, make
from manyview.train import PRESETS, RunConfig, factory, load_preset

TASK = "dmc/cheetah_run"
Read = Callable[[RunConfig], object]

# The rows of both tables in the order of the paper, each with where the value lies.
COMMON: dict[str, Read] = {
    "Number of viewpoints": lambda config: len(list_tasks()[config.task].settings.views),
    "Gamma": lambda config: config.replay.discount,
    "Observation downsampling": lambda config: (config.env.image_size, config.env.image_size),
    "Stacked frames": lambda config: config.env.frame_stack,
    "Action repeat": lambda config: config.env.action_repeat,
    "Environment steps": lambda config: config.schedule.frames,
    "Replay buffer size": lambda config: config.replay.capacity,
    "Exploration steps": lambda config: config.schedule.random_steps,
    "Batch size": lambda config: config.replay.batch_size,
    "Latent dimension p": lambda config: config.mem.latent_dim,
    "k": lambda config: config.mem.k,
    "Margin": lambda config: config.mem.margin,
    "beta_0": lambda config: config.bonus.beta0,
    "kappa": lambda config: config.bonus.beta_decay,
    "Number of eval. episodes": lambda config: config.evaluation.episodes,
    "Eval. every steps": lambda config: config.evaluation.every_frames,
}
DRQV2: dict[str, Read] = {
    **COMMON,
    "Seed frames": lambda config: config.schedule.seed_frames,
    "Learning rate": lambda config: config.drqv2.lr,
    "n-step returns": lambda config: config.replay.n_step,
    "Critic Q-function soft-update rate": lambda config: config.drqv2.target_rate,
}
SAC: dict[str, Read] = {
    **COMMON,
    "Learning rate of actor & critic": lambda config: config.sac.lr,
    "Initial temperature": lambda config: config.sac.init_temperature,
    "Temperature learning rate": lambda config: config.sac.temperature_lr,
    "Critic Q-function soft-update rate": lambda config: config.sac.critic_rate,
    "Critic encoder soft-update rate": lambda config: config.sac.encoder_rate,
    "Critic target update frequency": lambda config: config.sac.target_every_updates,
}
TABLE_DRQV2: dict[str, object] = {
    "Number of viewpoints": 3,
    "Gamma": 0.99,
    "Observation downsampling": (84, 84),
    "Stacked frames": 3,
    "Action repeat": 2,
    "Environment steps": 500_000,
    "Replay buffer size": 500_000,
    "Exploration steps": 2_000,
    "Seed frames": 4_000,
    "Batch size": 256,
    "Learning rate": 0.0001,
    "n-step returns": 3,
    "Critic Q-function soft-update rate": 0.01,
    "Latent dimension p": 64,
    "k": 3,
    "Margin": 1.0,
    "beta_0": 0.05,
    "kappa": 0.00001,
    "Number of eval. episodes": 10,
    "Eval. every steps": 10_000,
}
TABLE_SAC: dict[str, object] = {
    "Number of viewpoints": 3,
    "Gamma": 0.99,
    "Observation downsampling": (84, 84),
    "Stacked frames": 4,
    "Action repeat": 4,
    "Environment steps": 500_000,
    "Replay buffer size": 100_000,
    "Exploration steps": 1_000,
    "Batch size": 256,
    "Learning rate of actor & critic": 0.001,
    "Initial temperature": 0.1,
    "Temperature learning rate": 0.0001,
    "Critic Q-function soft-update rate": 0.01,
    "Critic encoder soft-update rate": 0.05,
    "Critic target update frequency": 2,
    "Latent dimension p": 64,
    "Margin": 1.0,
    "k": 3,
    "beta_0": 0.05,
    "kappa": 0.00001,
    "Number of eval. episodes": 10,
    "Eval. every steps": 10_000,
}

# Of the table "Hyperparameters of PPO+MEM"; "Stacked frames: No" is one frame, "Reward normalization: Yes" true.
PPO: dict[str, Read] = {
    "Number of viewpoints": lambda config: (
        1 + len(factory.build_derived_views(config, [View("screen", 64, 64)]).augmentations)
    ),
    "Observation downsampling": lambda config: (config.env.image_size, config.env.image_size),
    "Gamma": lambda config: config.ppo.discount,
    "Number of steps per rollout": lambda config: config.rollout.steps,
    "Number of epochs per rollout": lambda config: config.ppo.epochs,
    "Number of parallel environments": lambda config: config.rollout.envs,
    "Stacked frames": lambda config: config.env.frame_stack,
    "Environment steps": lambda config: config.schedule.frames,
    "Reward normalization": lambda config: config.ppo.scale_rewards,
    "Clip range": lambda config: config.ppo.clip,
    "Entropy bonus": lambda config: config.ppo.entropy_coef,
    "Batch size": lambda config: config.ppo.batch_size,
    "Learning rate": lambda config: config.ppo.lr,
    "Latent dim p": lambda config: config.mem.latent_dim,
    "Margin": lambda config: config.mem.margin,
    "k": lambda config: config.mem.k,
    "beta_0": lambda config: config.bonus.beta0,
    "kappa": lambda config: config.bonus.beta_decay,
    "Number of eval. episodes": lambda config: config.evaluation.episodes,
    "Eval. every steps": lambda config: config.evaluation.every_frames,
}
TABLE_PPO: dict[str, object] = {
    "Number of viewpoints": 2,
    "Observation downsampling": (64, 64),
    "Gamma": 0.99,
    "Number of steps per rollout": 256,  # 265 in the table: D36
    "Number of epochs per rollout": 3,
    "Number of parallel environments": 64,
    "Stacked frames": 1,
    "Environment steps": 25_000_000,
    "Reward normalization": True,
    "Clip range": 0.2,
    "Entropy bonus": 0.01,
    "Batch size": 256,
    "Learning rate": 0.0005,
    "Latent dim p": 128,
    "Margin": 1.0,
    "k": 5,
    "beta_0": 0.1,
    "kappa": 0.00001,
    "Number of eval. episodes": 10,
    "Eval. every steps": 10_000,
}
FURTHER = {
    "bigfish": "crop",
    "bossfight": "cutout",
    "coinrun": "random_conv",
    "dodgeball": "cutout",
    "fruitbot": "cutout",
    "starpilot": "cutout",
    "ninja": "random_conv",
    "jumper": "random_conv",
    "miner": "flip",
}


def test_the_paper_preset_of_ppo_holds_every_row_of_its_table() -> None:
    config = load_preset("paper/procgen/ppo", task="procgen/bigfish", method="ppo+mem", seed=1)
    assert {row: read(config) for row, read in PPO.items()} == TABLE_PPO
    assert {f"procgen/{game}": how for game, how in FURTHER.items()} == factory.PAPER_AUGMENTED_VIEWS
    assert {task.id for task in list_tasks().values() if task.in_paper and task.id.startswith("procgen/")} == {
        *factory.PAPER_AUGMENTED_VIEWS
    }


@pytest.mark.parametrize(
    ("agent", "table", "reads"), [("drqv2", TABLE_DRQV2, DRQV2), ("sac", TABLE_SAC, SAC)], ids=["drqv2", "sac"]
)
def test_the_paper_presets_hold_every_row_of_its_tables(
    agent: str, table: dict[str, object], reads: dict[str, Read]
) -> None:
    config = load_preset(f"paper/dmc/{agent}", task=TASK, method=f"{agent}+mem", seed=1)
    assert {row: read(config) for row, read in reads.items()} == table


def test_the_optimiser_is_adam() -> None:
    """The table's row that is no setting."""
    config = load_preset("minute", task="toy/identity_continuous", method="sac+mem", seed=1)
    env = make(config.task)
    agent = factory.build_agent(config, factory.infer_shapes(config, env))
    found = [part for part in vars(agent).values() if isinstance(part, torch.optim.Optimizer)]
    assert found
    assert all(isinstance(optimizer, torch.optim.Adam) for optimizer in found)


@pytest.mark.simulator
def test_episodes_of_the_control_suite_last_a_thousand_frames() -> None:
    """The table's row "Maximum episode length" is the suite's own."""
    env = make("dmc/cartpole_swingup", image_size=8, action_repeat=8, render_quality="fast")
    env.reset(seed=0)
    ended = False
    info: dict[str, Any] = {}
    while not ended:
        *_, truncated, info = env.step(env.action_space.sample())
        ended = bool(truncated)
    env.close()
    assert info["episode"]["frames"] == 1000
    assert len(get_views(env)) == 3


def test_later_presets_win() -> None:
    config = load_preset("paper/dmc/drqv2,cpu", task=TASK, method="drqv2+mem", seed=1)
    assert config.schedule.frames == load_preset("cpu", task=TASK, method="drqv2+mem", seed=1).schedule.frames
    assert config.replay.n_step == 3


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("task", ["dmc/ball_in_cup_catch", "toy/identity_continuous"])
def test_every_preset_is_a_config(preset: str, task: str) -> None:
    assert load_preset(preset, task=task, method="sac+re3", seed=3).seed == 3


def test_without_an_accelerator_nobody_gets_the_paper_by_accident() -> None:
    assert choose_preset("dmc/cheetah_run", "drqv2+mem", accelerator=True) == "paper/dmc/drqv2"
    assert choose_preset("dmc/cheetah_run", "drqv2+mem", accelerator=False) == "cpu"
    assert choose_preset("toy/deep_sea_continuous", "sac+mem", accelerator=True) == "minute"
    assert choose_preset("my_robot:make", "sac+mem", accelerator=True) == "cpu"


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown preset 'gpu': expected one of paper/dmc/drqv2"):
        load_preset("gpu", task=TASK, method="drqv2+mem", seed=1)


@pytest.mark.parametrize("method", ["drqv2", "mem", "dqn+mem", "drqv2+rnd", "drqv2+"])
def test_an_unknown_method_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match=r"method must be <agent>\+<method>"):
        RunConfig(task=TASK, method=method)


@pytest.mark.parametrize("method", ["drqv2+none", "sac+re3"])
def test_an_encoder_that_nothing_would_train_is_refused(method: str) -> None:
    asked = {method.split("+")[0]: {"critic_trains_encoder": False}}
    with pytest.raises(
        ValueError, match=rf"nothing would train the encoder: {re.escape(method)} has no auxiliary loss"
    ):
        apply_overrides(RunConfig(task=TASK, method=method), asked)
    apply_overrides(RunConfig(task=TASK, method=method.split("+")[0] + "+curl+re3"), asked)


def test_what_is_paid_along_episodes_needs_rollouts() -> None:
    with pytest.raises(ValueError, match=r"expected agent ppo, got .*\. Use ppo\+ride"):
        RunConfig(task=TASK, method="drqv2+ride")

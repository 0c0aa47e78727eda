"""The presets `paper/dmc/...` hold the paper's tables, row by row."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import composition
from manyview.config.presets import BUILT_IN_PRESETS, choose_preset, list_presets, read_preset
from manyview.envs import View, get_views, list_tasks, make
from manyview.methods import BONUSES, RE3, BonusConfig, register_bonus
from manyview.training import RunConfig, factory, load_preset, make_config

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
    "Latent dimension p": lambda config: config.representation.latent_dim,
    "k": lambda config: config.bonus.k,
    "Margin": lambda config: config.representation.margin,
    "beta_0": lambda config: config.bonus.beta0,
    "kappa": lambda config: config.bonus.beta_decay,
    "Number of eval. episodes": lambda config: config.evaluation.episodes,
    "Eval. every steps": lambda config: config.evaluation.every_frames,
}
DRQV2: dict[str, Read] = {
    **COMMON,
    "Seed frames": lambda config: config.schedule.seed_frames,
    "Learning rate": lambda config: config.agent.lr,
    "n-step returns": lambda config: config.replay.n_step,
    "Critic Q-function soft-update rate": lambda config: config.agent.critic_tau,
}
SAC: dict[str, Read] = {
    **COMMON,
    "Learning rate of actor & critic": lambda config: config.agent.lr,
    "Initial temperature": lambda config: config.agent.init_temperature,
    "Temperature learning rate": lambda config: config.agent.temperature_lr,
    "Critic Q-function soft-update rate": lambda config: config.agent.critic_tau,
    "Critic encoder soft-update rate": lambda config: config.agent.encoder_tau,
    "Critic target update frequency": lambda config: config.agent.target_every_updates,
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
    "Gamma": lambda config: config.agent.discount,
    "Number of steps per rollout": lambda config: config.rollout.steps,
    "Number of epochs per rollout": lambda config: config.agent.epochs,
    "Number of parallel environments": lambda config: config.rollout.envs,
    "Stacked frames": lambda config: config.env.frame_stack,
    "Environment steps": lambda config: config.schedule.frames,
    "Reward normalization": lambda config: config.agent.normalize_rewards,
    "Clip range": lambda config: config.agent.clip_coef,
    "Entropy bonus": lambda config: config.agent.entropy_coef,
    "Batch size": lambda config: config.agent.batch_size,
    "Learning rate": lambda config: config.agent.lr,
    "Latent dim p": lambda config: config.representation.latent_dim,
    "Margin": lambda config: config.representation.margin,
    "k": lambda config: config.bonus.k,
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


def test_the_preset_of_dribo_holds_what_the_paper_says_of_it() -> None:
    config = load_preset("paper/dmc/dribo", task=TASK, method="sac+dribo", seed=1)
    agent, part, replay = config.agent, config.representation, config.replay
    assert config.env.views == ("0",)
    assert (replay.augmentation, replay.capacity, config.schedule.random_steps) == ("crop", 1_000_000, 1_000)
    assert (replay.batch_size // part.sequence_length, part.sequence_length) == (8, 32)
    assert (part.kl_start, part.kl_end) == (0.0001, 0.001)
    assert (agent.lr, part.lr) == (0.00005, 0.00001)
    assert (agent.init_temperature, agent.critic_tau, agent.encoder_tau) == (0.1, 0.01, 0.05)


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


@pytest.mark.parametrize("preset", BUILT_IN_PRESETS)
@pytest.mark.parametrize("task", ["dmc/ball_in_cup_catch", "toy/identity_continuous"])
@pytest.mark.parametrize("method", ["sac+re3", "drqv2+pixel+mem", "sac+curl", "drqv2+mem+none"])
def test_every_preset_is_a_config(preset: str, task: str, method: str) -> None:
    if (preset, method) == ("drqv2", "drqv2+mem+none"):
        with pytest.raises(ValueError, match="structure"):
            load_preset(preset, task=task, method=method, seed=3)
        return
    config = load_preset(preset, task=task, method=method, seed=3)
    assert (config.seed, config.method, config.preset, config.task) == (3, method, preset, task)


def test_without_an_accelerator_nobody_gets_the_paper_by_accident() -> None:
    assert choose_preset("dmc/cheetah_run", "drqv2+mem", accelerator=True) == "paper/dmc/drqv2"
    assert choose_preset("dmc/cheetah_run", "drqv2+mem", accelerator=False) == "cpu"
    assert choose_preset("toy/deep_sea_continuous", "sac+mem", accelerator=True) == "minute"
    assert choose_preset("my_robot:make", "sac+mem", accelerator=True) == "cpu"


@pytest.mark.parametrize(
    ("method", "arm"),
    [("pixel+mem", "own mem marginal"), ("mem", "mem marginal"), ("re3", "re3"), ("rnd", "rnd"), ("none", "none")],
)
def test_the_preset_of_deep_sea_has_the_settings_of_its_study(method: str, arm: str) -> None:
    """The README quotes the study's solved seeds for this preset."""
    studied = composition.make_config(composition.Arm("sac", arm, 10), seed=3)
    preset = load_preset("minute,deep_sea", task="toy/deep_sea_continuous", method=f"sac+{method}", seed=3)
    common: dict[str, Any] = {"evaluation": studied.evaluation, "compute": studied.compute, "preset": ""}
    assert replace(preset, **common) == replace(studied, **common)


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown preset 'gpu': expected one of cpu, deep_sea, drqv2, minute"):
        load_preset("gpu", task=TASK, method="drqv2+mem", seed=1)


def test_the_section_of_the_agent_wins_over_that_of_the_suite_and_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        "[bonus.all]\nk = 2\nbeta0 = 0.1\n[bonus.re3]\nk = 4\n[suites.dmc.bonus.all]\nk = 6\n"
        "[agents.sac.bonus.re3]\nk = 8\n[agents.sac.agent.all]\nlr = 0.5\n"
        "[representations.curl.agent.all]\nlr = 0.25\n"
    )

    def load(task: str, method: str) -> RunConfig:
        return load_preset(str(file), task=task, method=method, seed=1)

    assert load("toy/identity_continuous", "drqv2+mem").bonus.k == 2
    assert load("toy/identity_continuous", "drqv2+re3").bonus.k == 4
    assert load(TASK, "drqv2+mem").bonus.k == 6
    assert load(TASK, "sac+re3").bonus.k == 8
    assert load(TASK, "sac+re3").bonus.beta0 == 0.1
    assert load(TASK, "sac+none").agent.lr == 0.5
    assert load(TASK, "sac+curl").agent.lr == 0.25
    assert load(TASK, "drqv2+mem").agent == make_config(TASK, method="drqv2+mem").agent


@pytest.fixture
def user_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    directory = tmp_path / "config" / "manyview" / "presets"
    (directory / "lab").mkdir(parents=True)
    return directory


def test_presets_of_the_user_are_found_by_name(user_directory: Path) -> None:
    (user_directory / "lab" / "robot.toml").write_text('summary = "a robot"\n[replay]\nbatch_size = 7')
    assert list(list_presets()) == [*BUILT_IN_PRESETS, "lab/robot"]
    assert read_preset("lab/robot").summary == "a robot"
    config = load_preset("cpu,lab/robot", task=TASK, method="sac+mem", seed=1)
    assert (config.replay.batch_size, config.preset, config.replay.capacity) == (7, "cpu,lab/robot", 100_000)


def test_presets_of_the_user_are_in_the_home_directory_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = tmp_path / ".config" / "manyview" / "presets"
    directory.mkdir(parents=True)
    (tmp_path / "robot.toml").write_text("[replay]\nbatch_size = 7")
    (directory / "robot.toml").symlink_to(tmp_path / "robot.toml")  # as managers of such files make them
    assert load_preset("robot", task=TASK, method="sac+mem", seed=1).replay.batch_size == 7


def test_files_elsewhere_change_nothing(user_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_preset("cpu", task=TASK, method="sac+mem", seed=1)
    for directory in (tmp_path, user_directory):  # the working directory, and one that cannot replace built-in names
        (directory / "cpu.toml").write_text("[replay]\nbatch_size = 7")
        (directory / "presets").mkdir()
        (directory / "presets" / "cpu.toml").write_text("[replay]\nbatch_size = 7")
    (tmp_path / "here.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert load_preset("cpu", task=TASK, method="sac+mem", seed=1) == before
    with pytest.raises(ValueError, match="unknown preset 'here'"):
        read_preset("here")
    assert load_preset("./cpu.toml", task=TASK, method="sac+mem", seed=1).replay.batch_size == 7


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("summary = 3", "invalid summary: expected a string, got 3"),
        ("[replya]\nbatch_size = 3", "unknown setting replya: .*did you mean replay?"),
        ("[replay]\nbatchsize = 3", "unknown setting replay.batchsize: .*did you mean replay.batch_size?"),
        ("[replay]\nbatch_size = 'a'", "replay.batch_size must be int, got 'a'"),
        ("replay = 3", "invalid replay: expected a group of settings, got 3"),
        ("task = 'toy/identity'", "unknown setting task"),
        ("[bonus.re33]\nk = 3", "unknown bonus 're33': .*did you mean re3?"),
        ("[bonus.ride]\nkernal = 3", "unknown setting bonus.ride.kernal"),
        ("[bonus.mem.encoder]\nlrr = 3", "unknown setting bonus.mem.encoder.lrr"),
        ("[bonus]\nre3 = 3", "invalid bonus.re3: expected a group of settings, got 3"),
        ("[bonus]\nall = 3", "invalid bonus.all: expected a group of settings, got 3"),
        ("[agent.all]\nhiden = 3", "unknown setting agent.all.hiden: .*did you mean agent.all.hidden?"),
        ("[suites.dcm.env]\nimage_size = 3", "unknown setting suites.dcm: .*did you mean suites.dmc?"),
        ("[suites.procgen.env]\nsize = 3", "unknown setting suites.procgen.env.size"),
        ("[suites]\ndmc = 3", "invalid suites.dmc: expected a group of settings, got 3"),
        ("[agents.sak.replay]\nn_step = 3", "unknown setting agents.sak: .*did you mean agents.sac?"),
        ("[agents.ppo.agent.ppo]\nclip = 3", "unknown setting agents.ppo.agent.ppo.clip"),
        ("agents = 'sac'", "invalid agents: expected a group of settings, got 'sac'"),
        ("[replay]\nn_step = 3\n[replay]", "(at line 3"),
        ("a = " + "[" * 5_000, "nested too deeply"),
    ],
)
def test_an_invalid_preset_is_refused_with_file_and_key(text: str, says: str, tmp_path: Path) -> None:
    """Also in sections that the run does not use."""
    file = tmp_path / "own.toml"
    file.write_text(text)
    pattern = ".*".join(map(re.escape, says.split(".*")))
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: .*{pattern}"):
        load_preset(str(file), task=TASK, method="drqv2+mem", seed=1)


def test_an_invalid_value_in_a_preset_is_refused_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[replay]\nbatch_size = 0")
    with pytest.raises(ValueError, match=rf"^preset {re.escape(str(file))}: replay\.batch_size: expected at least 1"):
        load_preset(str(file), task=TASK, method="drqv2+mem", seed=1)


def test_sections_of_installed_packages_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class CuriosityConfig(BonusConfig):
        appetite: float = 1.0

    class Package:
        value, dist = "curiosity", None

        def load(self) -> None:
            register_bonus("curiosity", CuriosityConfig)(RE3)

    monkeypatch.setattr(BONUSES, "_parts", dict(BONUSES._parts))
    monkeypatch.setattr(BONUSES, "_find_entry_points", lambda: {"curiosity": Package()})
    (tmp_path / "own.toml").write_text("[bonus.all]\nappetite = 2.0\n[bonus.curiosity]\nbeta0 = 0.5")
    (tmp_path / "typo.toml").write_text("[bonus.all]\nappetit = 2.0")
    with pytest.raises(ValueError, match=r"did you mean bonus\.all\.appetite\?"):
        read_preset(str(tmp_path / "typo.toml"))
    load_preset(str(tmp_path / "own.toml"), task=TASK, method="sac+mem", seed=1)
    bonus = load_preset(str(tmp_path / "own.toml"), task=TASK, method="sac+curiosity", seed=1).bonus
    assert bonus == CuriosityConfig(appetite=2.0, beta0=0.5)

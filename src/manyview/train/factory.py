"""Build a run's environment, agent, buffers and sampler from its config."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from manyview.agents import PPO, SAC, ActionSpec, Agent, DrQv2
from manyview.agents.base import zero_beta
from manyview.config.schema import RunConfig
from manyview.data import DerivedViews, ReplayBuffer, RolloutBuffer, Sampler, compute_buffer_bytes
from manyview.data.augmentation import Augmentation, check_image_shape
from manyview.envs import Fault, View, get_views, make, make_vector
from manyview.envs.registration import find_task
from manyview.envs.suite import Levels, TaskSettings
from manyview.envs.vector import AnyVectorEnv
from manyview.envs.views import Observation
from manyview.mem import MEM
from manyview.methods import CURL, RE3, RIDE, Bonus, EpisodicBonus, PixelEncoder, Representation
from manyview.train.compute import resolve_device
from manyview.utils.resources import check_memory
from manyview.utils.seeding import derive_seed

PAPER_AUGMENTED_VIEWS: dict[str, Augmentation] = {
    "procgen/bigfish": "crop",
    "procgen/bossfight": "cutout",
    "procgen/coinrun": "random_conv",
    "procgen/dodgeball": "cutout",
    "procgen/fruitbot": "cutout",
    "procgen/starpilot": "cutout",
    "procgen/ninja": "random_conv",
    "procgen/jumper": "random_conv",
    "procgen/miner": "flip",
}
"""Augmentation of the second view by game: the paper's "augmentation type used for each game"."""
NO_DERIVED_VIEWS = DerivedViews(seed=0)


@dataclass(frozen=True)
class Shapes:
    """Views and actions of an environment, as agents and buffers need them."""

    cameras: tuple[View, ...]
    """Views that the environment returns."""
    frame_stack: int
    actions: ActionSpec
    derived_views: DerivedViews = NO_DERIVED_VIEWS
    """Views that are computed from a camera."""

    @property
    def views(self) -> tuple[View, ...]:
        """All views of the agent: cameras, then derived views."""
        derived = (
            replace(
                self.cameras[index],
                name=f"{self.cameras[index].name}_{augmentation}",
                derived_from=self.cameras[index].name,
            )
            for index, augmentation in self.derived_views.augmentations
        )
        return (*self.cameras, *derived)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape [C, H, W] of an image with stacked frames."""
        view = self.cameras[0]
        return view.channels * self.frame_stack, view.height, view.width


def make_env(
    config: RunConfig, *, faults: Sequence[Fault] | None = None, levels: Levels | None = None
) -> gym.Env[Observation, Any]:
    """Make one environment of the task with stacked frames, as evaluations use it."""
    return make(config.task, **_build_env_options(config), faults=faults, levels=levels)


def make_training_env(config: RunConfig) -> gym.Env[Observation, Any]:
    """Make the environment of an off-policy run: single frames, which the replay buffer stacks."""
    return make(config.task, **{**_build_env_options(config), "frame_stack": 1})


def resolve_frame_stack(config: RunConfig) -> int:
    """Return the number of stacked frames: the config's, else the task's default."""
    if config.env.frame_stack is not None:
        return config.env.frame_stack
    return 1 if ":" in config.task else find_task(config.task).settings.frame_stack


def make_vector_env(config: RunConfig) -> AnyVectorEnv:
    """Make the `rollout.envs` environments of an on-policy run."""
    return make_vector(config.task, config.rollout.envs, threads=config.machine.threads, **_build_env_options(config))


def list_evaluation_levels(settings: TaskSettings | None) -> tuple[Levels | None, ...]:
    """Return the level sets of an evaluation: `(None,)`, or training levels and all levels if those differ."""
    return (None,) if settings is None or settings.levels is None else get_args(Levels)


def _build_env_options(config: RunConfig) -> Any:
    env = config.env
    return {
        "views": env.views,
        "image_size": env.image_size,
        "frame_stack": env.frame_stack,
        "action_repeat": env.action_repeat,
        "render_quality": env.render_quality,
    }


def infer_shapes(config: RunConfig, env: gym.Env[Observation, Any] | AnyVectorEnv) -> Shapes:
    """Return the shapes of an environment or a vector environment; `ValueError` if the agent cannot use it."""
    any_env: Any = env
    is_vector, views = isinstance(env, VectorEnv), get_views(env)
    action_space = any_env.single_action_space if is_vector else any_env.action_space
    shapes = Shapes(
        views, resolve_frame_stack(config), _infer_actions(config, action_space), build_derived_views(config, views)
    )
    for _, augmentation in shapes.derived_views.augmentations:
        check_image_shape(augmentation, shapes.image_shape)
    return shapes


def _infer_actions(config: RunConfig, space: spaces.Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Discrete) and config.is_on_policy:
        if space.start != 0:
            raise ValueError(
                f"unsupported action space: expected discrete actions from 0, got {space}. Shift them in a wrapper"
            )
        return ActionSpec(int(space.n), discrete=True)
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(
            f"unsupported action space: PPO expected Discrete or a Box with one dimension, got {space}"
            if config.is_on_policy
            else f"unsupported action space: DrQ-v2 and SAC expected a Box with one dimension, got {space}. Use ppo "
            "for discrete actions"
        )
    if not ((space.low == -1).all() and (space.high == 1).all()):
        raise ValueError(
            f"unsupported action space: expected bounds [-1, 1], got {space}. Rescale actions in a wrapper"
        )
    return ActionSpec(space.shape[0], discrete=False)


def build_derived_views(config: RunConfig, cameras: Sequence[View]) -> DerivedViews:
    """Return the derived views: the paper's for a Procgen screen, or the config's choice for any task of PPO."""
    choice = config.env.further_view
    augmentation: Augmentation | None
    if choice == "paper":
        augmentation = _lookup_paper_augmentation(config.task) if "mem" in config.methods else None
    else:
        augmentation = None if choice == "none" else choice
    if augmentation is None:
        return NO_DERIVED_VIEWS
    if len(cameras) > 1 and any(view.shape != cameras[0].shape for view in cameras):
        sizes = ", ".join(f"{view.name} {view.shape}" for view in cameras)
        raise ValueError(
            f"env.further_view={choice} adds a view of the first camera: expected cameras of one size, got {sizes}. "
            "Set env.further_view=none"
        )
    return DerivedViews(derive_seed(config.seed, "further view"), ((0, augmentation),))


def _lookup_paper_augmentation(task: str) -> Augmentation | None:
    if task.startswith("procgen/") and task not in PAPER_AUGMENTED_VIEWS:
        raise ValueError(
            f"no second view for {task}: MEM needs several views, and the paper names none for this game. Choose one "
            "with --set env.further_view=crop, or set it to none"
        )
    return PAPER_AUGMENTED_VIEWS.get(task)


def build_agent(config: RunConfig, shapes: Shapes) -> Any:
    """Build the agent on its device; equal seeds give equal weights.

    Raises `InsufficientSpaceError` if its tensors do not fit into memory.
    """
    agent = build_agent_outline(config, shapes)
    needed = sum(tensor.nbytes for tensor in chain(agent.parameters(), agent.buffers()))
    check_memory(needed, what="the agent", remedy="use smaller images, features or layers")
    return _build_agent(config, shapes)


def build_agent_outline(config: RunConfig, shapes: Shapes) -> Any:
    """Build the agent on the meta device: it takes no memory, and a state can be checked against its shapes."""
    with torch.device("meta"):
        return _build_agent(replace(config, machine=replace(config.machine, device="meta")), shapes)


def _build_agent(config: RunConfig, shapes: Shapes) -> Any:
    with torch.random.fork_rng(devices=[]):  # torch's layers initialize from the global generator
        torch.manual_seed(derive_seed(config.seed, "weights"))
        representation, bonus = _build_representation_and_bonus(config, shapes)
        beta, seed = zero_beta if bonus is None else config.bonus, derive_seed(config.seed, "agent")
        agent: Agent
        if config.is_on_policy:
            envs = config.rollout.envs
            agent = PPO(representation, shapes.actions, config.ppo, num_envs=envs, bonus=bonus, beta=beta, seed=seed)
        else:
            agent_class: Any = {"drqv2": DrQv2, "sac": SAC}[config.agent]
            settings = getattr(config, config.agent)
            agent = agent_class(representation, shapes.actions.size, settings, bonus=bonus, beta=beta, seed=seed)
    agent.to(resolve_device(config.machine))
    if config.machine.channels_last:
        agent.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return agent


def _build_representation_and_bonus(config: RunConfig, shapes: Shapes) -> tuple[Representation, Any]:
    representations: list[Representation] = []
    bonuses: list[Bonus | EpisodicBonus] = []
    names, num_views = [view.name for view in shapes.views], len(shapes.views)
    for method in config.methods:
        if method == "mem":
            mem = MEM(names, shapes.image_shape, config.mem)
            representations.append(mem)
            bonuses.append(mem)
        elif method == "re3":
            bonuses.append(RE3(shapes.image_shape, config.re3))
        elif method == "ride":
            actions = shapes.actions
            bonuses.append(RIDE(num_views, shapes.image_shape, actions.size, config.ride, discrete=actions.discrete))
        elif method == "curl":
            seed = derive_seed(config.seed, "curl")
            representations.append(CURL(num_views, shapes.image_shape, config.curl, seed=seed))
        else:
            representations.append(PixelEncoder(num_views, shapes.image_shape, config.none))
    if len(representations) > 1 or len(bonuses) > 1:
        raise ValueError(
            f"{config.method} has two representations or two bonuses: expected at most one of each. Remove one"
        )
    representation = representations[0] if representations else PixelEncoder(num_views, shapes.image_shape, config.none)
    return representation, bonuses[0] if bonuses else None


def build_rollout_buffer(config: RunConfig, shapes: Shapes) -> RolloutBuffer:
    """Build the empty rollout buffer of an on-policy run."""
    return RolloutBuffer(
        num_steps=config.rollout.steps,
        num_envs=config.rollout.envs,
        image_shape=shapes.image_shape,
        num_cameras=len(shapes.cameras),
        action_shape=shapes.actions.shape,
        action_dtype=shapes.actions.dtype,
        derived_views=shapes.derived_views,
        device=resolve_device(config.machine),
    )


def compute_rollout_bytes(config: RunConfig, shapes: Shapes) -> int:
    """Return the bytes of the rollout buffer's frames."""
    steps, envs = config.rollout.steps, config.rollout.envs
    return RolloutBuffer.compute_bytes(
        num_steps=steps, num_envs=envs, image_shape=shapes.image_shape, num_cameras=len(shapes.cameras)
    )


def build_replay_buffer(config: RunConfig, shapes: Shapes) -> ReplayBuffer:
    """Build the empty replay buffer of an off-policy run."""
    return ReplayBuffer(
        shapes.views,
        action_shape=(shapes.actions.size,),
        capacity=config.replay.capacity,
        frame_stack=shapes.frame_stack,
        directory=get_replay_directory(config),
    )


def compute_replay_bytes(config: RunConfig, shapes: Shapes) -> int:
    """Return the bytes of the full replay buffer."""
    return compute_buffer_bytes(shapes.views, action_shape=(shapes.actions.size,), capacity=config.replay.capacity)


def get_replay_directory(config: RunConfig) -> Path | None:
    """Return the directory of a memory-mapped replay buffer, or None for memory."""
    return None if config.replay.folder is None else Path(config.replay.folder)


def build_sampler(config: RunConfig, replay: ReplayBuffer) -> Sampler:
    """Build the sampler of n-step batches."""
    return Sampler(
        replay,
        batch_size=config.replay.batch_size,
        n_step=config.replay.n_step,
        discount=config.replay.discount,
        seed=derive_seed(config.seed, "sampler"),
        prefetch=config.replay.prefetch,
        device=resolve_device(config.machine),
    )

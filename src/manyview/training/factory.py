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

from manyview.agents import ActionSpec, Agent
from manyview.agents.base import check_state_vectors
from manyview.config.schema import RunConfig
from manyview.data import DerivedViews, ReplayBuffer, RolloutBuffer, Sampler, compute_buffer_bytes
from manyview.data.augmentation import Augmentation, check_image_shape
from manyview.data.demonstrations import read_manifest
from manyview.data.state_vectors import VectorShapes, count_numbers
from manyview.envs import Fault, View, get_state_vectors, get_views, make, make_vector
from manyview.envs.registration import find_task
from manyview.envs.suite import Levels, TaskSettings
from manyview.envs.vector import AnyVectorEnv
from manyview.envs.views import Observation
from manyview.methods import (
    AGENTS,
    BONUSES,
    REPRESENTATIONS,
    Bonus,
    BonusConfig,
    BuildContext,
    find_stored_features,
)
from manyview.training.compute import resolve_device
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
class Shapes(VectorShapes):
    """Views, state vectors and actions of an environment, as agents and buffers need them."""

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
    """Make the environment of an off-policy run: single frames and vectors, which the replay buffer stacks."""
    return make(config.task, **{**_build_env_options(config), "frame_stack": 1, "state_stack": 1})


def resolve_frame_stack(config: RunConfig) -> int:
    """Return the number of stacked frames: the config's, else the task's default."""
    if config.env.frame_stack is not None:
        return config.env.frame_stack
    return 1 if ":" in config.task else find_task(config.task).settings.frame_stack


def make_vector_env(config: RunConfig) -> AnyVectorEnv:
    """Make the `rollout.envs` environments of an on-policy run."""
    return make_vector(config.task, config.rollout.envs, threads=config.compute.threads, **_build_env_options(config))


def list_evaluation_levels(settings: TaskSettings | None) -> tuple[Levels | None, ...]:
    """Return the level sets of an evaluation: `(None,)`, or training levels and all levels if those differ."""
    return (None,) if settings is None or settings.levels is None else get_args(Levels)


def _build_env_options(config: RunConfig) -> Any:
    env = config.env
    return {
        "views": env.views,
        "state": env.state,
        "image_size": env.image_size,
        "frame_stack": env.frame_stack,
        "state_stack": env.state_stack,
        "action_repeat": env.action_repeat,
        "render_quality": env.render_quality,
        "render_scale": env.render_scale,
    }


def infer_shapes(config: RunConfig, env: gym.Env[Observation, Any] | AnyVectorEnv) -> Shapes:
    """Return the shapes of an environment or a vector environment; `ValueError` if the agent cannot use it."""
    any_env: Any = env
    is_vector, views = isinstance(env, VectorEnv), get_views(env)
    action_space = any_env.single_action_space if is_vector else any_env.action_space
    shapes = Shapes(
        views,
        resolve_frame_stack(config),
        _infer_actions(config, action_space),
        build_derived_views(config, views),
        state_vectors=get_state_vectors(env),
        state_stack=config.env.state_stack,
    )
    for _, augmentation in shapes.derived_views.augmentations:
        check_image_shape(augmentation, shapes.image_shape)
    if shapes.state_stack > 1 and not shapes.state_vectors:
        raise ValueError(
            f"env.state_stack: expected 1 without state vectors, got {shapes.state_stack}. Set env.state too"
        )
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
            f"unsupported action space: {config.agent_name} expected Discrete or a Box with one dimension, got {space}"
            if config.is_on_policy
            else f"unsupported action space: {config.agent_name} expected a Box with one dimension, got {space}. Use "
            "ppo for discrete actions"
        )
    if not ((space.low == -1).all() and (space.high == 1).all()):
        raise ValueError(
            f"unsupported action space: expected bounds [-1, 1], got {space}. Rescale them: "
            "MultiView(env, views=..., rescale_actions=True), or gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)"
        )
    return ActionSpec(space.shape[0], discrete=False)


def build_derived_views(config: RunConfig, cameras: Sequence[View]) -> DerivedViews:
    """Return the derived views: the paper's for a Procgen screen, or the config's choice for any task of PPO."""
    choice = config.env.augmented_view
    augmentation: Augmentation | None
    if choice == "paper":
        augmentation = _lookup_paper_augmentation(config.task) if config.representation_name == "mem" else None
    else:
        augmentation = None if choice == "none" else choice
    if augmentation is None:
        return NO_DERIVED_VIEWS
    if len(cameras) > 1 and any(view.shape != cameras[0].shape for view in cameras):
        sizes = ", ".join(f"{view.name} {view.shape}" for view in cameras)
        raise ValueError(
            f"env.augmented_view={choice} adds a view of the first camera: expected cameras of one size, got {sizes}. "
            "Set env.augmented_view=none"
        )
    return DerivedViews(derive_seed(config.seed, "augmented view"), ((0, augmentation),))


def _lookup_paper_augmentation(task: str) -> Augmentation | None:
    if task.startswith("procgen/") and task not in PAPER_AUGMENTED_VIEWS:
        raise ValueError(
            f"no second view for {task}: MEM needs several views, and the paper names none for this game. Choose one "
            "with --set env.augmented_view=crop, or set it to none"
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
        return _build_agent(replace(config, compute=replace(config.compute, device="meta")), shapes)


def _build_agent(config: RunConfig, shapes: Shapes) -> Any:
    augmentation = config.replay.image_augmentation
    context = BuildContext(
        view_names=tuple(view.name for view in shapes.views),
        image_shape=shapes.image_shape,
        frame_stack=shapes.frame_stack,
        actions=shapes.actions,
        seed=derive_seed(config.seed, "agent"),
        augmentation=augmentation,
        num_envs=config.rollout.envs,
        state_vectors=shapes.state_vectors,
        state_stack=shapes.state_stack,
    )
    with torch.random.fork_rng(devices=[]):  # torch's layers initialize from the global generator
        # A seed per part: runs that differ in one part start with equal weights in the others.
        torch.manual_seed(derive_seed(config.seed, "weights"))
        encoder_shape = shapes.image_shape if config.is_on_policy else augmentation.crop_shape(shapes.image_shape)
        representation = REPRESENTATIONS[config.representation_name].build(
            config.representation,
            replace(context, image_shape=encoder_shape, seed=derive_seed(config.seed, config.representation_name)),
        )
        context = replace(context, representation=representation)
        torch.manual_seed(derive_seed(config.seed, "bonus weights"))
        bonus = BONUSES[config.bonus_name].build(config.bonus, replace(context, seed=derive_seed(config.seed, "bonus")))
        beta = config.bonus if isinstance(config.bonus, BonusConfig) else None
        torch.manual_seed(derive_seed(config.seed, "agent weights"))
        agent: Agent = AGENTS[config.agent_name].build(config.agent, replace(context, bonus=bonus, beta=beta))
    check_state_vectors(type(agent), shapes.vector_size)
    _check_state(agent)
    agent.to(resolve_device(config.compute))
    if config.compute.channels_last:
        agent.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return agent


def _check_state(agent: Agent) -> None:
    """Raise TypeError for a part whose state a checkpoint cannot hold."""
    for part in filter(None, (agent.representation, agent.bonus)):
        if not isinstance(part, torch.nn.Module):
            raise TypeError(f"{type(part).__name__} has no state: expected a torch.nn.Module, got {type(part)}")
    for module in agent.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.optim.Optimizer) and type(value) is not torch.optim.Adam:
                raise TypeError(f"optimizer {name} cannot be restored: expected torch.optim.Adam, got {type(value)}")


def build_rollout_buffer(config: RunConfig, shapes: Shapes) -> RolloutBuffer:
    """Build the empty rollout buffer of an on-policy run."""
    return RolloutBuffer(
        num_steps=config.rollout.steps,
        num_envs=config.rollout.envs,
        image_shape=shapes.image_shape,
        num_cameras=len(shapes.cameras),
        action_shape=shapes.actions.shape,
        action_dtype=shapes.actions.dtype,
        # Evaluations see all views: only the rollout's are dropped.
        derived_views=replace(
            shapes.derived_views,
            seed=derive_seed(config.seed, "augmented view"),
            dropout=config.agent.view_dropout,
        ),
        device=resolve_device(config.compute),
        vector_size=shapes.vector_size,
    )


def compute_rollout_bytes(config: RunConfig, shapes: Shapes) -> int:
    """Return the bytes of the rollout buffer's frames."""
    steps, envs = config.rollout.steps, config.rollout.envs
    return RolloutBuffer.compute_bytes(
        num_steps=steps, num_envs=envs, image_shape=shapes.image_shape, num_cameras=len(shapes.cameras)
    )


def build_replay_buffer(config: RunConfig, shapes: Shapes, bonus: Bonus | None) -> ReplayBuffer:
    """Build the empty replay buffer of an off-policy run, with room for the features that `bonus` stores."""
    stored = find_stored_features(bonus)
    return ReplayBuffer(
        shapes.views,
        action_shape=(shapes.actions.size,),
        capacity=config.replay.capacity,
        frame_stack=shapes.frame_stack,
        directory=get_replay_directory(config),
        feature_shape=None if stored is None else stored.feature_shape,
        state_vectors=shapes.state_vectors,
        state_stack=shapes.state_stack,
    )


def compute_replay_bytes(config: RunConfig, shapes: Shapes, bonus: Bonus | None) -> int:
    """Return the bytes of the full replay buffer, with the features that `bonus` stores, and of demonstrations."""
    stored = find_stored_features(bonus)
    demonstrations = config.replay.demonstrations
    demonstrated_steps = 0 if demonstrations is None else read_manifest(Path(demonstrations)).capacity
    return sum(
        compute_buffer_bytes(
            shapes.views,
            action_shape=(shapes.actions.size,),
            capacity=capacity,
            feature_shape=None if stored is None else stored.feature_shape,
            vector_size=count_numbers(shapes.state_vectors),
        )
        for capacity in (config.replay.capacity, demonstrated_steps)
    )


def get_replay_directory(config: RunConfig) -> Path | None:
    """Return the directory of a memory-mapped replay buffer, or None for memory."""
    return None if config.replay.directory is None else Path(config.replay.directory)


def build_sampler(
    config: RunConfig, replay: ReplayBuffer, bonus: Bonus | None, *, rows: int | None = None, stream: str = "sampler"
) -> Sampler:
    """Build the sampler of n-step batches or sequences, with the search in the features that `bonus` stores.

    `rows` replaces `replay.batch_size`, and `stream` names the random numbers.
    """
    stored = find_stored_features(bonus)
    return Sampler(
        replay,
        batch_size=config.replay.batch_size if rows is None else rows,
        n_step=config.replay.n_step,
        discount=config.replay.discount,
        seed=derive_seed(config.seed, stream),
        prefetch=config.replay.prefetch,
        device=resolve_device(config.compute),
        neighbor_search=None if stored is None else stored.neighbor_search,
        sequence_length=config.sequence_length,
    )

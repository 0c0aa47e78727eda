"""A run's parts, of its config: the one place where names become objects."""

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

# The paper's "augmentation type used for each game".
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


NO_DERIVED_VIEWS = DerivedViews(seed=0)


@dataclass(frozen=True)
class Shapes:
    """What an agent must know of an environment."""

    cameras: tuple[View, ...]
    """What the environment shows."""
    frame_stack: int
    actions: ActionSpec
    derived_views: DerivedViews = NO_DERIVED_VIEWS
    """What the agent sees beside that."""

    @property
    def views(self) -> tuple[View, ...]:
        """All that the agent sees."""
        derived = (
            replace(camera, name=f"{camera.name}_{how}", derived_from=camera.name)
            for camera, how in ((self.cameras[number], how) for number, how in self.derived_views.augmentations)
        )
        return (*self.cameras, *derived)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """[C, H, W] with the frames stacked."""
        view = self.cameras[0]
        return view.channels * self.frame_stack, view.height, view.width


def make_env(
    config: RunConfig, *, faults: Sequence[Fault] | None = None, levels: Levels | None = None
) -> gym.Env[Observation, Any]:
    return make(config.task, **_build_env_options(config), faults=faults, levels=levels)


def make_training_env(config: RunConfig) -> gym.Env[Observation, Any]:
    """Make the environment of an off-policy run: single frames, which the replay buffer stacks."""
    return make(config.task, **{**_build_env_options(config), "frame_stack": 1})


def resolve_frame_stack(config: RunConfig) -> int:
    """Return the number of stacked frames: that of the config, else the task's default."""
    if config.env.frame_stack is not None:
        return config.env.frame_stack
    return 1 if ":" in config.task else find_task(config.task).settings.frame_stack


def make_vector_env(config: RunConfig) -> AnyVectorEnv:
    """Those of a rollout."""
    return make_vector(config.task, config.rollout.envs, threads=config.machine.threads, **_build_env_options(config))


def list_evaluation_levels(settings: TaskSettings | None) -> tuple[Levels | None, ...]:
    """What a task is evaluated on: as it is trained on, and on all levels where training has some of them only."""
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
    """Of one environment, or of many."""
    any_env: Any = env
    is_vector, views = isinstance(env, VectorEnv), get_views(env)
    action_space = any_env.single_action_space if is_vector else any_env.action_space
    shapes = Shapes(
        views, resolve_frame_stack(config), _infer_actions(config, action_space), build_derived_views(config, views)
    )
    for _, how in shapes.derived_views.augmentations:
        check_image_shape(how, shapes.image_shape)
    return shapes


def _infer_actions(config: RunConfig, space: spaces.Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Discrete) and config.is_on_policy:
        if space.start != 0:
            raise ValueError(
                f"numbered actions must begin with 0, and this task has {space}: count them so in a wrapper"
            )
        return ActionSpec(int(space.n), discrete=True)
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        box_actions = "actions that are vectors of numbers"
        raise ValueError(
            f"PPO needs numbered actions or {box_actions}, and this task has {space}"
            if config.is_on_policy
            else f"DrQ-v2 and SAC need {box_actions}, and this task has {space}; ppo takes numbered ones too"
        )
    if not ((space.low == -1).all() and (space.high == 1).all()):
        raise ValueError(f"actions must lie within [-1, 1], and this task has {space}: rescale them in a wrapper")
    return ActionSpec(space.shape[0], discrete=False)


def build_derived_views(config: RunConfig, cameras: Sequence[View]) -> DerivedViews:
    """The paper makes a second view of a Procgen screen; one's own choice goes for any task of PPO."""
    choice = config.env.further_view
    augmentation: Augmentation | None
    if choice == "paper":
        augmentation = _lookup_paper_augmentation(config.task) if "mem" in config.methods else None
    else:
        augmentation = None if choice == "none" else choice
    if augmentation is None:
        return NO_DERIVED_VIEWS
    if len(cameras) > 1 and any(view.shape != cameras[0].shape for view in cameras):
        raise ValueError("a further view is made of the first camera, and all must have one size")
    return DerivedViews(derive_seed(config.seed, "further view"), ((0, augmentation),))


def _lookup_paper_augmentation(task: str) -> Augmentation | None:
    if task.startswith("procgen/") and task not in PAPER_AUGMENTED_VIEWS:
        raise ValueError(
            f"the paper has no second view for {task}, and MEM wants several: choose one with --set "
            "env.further_view=crop, or say none"
        )
    return PAPER_AUGMENTED_VIEWS.get(task)


def build_agent(config: RunConfig, shapes: Shapes) -> Any:
    """On its device, the same for the same seed; `NoRoomError` if its tensors do not fit into memory."""
    agent = build_agent_outline(config, shapes)
    needed = sum(tensor.nbytes for tensor in chain(agent.parameters(), agent.buffers()))
    check_memory(needed, what="the agent", remedy="use smaller images, features or layers")
    return _build_agent(config, shapes)


def build_agent_outline(config: RunConfig, shapes: Shapes) -> Any:
    """Return an agent whose tensors have shapes and no values: it takes no memory, and a state can be tried on it."""
    with torch.device("meta"):
        return _build_agent(replace(config, machine=replace(config.machine, device="meta")), shapes)


def _build_agent(config: RunConfig, shapes: Shapes) -> Any:
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their weights from the global generator
        torch.manual_seed(derive_seed(config.seed, "weights"))
        representation, intrinsic = _build_representation_and_bonus(config, shapes)
        beta, seed = zero_beta if intrinsic is None else config.bonus, derive_seed(config.seed, "agent")
        made: Agent
        if config.is_on_policy:
            envs = config.rollout.envs
            made = PPO(representation, shapes.actions, config.ppo, num_envs=envs, bonus=intrinsic, beta=beta, seed=seed)
        else:
            kind: Any = {"drqv2": DrQv2, "sac": SAC}[config.agent]
            settings = getattr(config, config.agent)
            made = kind(representation, shapes.actions.size, settings, bonus=intrinsic, beta=beta, seed=seed)
    made.to(resolve_device(config.machine))
    if config.machine.channels_last:
        made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made


def _build_representation_and_bonus(config: RunConfig, shapes: Shapes) -> tuple[Representation, Any]:
    representations: list[Representation] = []
    intrinsics: list[Bonus | EpisodicBonus] = []
    names, num_views = [view.name for view in shapes.views], len(shapes.views)
    for method in config.methods:
        if method == "mem":
            mem = MEM(names, shapes.image_shape, config.mem)
            representations.append(mem)
            intrinsics.append(mem)
        elif method == "re3":
            intrinsics.append(RE3(shapes.image_shape, config.re3))
        elif method == "ride":
            actions = shapes.actions
            intrinsics.append(RIDE(num_views, shapes.image_shape, actions.size, config.ride, discrete=actions.discrete))
        elif method == "curl":
            seed = derive_seed(config.seed, "curl")
            representations.append(CURL(num_views, shapes.image_shape, config.curl, seed=seed))
        else:
            representations.append(PixelEncoder(num_views, shapes.image_shape, config.none))
    if len(representations) > 1 or len(intrinsics) > 1:
        raise ValueError(f"{config.method} has two representations or two bonuses; choose one of each")
    representation = representations[0] if representations else PixelEncoder(num_views, shapes.image_shape, config.none)
    return representation, intrinsics[0] if intrinsics else None


def build_rollout_buffer(config: RunConfig, shapes: Shapes) -> RolloutBuffer:
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
    steps, envs = config.rollout.steps, config.rollout.envs
    return RolloutBuffer.compute_bytes(
        num_steps=steps, num_envs=envs, image_shape=shapes.image_shape, num_cameras=len(shapes.cameras)
    )


def build_replay_buffer(config: RunConfig, shapes: Shapes) -> ReplayBuffer:
    return ReplayBuffer(
        shapes.views,
        action_shape=(shapes.actions.size,),
        capacity=config.replay.capacity,
        frame_stack=shapes.frame_stack,
        directory=get_replay_directory(config),
    )


def compute_replay_bytes(config: RunConfig, shapes: Shapes) -> int:
    return compute_buffer_bytes(shapes.views, action_shape=(shapes.actions.size,), capacity=config.replay.capacity)


def get_replay_directory(config: RunConfig) -> Path | None:
    return None if config.replay.folder is None else Path(config.replay.folder)


def build_sampler(config: RunConfig, replay: ReplayBuffer) -> Sampler:
    return Sampler(
        replay,
        batch_size=config.replay.batch_size,
        n_step=config.replay.n_step,
        discount=config.replay.discount,
        seed=derive_seed(config.seed, "sampler"),
        prefetch=config.replay.prefetch,
        device=resolve_device(config.machine),
    )

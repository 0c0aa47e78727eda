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

from manyview.agents import PPO, SAC, Actions, Agent, DrQv2
from manyview.agents.agent import no_bonus
from manyview.data import Derived, Replay, Rollout, Sampler, bytes_needed
from manyview.data.augment import Augmentation, refuse_unfit
from manyview.data.room import check_memory
from manyview.envs import Fault, View, make, make_vector, views_of
from manyview.envs.many import Vector
from manyview.envs.suite import Levels, Settings
from manyview.envs.views import Observation
from manyview.mem import MEM
from manyview.methods import CURL, RE3, RIDE, Episodic, Intrinsic, Plain, Representation
from manyview.train.config import RunConfig
from manyview.train.machine import device_of
from manyview.train.seeds import derived_seed

# The paper's "augmentation type used for each game".
FURTHER_VIEWS: dict[str, Augmentation] = {
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


NOTHING_DERIVED = Derived(seed=0)


@dataclass(frozen=True)
class Shapes:
    """What an agent must know of an environment."""

    cameras: tuple[View, ...]
    """What the environment shows."""
    frame_stack: int
    actions: Actions
    derived: Derived = NOTHING_DERIVED
    """What the agent sees beside that."""

    @property
    def views(self) -> tuple[View, ...]:
        """All that the agent sees."""
        further = (
            replace(camera, name=f"{camera.name}_{how}", derived_from=camera.name)
            for camera, how in ((self.cameras[number], how) for number, how in self.derived.ways)
        )
        return (*self.cameras, *further)

    @property
    def image(self) -> tuple[int, int, int]:
        """[C, H, W] with the frames stacked."""
        view = self.cameras[0]
        return view.channels * self.frame_stack, view.height, view.width


def environment(
    config: RunConfig, *, faults: Sequence[Fault] | None = None, levels: Levels | None = None
) -> gym.Env[Observation, Any]:
    return make(config.task, **_options(config), faults=faults, levels=levels)


def environments(config: RunConfig) -> Vector:
    """Those of a rollout."""
    return make_vector(config.task, config.rollout.envs, threads=config.machine.threads, **_options(config))


def levels_of(settings: Settings | None) -> tuple[Levels | None, ...]:
    """What a task is evaluated on: as it is trained on, and on all levels where training has some of them only."""
    return (None,) if settings is None or settings.levels is None else get_args(Levels)


def _options(config: RunConfig) -> Any:
    env = config.env
    return {
        "views": env.views,
        "image_size": env.image_size,
        "frame_stack": env.frame_stack,
        "action_repeat": env.action_repeat,
        "render_quality": env.render_quality,
    }


def shapes_of(config: RunConfig, env: gym.Env[Observation, Any] | Vector) -> Shapes:
    """Of one environment, or of many."""
    one: Any = env
    many, views = isinstance(env, VectorEnv), views_of(env)
    actions, shown = (getattr(one, f"{'single_' if many else ''}{name}_space") for name in ("action", "observation"))
    stacked = shown[views[0].name].shape
    shapes = Shapes(views, stacked[2] // views[0].channels, _actions(config, actions), derived(config, views))
    for _, how in shapes.derived.ways:
        refuse_unfit(how, shapes.image)
    return shapes


def _actions(config: RunConfig, space: spaces.Space[Any]) -> Actions:
    if isinstance(space, spaces.Discrete) and config.on_policy:
        if space.start != 0:
            raise ValueError(
                f"numbered actions must begin with 0, and this task has {space}: count them so in a wrapper"
            )
        return Actions(int(space.n), discrete=True)
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        need = "actions that are vectors of numbers"
        raise ValueError(
            f"PPO needs numbered actions or {need}, and this task has {space}"
            if config.on_policy
            else f"DrQ-v2 and SAC need {need}, and this task has {space}; ppo takes numbered ones too"
        )
    if not ((space.low == -1).all() and (space.high == 1).all()):
        raise ValueError(f"actions must lie within [-1, 1], and this task has {space}: rescale them in a wrapper")
    return Actions(space.shape[0], discrete=False)


def derived(config: RunConfig, cameras: Sequence[View]) -> Derived:
    """The paper makes a second view of a Procgen screen; one's own choice goes for any task of PPO."""
    asked = config.env.further_view
    how: Augmentation | None
    if asked == "paper":
        how = _of_the_paper(config.task) if "mem" in config.methods else None
    else:
        how = None if asked == "none" else asked
    if how is None:
        return NOTHING_DERIVED
    if len(cameras) > 1 and any(view.shape != cameras[0].shape for view in cameras):
        raise ValueError("a further view is made of the first camera, and all must have one size")
    return Derived(derived_seed(config.seed, "further view"), ((0, how),))


def _of_the_paper(task: str) -> Augmentation | None:
    if task.startswith("procgen/") and task not in FURTHER_VIEWS:
        raise ValueError(
            f"the paper has no second view for {task}, and MEM wants several: choose one with --set "
            "env.further_view=crop, or say none"
        )
    return FURTHER_VIEWS.get(task)


def agent(config: RunConfig, shapes: Shapes) -> Any:
    """On its device, the same for the same seed; `NoRoomError` if its tensors do not fit into memory."""
    made = outline(config, shapes)
    needed = sum(tensor.nbytes for tensor in chain(made.parameters(), made.buffers()))
    check_memory(needed, what="the agent", instead="use smaller images, features or layers")
    return _agent(config, shapes)


def outline(config: RunConfig, shapes: Shapes) -> Any:
    """Return an agent whose tensors have shapes and no values: it takes no memory, and a state can be tried on it."""
    with torch.device("meta"):
        return _agent(replace(config, machine=replace(config.machine, device="meta")), shapes)


def _agent(config: RunConfig, shapes: Shapes) -> Any:
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their weights from the global generator
        torch.manual_seed(derived_seed(config.seed, "weights"))
        representation, intrinsic = _behind_the_seam(config, shapes)
        beta, seed = no_bonus if intrinsic is None else config.bonus, derived_seed(config.seed, "agent")
        made: Agent
        if config.on_policy:
            envs = config.rollout.envs
            made = PPO(representation, shapes.actions, config.ppo, envs=envs, intrinsic=intrinsic, beta=beta, seed=seed)
        else:
            kind: Any = {"drqv2": DrQv2, "sac": SAC}[config.agent]
            settings = getattr(config, config.agent)
            made = kind(representation, shapes.actions.count, settings, intrinsic=intrinsic, beta=beta, seed=seed)
    made.to(device_of(config.machine))
    if config.machine.channels_last:
        made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made


def _behind_the_seam(config: RunConfig, shapes: Shapes) -> tuple[Representation, Any]:
    representations: list[Representation] = []
    intrinsics: list[Intrinsic | Episodic] = []
    names, count = [view.name for view in shapes.views], len(shapes.views)
    for method in config.methods:
        if method == "mem":
            mem = MEM(names, shapes.image, config.mem)
            representations.append(mem)
            intrinsics.append(mem)
        elif method == "re3":
            intrinsics.append(RE3(shapes.image, config.re3))
        elif method == "ride":
            actions = shapes.actions
            intrinsics.append(RIDE(count, shapes.image, actions.count, config.ride, discrete=actions.discrete))
        elif method == "curl":
            seed = derived_seed(config.seed, "curl")
            representations.append(CURL(count, shapes.image, config.curl, seed=seed))
        else:
            representations.append(Plain(count, shapes.image, config.none))
    if len(representations) > 1 or len(intrinsics) > 1:
        raise ValueError(f"{config.method} has two representations or two bonuses; choose one of each")
    representation = representations[0] if representations else Plain(count, shapes.image, config.none)
    return representation, intrinsics[0] if intrinsics else None


def rollout(config: RunConfig, shapes: Shapes) -> Rollout:
    return Rollout(
        steps=config.rollout.steps,
        envs=config.rollout.envs,
        image=shapes.image,
        cameras=len(shapes.cameras),
        action_shape=shapes.actions.shape,
        action_dtype=shapes.actions.dtype,
        derived=shapes.derived,
        device=device_of(config.machine),
    )


def rollout_bytes(config: RunConfig, shapes: Shapes) -> int:
    steps, envs = config.rollout.steps, config.rollout.envs
    return Rollout.bytes_needed(steps=steps, envs=envs, image=shapes.image, cameras=len(shapes.cameras))


def replay(config: RunConfig, shapes: Shapes) -> Replay:
    return Replay(
        shapes.views,
        action_shape=(shapes.actions.count,),
        capacity=config.replay.capacity,
        frame_stack=shapes.frame_stack,
        folder=replay_folder(config),
    )


def replay_bytes(config: RunConfig, shapes: Shapes) -> int:
    return bytes_needed(shapes.views, action_shape=(shapes.actions.count,), capacity=config.replay.capacity)


def replay_folder(config: RunConfig) -> Path | None:
    return None if config.replay.folder is None else Path(config.replay.folder)


def sampler(config: RunConfig, replay: Replay) -> Sampler:
    return Sampler(
        replay,
        batch_size=config.replay.batch_size,
        n_step=config.replay.n_step,
        discount=config.replay.discount,
        seed=derived_seed(config.seed, "sampler"),
        prefetch=config.replay.prefetch,
        device=device_of(config.machine),
    )

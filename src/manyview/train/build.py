"""A run's parts, of its config: the one place where names become objects."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces

from manyview.agents import SAC, DrQv2, OffPolicyAgent
from manyview.agents.off_policy import no_bonus
from manyview.data import Replay, Sampler, bytes_needed
from manyview.envs import Fault, View, make, views_of
from manyview.envs.views import Observation
from manyview.mem import MEM
from manyview.methods import CURL, RE3, Intrinsic, Plain, Representation
from manyview.train.config import RunConfig
from manyview.train.machine import device_of
from manyview.train.seeds import derived_seed


@dataclass(frozen=True)
class Shapes:
    """What an agent must know of an environment."""

    views: tuple[View, ...]
    frame_stack: int
    action_dim: int

    @property
    def image(self) -> tuple[int, int, int]:
        """[C, H, W] with the frames stacked."""
        view = self.views[0]
        return view.channels * self.frame_stack, view.height, view.width


def environment(config: RunConfig, *, faults: Sequence[Fault] | None = None) -> gym.Env[Observation, Any]:
    env = config.env
    return make(
        config.task,
        views=env.views,
        image_size=env.image_size,
        frame_stack=env.frame_stack,
        action_repeat=env.action_repeat,
        render_quality=env.render_quality,
        faults=faults,
    )


def shapes_of(env: gym.Env[Observation, Any]) -> Shapes:
    views, actions = views_of(env), env.action_space
    if not isinstance(actions, spaces.Box) or len(actions.shape) != 1:
        raise ValueError(f"DrQ-v2 and SAC need actions that are vectors of numbers, and this task has {actions}")
    if not ((actions.low == -1).all() and (actions.high == 1).all()):
        raise ValueError(f"actions must lie within [-1, 1], and this task has {actions}: rescale them in a wrapper")
    stacked = env.observation_space[views[0].name].shape  # type: ignore[index]
    return Shapes(views, stacked[2] // views[0].channels, actions.shape[0])


def agent(config: RunConfig, shapes: Shapes) -> OffPolicyAgent:
    """On its device, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):  # torch's layers draw their weights from the global generator
        torch.manual_seed(derived_seed(config.seed, "weights"))
        representation, intrinsic = _behind_the_seam(config, shapes)
        kind: Any = {"drqv2": DrQv2, "sac": SAC}[config.agent]
        made: OffPolicyAgent = kind(
            representation,
            shapes.action_dim,
            getattr(config, config.agent),
            intrinsic=intrinsic,
            beta=no_bonus if intrinsic is None else config.bonus,
            seed=derived_seed(config.seed, "agent"),
        )
    made.to(device_of(config.machine))
    if config.machine.channels_last:
        made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made


def _behind_the_seam(config: RunConfig, shapes: Shapes) -> tuple[Representation, Intrinsic | None]:
    representations: list[Representation] = []
    intrinsics: list[Intrinsic] = []
    names, count = [view.name for view in shapes.views], len(shapes.views)
    for method in config.methods:
        if method == "mem":
            mem = MEM(names, shapes.image, config.mem)
            representations.append(mem)
            intrinsics.append(mem)
        elif method == "re3":
            intrinsics.append(RE3(shapes.image, config.re3))
        elif method == "curl":
            seed = derived_seed(config.seed, "curl")
            representations.append(CURL(count, shapes.image, config.curl, seed=seed))
        else:
            representations.append(Plain(count, shapes.image, config.none))
    if len(representations) > 1 or len(intrinsics) > 1:
        raise ValueError(f"{config.method} has two representations or two bonuses; choose one of each")
    representation = representations[0] if representations else Plain(count, shapes.image, config.none)
    return representation, intrinsics[0] if intrinsics else None


def replay(config: RunConfig, shapes: Shapes) -> Replay:
    return Replay(
        shapes.views,
        action_shape=(shapes.action_dim,),
        capacity=config.replay.capacity,
        frame_stack=shapes.frame_stack,
        folder=replay_folder(config),
    )


def replay_bytes(config: RunConfig, shapes: Shapes) -> int:
    return bytes_needed(shapes.views, action_shape=(shapes.action_dim,), capacity=config.replay.capacity)


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

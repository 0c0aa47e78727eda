"""Suite of the toy tasks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym

from manyview.envs.suite import Suite, Task, TaskSettings
from manyview.envs.toy.envs import Cue, DeepSea, HiddenGoal, Identity, ToyEnv
from manyview.envs.views import Observation
from manyview.envs.wrappers.observation import SelectViews

TOYS: dict[str, Callable[[], ToyEnv]] = {
    "deep_sea": DeepSea,
    "deep_sea_continuous": partial(DeepSea, actions="continuous"),
    "deep_sea_20": partial(DeepSea, 20),
    "deep_sea_20_continuous": partial(DeepSea, 20, actions="continuous"),
    "identity": Identity,
    "identity_continuous": partial(Identity, actions="continuous"),
    "hidden_goal": HiddenGoal,
    "hidden_goal_continuous": partial(HiddenGoal, actions="continuous"),
    "cue": Cue,
    "cue_continuous": partial(Cue, actions="continuous"),
}


def _make_env(task: Task, settings: TaskSettings) -> gym.Env[Observation, Any]:
    return SelectViews(TOYS[task.id.split("/")[1]](), settings.views)


def _build_task(name: str) -> Task:
    cameras = tuple(view.name for view in TOYS[name]().views)
    return Task(id=f"toy/{name}", cameras=cameras, settings=TaskSettings(views=cameras))


SUITE = Suite(
    name="toy",
    title="Toy tasks in numpy with known optimal returns",
    tasks={f"toy/{name}": _build_task(name) for name in TOYS},
    make=_make_env,
)

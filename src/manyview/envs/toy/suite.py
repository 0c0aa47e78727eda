"""The toys by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym

from manyview.envs.layers.choose import ChooseViews
from manyview.envs.suite import Settings, Suite, Task
from manyview.envs.toy.deep_sea import DeepSea
from manyview.envs.toy.hidden_goal import HiddenGoal
from manyview.envs.toy.identity import Identity
from manyview.envs.toy.toy import Toy
from manyview.envs.views import Observation

TOYS: dict[str, Callable[[], Toy]] = {
    "deep_sea": DeepSea,
    "deep_sea_continuous": partial(DeepSea, actions="continuous"),
    "identity": Identity,
    "identity_continuous": partial(Identity, actions="continuous"),
    "hidden_goal": HiddenGoal,
    "hidden_goal_continuous": partial(HiddenGoal, actions="continuous"),
}


def _make(task: Task, settings: Settings) -> gym.Env[Observation, Any]:
    return ChooseViews(TOYS[task.id.split("/")[1]](), settings.views)


def _task(name: str) -> Task:
    cameras = tuple(view.name for view in TOYS[name]().views)
    return Task(id=f"toy/{name}", cameras=cameras, settings=Settings(views=cameras))


SUITE = Suite(
    name="toy",
    title="Toys in numpy, with known answers",
    tasks={f"toy/{name}": _task(name) for name in TOYS},
    make=_make,
)

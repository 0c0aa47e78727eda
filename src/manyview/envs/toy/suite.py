"""Suite of the toy tasks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym

from manyview.envs.suite import Suite, Task, TaskSettings
from manyview.envs.toy.envs import Cue, DeepSea, HiddenGoal, Identity, ToldGoal, ToyEnv
from manyview.envs.views import Observation
from manyview.envs.wrappers.observation import SelectStateVectors, SelectViews

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
    "told_goal": ToldGoal,
    "told_goal_continuous": partial(ToldGoal, actions="continuous"),
}


def _make_env(task: Task, settings: TaskSettings) -> gym.Env[Observation, Any]:
    env = SelectViews(TOYS[task.id.split("/")[1]](), settings.views)
    # A toy without state vectors has no further wrapper: snapshots list the wrappers.
    return SelectStateVectors(env, settings.state) if env.state_vectors else env


def _build_task(name: str) -> Task:
    env = TOYS[name]()
    cameras, vectors = (tuple(part.name for part in parts) for parts in (env.views, env.state_vectors))
    return Task(id=f"toy/{name}", cameras=cameras, settings=TaskSettings(views=cameras), state=vectors)


SUITE = Suite(
    name="toy",
    title="Toy tasks in numpy with known optimal returns",
    tasks={f"toy/{name}": _build_task(name) for name in TOYS},
    make=_make_env,
)

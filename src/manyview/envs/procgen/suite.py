"""Suite of the sixteen Procgen games."""

from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from manyview.envs.procgen.env import Procgen, ProcgenVector
from manyview.envs.procgen.pool import SCREEN
from manyview.envs.suite import Levels, Suite, Task, TaskSettings
from manyview.envs.views import Observation

GAMES = (
    "bigfish",
    "bossfight",
    "caveflyer",
    "chaser",
    "climber",
    "coinrun",
    "dodgeball",
    "fruitbot",
    "heist",
    "jumper",
    "leaper",
    "maze",
    "miner",
    "ninja",
    "plunder",
    "starpilot",
)
PAPER_GAMES = ("bigfish", "bossfight", "coinrun", "dodgeball", "fruitbot", "starpilot", "ninja", "jumper", "miner")


def _validate_levels(task: Task, settings: TaskSettings) -> Levels:
    """Return the levels; `ValueError` for views or an image size EnvPool lacks."""
    if settings.views != (SCREEN.name,):
        raise ValueError(f"invalid views of {task.id}: expected [{SCREEN.name!r}], got {list(settings.views)}")
    if settings.image_size != SCREEN.height:
        raise ValueError(
            f"invalid image_size of {task.id}: expected {SCREEN.height}, the only size of EnvPool, got "
            f"{settings.image_size}. Resize the images at the input of the network instead."
        )
    return settings.levels or "train"


def _make_env(task: Task, settings: TaskSettings) -> gym.Env[Observation, Any]:
    return Procgen(task.id, levels=_validate_levels(task, settings))


def _make_vector_env(
    task: Task, settings: TaskSettings, num_envs: int, threads: int | None
) -> VectorEnv[Any, Any, Any]:
    levels = _validate_levels(task, settings)
    vector = ProcgenVector(task.id, num_envs, levels=levels, frame_stack=settings.frame_stack, num_threads=threads)
    vector.metadata["settings"] = settings
    return vector


def _build_task(game: str) -> Task:
    views = (SCREEN.name,)
    settings = TaskSettings(views=views, image_size=SCREEN.height, levels="train")
    return Task(id=f"procgen/{game}", cameras=views, settings=settings, in_paper=game in PAPER_GAMES)


SUITE = Suite(
    name="procgen",
    title="Procgen games through EnvPool",
    tasks={f"procgen/{game}": _build_task(game) for game in GAMES},
    make=_make_env,
    make_vector=_make_vector_env,
    packages=("envpool",),
    install='pip install "manyview[procgen]"',
)

"""A Meta-World task as an environment of named views."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from manyview.envs.drawing import Drawn
from manyview.envs.gl import prepare_headless_gl
from manyview.envs.simulated import Played, SimulatedEnv
from manyview.envs.suite import Settings, Task
from manyview.envs.views import State, View, generator_state, restored_generator

UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4")
"""These cameras hang head down. Their pictures are turned by half a turn; a flip alone would mirror the scene."""


class MetaWorld(SimulatedEnv):
    """An action moves the hand along three axes and opens or closes the gripper, each in [-1, 1].

    Every reset draws new places for the objects and the goal, and only the pictures tell them. The reward is
    Meta-World's shaped one, summed over the repeated action; `info["success"]` says whether the task was done in any
    of its frames. Success does not end an episode: 500 frames do, as truncated.
    """

    versions = "mujoco and metaworld"
    no_news: ClassVar[dict[str, Any]] = {"success": False}

    def __init__(self, task: Task, settings: Settings) -> None:
        prepare_headless_gl()  # before mujoco is imported
        from manyview.envs.metaworld.simulation import Simulation

        size = settings.image_size or 0
        views = [View(view, size, size) for view in settings.views]
        super().__init__(task, settings, views, spaces.Box(-1.0, 1.0, (4,), np.float32))
        self._simulation = Simulation(task.id.removeprefix("metaworld/"), image_size=size)

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        from manyview.envs.metaworld.simulation import PhysicsError

        return (PhysicsError,)

    def seed_episodes(self) -> None:
        """Episodes draw from `np_random` itself."""

    def random_state(self) -> State:
        return generator_state(self.np_random)

    def set_random_state(self, state: State) -> None:
        self.np_random = restored_generator(state)

    def begin(self) -> None:
        self._simulation.begin(self.np_random)

    def play(self, action: Any) -> Played:
        total, done, last, frames = 0.0, False, False, 0
        for _ in range(self._settings.action_repeat or 1):
            reward, success, last = self._simulation.step(action)
            total, done, frames = total + reward, done or success, frames + 1
            if last:
                break
        return Played(total, False, last, frames, {"success": done})

    def world(self) -> tuple[Any, Any]:
        return self._simulation.model, self._simulation.data

    def draw(self) -> Drawn:
        pictures, failures = super().draw()
        for name, picture in pictures.items():
            if picture is not None and name in UPSIDE_DOWN:
                pictures[name] = picture[::-1, ::-1]
        return Drawn(pictures, failures)

    def close(self) -> None:
        super().close()
        self._simulation.close()

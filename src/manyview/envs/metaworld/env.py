"""A Meta-World task as an environment of named views."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from manyview.envs.gl import prepare_headless_gl
from manyview.envs.simulated import Drawn, Played, SimulatedEnv
from manyview.envs.suite import Settings, Task
from manyview.envs.views import Image, State, View, generator_state, restored_generator


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
        views = [View(task.camera(view), size, size) for view in settings.views]
        super().__init__(task, settings, views, spaces.Box(-1.0, 1.0, (4,), np.float32))
        self._simulation = Simulation(task.id.removeprefix("metaworld/"), image_size=size)
        self._renderer: Any = None

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
        total, done, last = 0.0, False, False
        for _ in range(self._settings.action_repeat or 1):
            reward, success, last = self._simulation.step(action)
            total, done = total + reward, done or success
            if last:
                break
        return Played(total, False, last, {"success": done})

    def draw(self) -> Drawn:
        from manyview.envs.metaworld.renderer import Renderer

        if self._renderer is None:
            self._renderer = Renderer(
                self._simulation.model,
                self._simulation.data,
                image_size=self._settings.image_size or 0,
                quality=self._settings.render_quality or "standard",
            )
        pictures: dict[str, Image | None] = dict.fromkeys(view.name for view in self.views)
        failures: dict[str, Exception] = {}
        for name in pictures:
            try:
                pictures[name] = self._renderer.draw(name)
            except Exception as error:  # whatever the driver makes of it
                failures[name] = error
        return Drawn(pictures, failures)

    def physics_state(self) -> Any:
        return self._simulation.state()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._simulation.close()

"""A Meta-World task as an environment of named views."""

from typing import Any

import numpy as np
from gymnasium import spaces

from manyview.envs.gl import prepare_headless_gl
from manyview.envs.suite import Settings, Task
from manyview.envs.views import (
    Image,
    MultiViewEnv,
    NotRestorable,
    Observation,
    State,
    View,
    generator_state,
    restored_generator,
)


class MetaWorld(MultiViewEnv):
    """An action moves the hand along three axes and opens or closes the gripper, each in [-1, 1].

    Every reset draws new places for the objects and the goal, and only the pictures tell them. The reward is
    Meta-World's shaped one, summed over the repeated action; `info["success"]` says whether the task was done in any
    of its frames. Success does not end an episode: 500 frames do, as truncated.

    A physics error ends it likewise, with the last good observation and `info["physics_error"]`. A camera that cannot
    be drawn is absent for that step and tried again at the next; `counts` has both.

    A snapshot is the generator before the episode's reset, and the actions since: restoring plays them again without
    drawing, and checks that the physics arrived at exactly the same state.
    """

    def __init__(self, task: Task, settings: Settings) -> None:
        prepare_headless_gl()  # before mujoco is imported
        from manyview.envs.metaworld.simulation import Simulation

        size = settings.image_size or 0
        views = [View(_camera(task, view), size, size) for view in settings.views]
        super().__init__(views, spaces.Box(-1.0, 1.0, (4,), np.float32))
        self._task, self._settings = task, settings
        self._simulation = Simulation(task.id.removeprefix("metaworld/"), image_size=size)
        self._renderer: Any = None
        self._pictures: dict[str, Image | None] = {}
        self._generator_at_reset: State = {}
        self._actions: list[Any] = []
        self._broken = False
        self.counts = {"physics_errors": 0, **{f"camera_failures/{view.name}": 0 for view in self.views}}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._begin_episode()
        info: dict[str, Any] = {"success": False}
        return self._look(info), info

    def _begin_episode(self) -> None:
        self._generator_at_reset = generator_state(self.np_random)
        self._simulation.begin(self.np_random)
        self._actions, self._broken = [], False

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        from manyview.envs.metaworld.simulation import PhysicsError

        try:
            reward, success, last = self._play(action)
        except PhysicsError:
            self.counts["physics_errors"] += 1
            self._broken = True
            return self.observe(self._pictures), 0.0, False, True, {"success": False, "physics_error": True}
        info: dict[str, Any] = {"success": success}
        return self._look(info), reward, False, last, info

    def _play(self, action: Any) -> tuple[float, bool, bool]:
        """Step the physics without looking: the reward, whether the task was done, whether it was the last step."""
        total, done, last = 0.0, False, False
        for _ in range(self._settings.action_repeat or 1):
            reward, success, last = self._simulation.step(action)
            total, done = total + reward, done or success
            if last:
                break
        self._actions.append(np.array(action, np.float32))
        return total, done, last

    def _look(self, info: dict[str, Any]) -> Observation:
        if self._renderer is None:
            from manyview.envs.metaworld.renderer import Renderer

            self._renderer = Renderer(
                self._simulation.model,
                self._simulation.data,
                image_size=self._settings.image_size or 0,
                quality=self._settings.render_quality or "standard",
            )
        self._pictures = {view.name: self._picture(view.name, info) for view in self.views}
        return self.observe(self._pictures)

    def _picture(self, camera: str, info: dict[str, Any]) -> Image | None:
        try:
            picture: Image = self._renderer.draw(camera)
        except Exception as error:  # whatever the driver makes of it
            self.counts[f"camera_failures/{camera}"] += 1
            info.setdefault("camera_failures", {})[camera] = repr(error)
            return None
        return picture

    def snapshot(self) -> State:
        if not self._generator_at_reset:
            raise NotRestorable(f"{self._task.id} has not been reset yet, so there is nothing to restore")
        return {
            "task": self._task.id,
            "action_repeat": self._settings.action_repeat,
            "generator_at_reset": self._generator_at_reset,
            "actions": np.array(self._actions, np.float32).reshape(-1, 4),
            # After a physics error there is no state worth the name, and the next call is a reset.
            "physics": None if self._broken else self._simulation.state(),
            "pictures": {name: picture for name, picture in self._pictures.items() if picture is not None},
            "counts": dict(self.counts),
        }

    def restore(self, state: State) -> Observation:
        for name, mine in (("task", self._task.id), ("action_repeat", self._settings.action_repeat)):
            if state[name] != mine:
                raise NotRestorable(f"the snapshot is of {name} {state[name]}, this environment is of {mine}")
        self.np_random = restored_generator(state["generator_at_reset"])
        self._begin_episode()
        for action in state["actions"]:
            self._play(action)
        if state["physics"] is not None and not np.array_equal(self._simulation.state(), state["physics"]):
            raise NotRestorable(
                f"{self._task.id}: the same actions led to another state than when the snapshot was taken; were the "
                "versions of mujoco and metaworld and the kind of processor the same?"
            )
        self._broken = state["physics"] is None
        self._pictures = {view.name: state["pictures"].get(view.name) for view in self.views}
        self.counts = dict(state["counts"])
        return self.observe(self._pictures)

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._simulation.close()


def _camera(task: Task, asked: str) -> str:
    """A camera's name, from its name or number."""
    if asked in task.cameras:
        return asked
    if asked.isdecimal() and int(asked) < len(task.cameras):
        return task.cameras[int(asked)]
    numbered = ", ".join(f"{number} {name}" for number, name in enumerate(task.cameras))
    raise ValueError(f"{task.id} has no camera {asked!r}; it has {numbered}")

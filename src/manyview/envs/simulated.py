"""What environments around a physics engine share: errors, cameras that fail, and exact snapshots."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from manyview.envs.drawing import Drawing, Drawn
from manyview.envs.suite import Settings, Task
from manyview.envs.views import (
    Image,
    MultiViewEnv,
    NotRestorable,
    Observation,
    State,
    View,
    restored_counts,
    warn_of_failures,
)

RESET_ATTEMPTS = 10


class Played(NamedTuple):
    """What an agent step brought, not counting what is seen."""

    reward: float
    terminated: bool
    truncated: bool
    frames: int
    """How many simulator frames it took: the last step of an episode may be short."""
    info: dict[str, Any]


class SimulatedEnv(MultiViewEnv):
    """A physics error ends the episode as truncated, with the last good observation and `info["physics_error"]`.

    A camera that cannot be drawn is absent for that step and tried again at the next; `counts` has both.

    A snapshot is the random state before the episode's reset, and the actions since: restoring plays them again
    without drawing, and checks that the physics arrived at exactly the same state. So whatever a task keeps or changes
    (its own variables, its model, contacts) is restored without being known here.
    """

    versions: ClassVar[str]
    """The packages whose versions decide where the same actions lead."""
    rangefinders: ClassVar[bool] = True
    """Whether the rays of range finders are drawn."""
    no_news: ClassVar[dict[str, Any]] = {}
    """What `info` says at a reset and at a physics error of the things that `play` tells."""

    def __init__(self, task: Task, settings: Settings, views: Sequence[View], action_space: spaces.Box) -> None:
        super().__init__(views, action_space)
        self._task, self._settings = task, settings
        self._drawing: Drawing | None = None
        self._pictures: dict[str, Image | None] = {}
        self._random_at_reset: State = {}
        self._actions: list[Any] = []
        self._seeded = self._broken = False
        self._failing: frozenset[str] = frozenset()
        cameras = [view.name for view in self.views if view.derived_from is None]
        self.counts = {"physics_errors": 0, **{f"camera_failures/{name}": 0 for name in cameras}}

    @property
    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """What the engine raises when its physics breaks, or an episode cannot begin."""

    @abstractmethod
    def seed_episodes(self) -> None:
        """Seed whatever episodes draw from, from `np_random`."""

    @abstractmethod
    def random_state(self) -> State: ...

    @abstractmethod
    def set_random_state(self, state: State) -> None: ...

    @abstractmethod
    def begin(self) -> None:
        """Begin an episode, without drawing anything."""

    @abstractmethod
    def play(self, action: Any) -> Played:
        """Take an agent step, without drawing anything."""

    @abstractmethod
    def world(self) -> tuple[Any, Any]:
        """MuJoCo's model and data as they are now."""

    def draw(self) -> Drawn:
        if self._drawing is None:
            largest = max(max(view.height, view.width) for view in self.views)
            quality = self._settings.render_quality or "standard"
            self._drawing = Drawing(self.world, largest=largest, quality=quality, rangefinders=self.rangefinders)
        return self._drawing.draw_views(self.views)

    def physics_state(self) -> Any:
        """Everything the next step depends on, the solver's warm start included."""
        import mujoco

        (model, data), wanted = self.world(), mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(model, wanted))
        mujoco.mj_getState(model, data, state, wanted)
        return state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None or not self._seeded:
            self.seed_episodes()
            self._seeded = True
        self._begin()
        info = dict(self.no_news)
        return self._look(info), info

    def _begin(self) -> None:
        for attempt in range(RESET_ATTEMPTS):
            self._random_at_reset = self.random_state()
            try:
                self.begin()
                break
            except self.errors:
                self.counts["physics_errors"] += 1
                if attempt == RESET_ATTEMPTS - 1:
                    raise
        self._actions, self._broken = [], False

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        try:
            reward, terminated, truncated, frames, info = self.play(action)
        except self.errors as error:
            self.counts["physics_errors"] += 1
            self._broken = True
            return self.observe(self._pictures), 0.0, False, True, {**self.no_news, "physics_error": str(error)}
        self._actions.append(np.array(action, np.float32))
        return self._look(info), reward, terminated, truncated, {**info, "frames": frames}

    def _look(self, info: dict[str, Any]) -> Observation:
        self._pictures, failures = self.draw()
        if failures:
            info["camera_failures"] = {name: f"{type(error).__name__}: {error}" for name, error in failures.items()}
            for name in failures:
                self.counts[f"camera_failures/{name}"] += 1
        self._failing = warn_of_failures(self._task.id, info.get("camera_failures", {}), self._failing)
        return self.observe(self._pictures)

    def snapshot(self) -> State:
        if not self._random_at_reset:
            raise NotRestorable(f"{self._task.id} has not been reset yet, so there is nothing to restore")
        return {
            "task": self._task.id,
            "action_repeat": self._settings.action_repeat,
            "random_at_reset": self._random_at_reset,
            "actions": np.array(self._actions, np.float32).reshape(-1, *(self.action_space.shape or ())),
            # After a physics error there is no state worth the name, and the next call is a reset.
            "physics": None if self._broken else self.physics_state(),
            "pictures": {name: picture.copy() for name, picture in self._pictures.items() if picture is not None},
            "counts": dict(self.counts),
        }

    def restore(self, state: State) -> Observation:
        for name, mine in (("task", self._task.id), ("action_repeat", self._settings.action_repeat)):
            if state[name] != mine:
                raise NotRestorable(f"the snapshot is of {name} {state[name]}, this environment is of {mine}")
        actions = state["actions"]
        alike = (actions.dtype, actions.shape[1:]) == (np.float32, self.action_space.shape or ())
        if not (alike and np.isfinite(actions).all()):
            raise NotRestorable(f"{self._task.id}: the snapshot's actions are not such as this environment takes")
        self.set_random_state(state["random_at_reset"])
        self._seeded = True
        self._begin()
        for number, action in enumerate(actions, start=1):
            played = self.play(action)
            if (played.terminated or played.truncated) and number < len(actions):
                raise NotRestorable(
                    f"{self._task.id}: the snapshot has {len(actions)} actions, {number} end the episode"
                )
            self._actions.append(np.array(action, np.float32))
        if state["physics"] is not None and not np.array_equal(self.physics_state(), state["physics"]):
            raise NotRestorable(
                f"{self._task.id}: the same actions led to another state than when the snapshot was taken; were the "
                f"versions of {self.versions} and the kind of processor the same?"
            )
        self._broken = state["physics"] is None
        self._pictures = {view.name: self._restored(view, state["pictures"].get(view.name)) for view in self.views}
        self.counts = restored_counts(state["counts"], self.counts)
        return self.observe(self._redrawn())

    def _restored(self, view: View, picture: Any) -> Image | None:
        """Check a picture from outside; of a camera that had failed there is none."""
        if picture is not None and (picture.shape, picture.dtype) != (view.shape, np.uint8):
            raise NotRestorable(f"{self._task.id}: the snapshot's picture of {view.name!r} is not of this environment")
        return None if picture is None else np.asarray(picture)

    def _redrawn(self) -> dict[str, Image | None]:
        """Draw the restored state anew: another driver shows it otherwise. A camera that fails stays as it was."""
        if self._broken:
            return self._pictures
        drawn = self.draw().pictures
        seen = {name: picture for name, picture in drawn.items() if self._pictures[name] is not None}
        return {name: kept if seen.get(name) is None else seen[name] for name, kept in self._pictures.items()}

    @property
    def renderer(self) -> str | None:
        """What OpenGL calls the thing that draws; None before the first picture."""
        return None if self._drawing is None else self._drawing.driver

    def close(self) -> None:
        if self._drawing is not None:
            self._drawing.close()

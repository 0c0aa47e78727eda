"""What a suite of tasks says about itself. Nothing here needs a simulator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, TypedDict

import gymnasium as gym
from gymnasium.vector import VectorEnv

from manyview.envs.views import Observation
from manyview.envs.wrappers.faults import Fault

RenderQuality = Literal["standard", "fast", "smooth"]
"""The simulator's own; without shadows, reflections and multisampling; or that, drawn twice as large and averaged."""
FOREGROUND_SUFFIX = "_foreground"
"""What a view's name ends with that shows its camera with the background removed."""
Levels = Literal["train", "test"]


class MakeOptions(TypedDict, total=False):
    """What `make` can be asked for; None or nothing means the task's own setting."""

    views: Sequence[str | int] | None
    image_size: int | None
    frame_stack: int | None
    action_repeat: int | None
    render_quality: RenderQuality | None
    levels: Levels | None
    faults: Sequence[Fault] | None


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """How a task is shown and stepped. None: the task has no such setting."""

    views: tuple[str, ...]
    image_size: int | None = None
    """Pixels a side, before stacking."""
    frame_stack: int = 1
    action_repeat: int | None = None
    """Simulator frames per agent step."""
    render_quality: RenderQuality | None = None
    levels: Levels | None = None
    """Procgen: the 200 training levels, or all levels."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task with its default settings, which are the paper's where the paper has it."""

    id: str
    cameras: tuple[str, ...]
    """Every camera there is; `settings.views` are the ones shown unless told otherwise."""
    settings: TaskSettings
    in_paper: bool = False

    def resolve_view(self, name: str) -> str:
        """A view's name, from the name or number of its camera."""
        if name.endswith(FOREGROUND_SUFFIX):
            return self.resolve_view(name.removesuffix(FOREGROUND_SUFFIX)) + FOREGROUND_SUFFIX
        if name in self.cameras:
            return name
        if name.isdecimal() and int(name) < len(self.cameras):
            return self.cameras[int(name)]
        numbered = ", ".join(f"{number} {name}" for number, name in enumerate(self.cameras))
        raise ValueError(f"{self.id} has no camera {name!r}; it has {numbered}")


@dataclass(frozen=True, kw_only=True)
class Suite:
    name: str
    title: str
    tasks: Mapping[str, Task]
    make: Callable[[Task, TaskSettings], gym.Env[Observation, Any]]
    """The bare environment: single frames, as `settings` says."""
    make_vector: Callable[[Task, TaskSettings, int, int | None], VectorEnv[Any, Any, Any]] | None = None
    """Where the simulator steps many environments by itself, with so many threads; otherwise single ones are put
    together.
    """
    packages: tuple[str, ...] = field(default=())
    """Import names of what has to be installed."""
    install: str = ""
    """The command that installs them."""

    @property
    def is_installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.packages)

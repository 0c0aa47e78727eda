"""Descriptions of suites and tasks; no simulator is imported here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, TypedDict

import gymnasium as gym
from gymnasium.vector import VectorEnv

from manyview.envs.views import Observation
from manyview.envs.wrappers.faults import Fault
from manyview.utils.text import suggest

RenderQuality = Literal["standard", "fast", "smooth"]
"""`standard`: the simulator's default. `fast`: no shadows, reflections or multisampling.

`smooth`: `fast` with a render scale of 2.
"""
DEFAULT_RENDER_SCALES: dict[RenderQuality, int] = {"standard": 1, "fast": 1, "smooth": 2}
"""Rendered pixels per image pixel and side, if the render scale is not set."""
MAX_RENDER_SCALE = 16
"""The sum of a block of 16 x 16 pixels is the largest that fits 16 bits."""
MAX_RENDERED_SIZE = 2048
"""Limit of the side of a picture that is rendered larger than its image, in pixels."""
FOREGROUND_SUFFIX = "_foreground"
"""Suffix of a derived view that shows its camera with the background removed."""
Levels = Literal["train", "test"]


class MakeOptions(TypedDict, total=False):
    """Options of `make`; None or a missing key selects the task's default."""

    views: Sequence[str | int] | None
    state: Sequence[str] | None
    image_size: int | None
    frame_stack: int | None
    state_stack: int | None
    action_repeat: int | None
    render_quality: RenderQuality | None
    render_scale: int | None
    levels: Levels | None
    faults: Sequence[Fault] | None


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """View and step settings of a task; None where the task has no such setting."""

    views: tuple[str, ...]
    image_size: int | None = None
    """Height and width in pixels."""
    frame_stack: int = 1
    state: tuple[str, ...] = ()
    """State vectors beside the views, by name."""
    state_stack: int = 1
    """Consecutive state vectors of an observation."""
    action_repeat: int | None = None
    """Simulator frames per agent step."""
    render_quality: RenderQuality | None = None
    render_scale: int | None = None
    """Rendered pixels per image pixel and side, area-averaged."""
    levels: Levels | None = None
    """Procgen only: the 200 training levels, or all levels."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task with its default settings: the paper's, for the tasks of the paper."""

    id: str
    cameras: tuple[str, ...]
    """All available cameras; `settings.views` are the ones shown by default."""
    settings: TaskSettings
    in_paper: bool = False
    state: tuple[str, ...] = ()
    """All state vectors on offer; `settings.state` are the ones of the observation."""

    def resolve_view(self, name: str) -> str:
        """Return the view name for a camera name or number.

        Raises `ValueError` if the task has no such camera.
        """
        if name.endswith(FOREGROUND_SUFFIX):
            return self.resolve_view(name.removesuffix(FOREGROUND_SUFFIX)) + FOREGROUND_SUFFIX
        if name in self.cameras:
            return name
        if name.isdecimal() and int(name) < len(self.cameras):
            return self.cameras[int(name)]
        numbered = ", ".join(f"{number} {name}" for number, name in enumerate(self.cameras))
        raise ValueError(
            f"unknown camera: expected one of {numbered} for {self.id}, got {name!r}{suggest(name, self.cameras)}"
        )


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A group of tasks that one simulator runs."""

    name: str
    title: str
    tasks: Mapping[str, Task]
    make: Callable[[Task, TaskSettings], gym.Env[Observation, Any]]
    """Makes the unwrapped environment: single frames, according to the settings."""
    make_vector: Callable[[Task, TaskSettings, int, int | None], VectorEnv[Any, Any, Any]] | None = None
    """Makes a vector environment from task, settings, number of environments and number of threads.

    None if the simulator steps only single environments; `make_vector` then combines those.
    """
    packages: tuple[str, ...] = field(default=())
    """Import names of the packages that the suite needs."""
    install: str = ""
    """The command that installs these packages."""

    @property
    def is_installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.packages)

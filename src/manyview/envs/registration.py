"""`make` a task by name, `wrap` an environment of one's own, `make_vector` many at once."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from operator import index
from typing import Any, SupportsIndex, Unpack, get_args

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from manyview.envs.contract import is_foreign, make_env_error
from manyview.envs.suite import Levels, MakeOptions, RenderQuality, Suite, Task, TaskSettings
from manyview.envs.views import Observation, get_views
from manyview.envs.wrappers.faults import Fault, FaultInjector
from manyview.envs.wrappers.observation import FrameStack, SelectViews
from manyview.envs.wrappers.sanity import SanityCheck
from manyview.envs.wrappers.validation import CallValidator, OutputValidator
from manyview.utils.user_modules import import_user_module

SUITES = ("toy", "dmc", "procgen", "metaworld")
"""Each is a module or package `manyview.envs.<name>` with a `SUITE`; its simulator is imported when a task is made."""


def load_suite(name: str) -> Suite:
    suite: Suite = import_module(f"manyview.envs.{name}.suite").SUITE
    return suite


def list_tasks() -> dict[str, Task]:
    """Every task of every suite, installed or not."""
    return {task.id: task for name in SUITES for task in load_suite(name).tasks.values()}


def find_task(task_id: str) -> Task:
    known = list_tasks()
    if task_id not in known:
        close = get_close_matches(task_id, known, n=3) or [f"{name}/..." for name in SUITES]
        raise ValueError(
            f"no task {task_id!r}; did you mean {' or '.join(close)}? `manyview tasks` lists all, and "
            "'module:function' names a function of yours that returns a multi-view environment"
        )
    return known[task_id]


def make(
    task: str,
    *,
    views: Sequence[str | int] | None = None,
    image_size: int | None = None,
    frame_stack: int | None = None,
    action_repeat: int | None = None,
    render_quality: RenderQuality | None = None,
    levels: Levels | None = None,
    faults: Sequence[Fault] | None = None,
) -> gym.Env[Observation, Any]:
    """The task as a Gymnasium environment whose observation is a dict of views and their mask.

    Whatever is None takes the paper's value for this task (`manyview tasks` shows it).

    Args:
        task: `"dmc/hopper_hop"`, `"procgen/bigfish"`, `"toy/deep_sea"`, ... or `"module:function"` for your own
            environment: the function is called without arguments and its result wrapped with the frame stack.
        views: cameras by name or number, `"<camera>_foreground"` for one with its background removed.
        image_size: pixels a side.
        frame_stack: how many frames of each view lie along the channels.
        action_repeat: simulator frames per agent step.
        render_quality: `"standard"` is the simulator's own, `"fast"` leaves out shadows, reflections and smoothing,
            `"smooth"` draws `fast` twice as large and averages, for small pictures.
        levels: Procgen's 200 `"train"` levels, or `"test"` on all.
        faults: how cameras fail, on purpose.

    """
    options: MakeOptions = {
        "views": views,
        "image_size": image_size,
        "frame_stack": frame_stack,
        "action_repeat": action_repeat,
        "render_quality": render_quality,
        "levels": levels,
        "faults": faults,
    }
    return _make_env(task, options, name=task)


def _make_env(task: str, options: MakeOptions, *, name: str) -> gym.Env[Observation, Any]:
    """`make`, with the name that errors and warnings call it by."""
    if ":" in task:
        return _make_custom(task, options, name=name)
    spec = find_task(task)
    settings = resolve_settings(spec, options)
    base: gym.Env[Observation, Any] = _require_suite(spec).make(spec, settings)
    base.metadata = {**base.metadata, "task": task, "settings": settings}
    return wrap(base, frame_stack=settings.frame_stack, faults=options.get("faults") or (), name=name)


def make_vector(
    task: str,
    num_envs: int,
    *,
    processes: bool = False,
    threads: int | None = None,
    **options: Unpack[MakeOptions],
) -> VectorEnv[Any, Any, Any]:
    """`num_envs` of a task as one vector environment, each in a process of its own if `processes`; options as `make`.

    A finished environment begins its next episode in the same step: the observation is the new episode's first, the
    old one's last is `info["final_obs"]`, and every step of every environment is a true transition.

    Processes are spawned: a script that asks for them needs `if __name__ == "__main__":`. Procgen has
    `threads` instead, as many as there are cores if nothing is said.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if ":" not in task:
        spec = find_task(task)
        simulator = _require_suite(spec)
        if simulator.make_vector is not None:
            if options.get("faults"):
                raise ValueError(
                    f"{task} is stepped by its simulator, many at once, without faults; make one at a time"
                )
            return simulator.make_vector(spec, resolve_settings(spec, options), num_envs, threads)
    makers: list[Callable[[], gym.Env[Any, Any]]] = [
        partial(_make_env, task, options, name=f"{task}[{number}]") for number in range(num_envs)
    ]
    if processes:
        # A forked child would share the parent's GL context and locks.
        return AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def wrap(
    env: gym.Env[Observation, Any],
    *,
    frame_stack: int = 1,
    faults: Sequence[Fault] = (),
    name: str | None = None,
) -> gym.Env[Observation, Any]:
    """Checks, faults and frame stack around an environment of single multi-view frames (see `MultiView` for others).

    From the inside out: what the environment returns is checked, cameras fail as declared, views that look wrong are
    warned of, frames are stacked, and calls and actions are checked.
    """
    name = name or str(env)
    env = OutputValidator(env, name=name)
    if faults:
        env = FaultInjector(env, faults)
    env = FrameStack(SanityCheck(env, name=name), frame_stack)
    return CallValidator(env, name=name)


def resolve_settings(task: Task, options: MakeOptions) -> TaskSettings:
    """The task's settings with what was asked for in their place; what the task does not have is an error."""
    overrides = _validate_options(options)
    overrides.pop("faults", None)  # they are no setting of the task
    for name, value in overrides.items():
        if getattr(task.settings, name) is None:
            available = [field.name for field in fields(TaskSettings) if getattr(task.settings, field.name) is not None]
            raise ValueError(f"{task.id} has no {name}; it has {', '.join(available)}")
        if name in CHOICES and value not in CHOICES[name]:
            raise ValueError(f"{name} must be {' or '.join(CHOICES[name])}, got {value!r}")
    if "views" in overrides:
        overrides["views"] = tuple(task.resolve_view(asked) for asked in overrides["views"])
    return replace(task.settings, **overrides)


def _require_suite(task: Task) -> Suite:
    known_suite = load_suite(task.id.split("/")[0])
    if not known_suite.is_installed:
        raise ModuleNotFoundError(f"{task.id} needs {' and '.join(known_suite.packages)}: {known_suite.install}")
    return known_suite


def _make_custom(path: str, options: MakeOptions, *, name: str) -> gym.Env[Observation, Any]:
    module, function = path.split(":", 1)
    try:
        factory = getattr(import_user_module(module), function, None)
        if not callable(factory):
            raise ValueError(f"{module} has no function {function!r}")
        env: gym.Env[Observation, Any] = factory()
    except BaseException as error:
        if isinstance(error, ValueError | TypeError | ImportError | OSError) or not is_foreign(error):
            raise
        raise make_env_error(path, "the function", error) from error
    if not isinstance(env, gym.Env):
        raise TypeError(f"{path} must return a Gymnasium environment, it returned {type(env).__name__}")
    get_views(env)  # says what to do if there are none
    overrides = _validate_options(options)
    if surplus := overrides.keys() - {"views", "frame_stack", "faults"}:
        raise ValueError(f"{path} decides {', '.join(sorted(surplus))} itself; set it there")
    if "views" in overrides:
        env = SelectViews(env, overrides["views"])
    return wrap(env, frame_stack=overrides.get("frame_stack", 1), faults=overrides.get("faults", ()), name=name)


CHOICES = {"render_quality": get_args(RenderQuality), "levels": get_args(Levels)}


def _validate_options(options: MakeOptions) -> dict[str, Any]:
    """What was asked for, checked as far as it can be without knowing the task."""
    if unknown := options.keys() - MakeOptions.__annotations__.keys():
        raise TypeError(f"make() has no {', '.join(sorted(unknown))}; it has {', '.join(MakeOptions.__annotations__)}")
    overrides: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in overrides.keys() & {"image_size", "frame_stack", "action_repeat"}:
        value = overrides[name]
        if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        overrides[name] = index(value)
    if "views" in overrides:
        if isinstance(overrides["views"], str):
            raise ValueError(f"views must be several names, as [{overrides['views']!r}], got a single string")
        overrides["views"] = tuple(str(view) for view in overrides["views"])
    return overrides

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

from manyview.envs.layers.boundary import Boundary, Checked, env_error, is_foreign
from manyview.envs.layers.choose import ChooseViews
from manyview.envs.layers.faults import Fault, Faults
from manyview.envs.layers.sanity import Sanity
from manyview.envs.layers.stack import FrameStack
from manyview.envs.suite import Levels, Options, Quality, Settings, Suite, Task
from manyview.envs.views import Observation, views_of
from manyview.utils.user_modules import import_user_module

SUITES = ("toy", "dmc", "procgen", "metaworld")
"""Each is a module or package `manyview.envs.<name>` with a `SUITE`; its simulator is imported when a task is made."""


def suite(name: str) -> Suite:
    found: Suite = import_module(f"manyview.envs.{name}.suite").SUITE
    return found


def tasks() -> dict[str, Task]:
    """Every task of every suite, installed or not."""
    return {task.id: task for name in SUITES for task in suite(name).tasks.values()}


def find_task(task: str) -> Task:
    known = tasks()
    if task not in known:
        close = get_close_matches(task, known, n=3) or [f"{name}/..." for name in SUITES]
        raise ValueError(
            f"no task {task!r}; did you mean {' or '.join(close)}? `manyview tasks` lists all, and 'module:function' "
            "names a function of yours that returns a multi-view environment"
        )
    return known[task]


def make(
    task: str,
    *,
    views: Sequence[str | int] | None = None,
    image_size: int | None = None,
    frame_stack: int | None = None,
    action_repeat: int | None = None,
    render_quality: Quality | None = None,
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
    options: Options = {
        "views": views,
        "image_size": image_size,
        "frame_stack": frame_stack,
        "action_repeat": action_repeat,
        "render_quality": render_quality,
        "levels": levels,
        "faults": faults,
    }
    return _made(task, options, name=task)


def _made(task: str, options: Options, *, name: str) -> gym.Env[Observation, Any]:
    """`make`, with the name that errors and warnings call it by."""
    if ":" in task:
        return _make_own(task, options, name=name)
    found = find_task(task)
    settings = resolve(found, options)
    base: gym.Env[Observation, Any] = _simulator(found).make(found, settings)
    base.metadata = {**base.metadata, "task": task, "settings": settings}
    return wrap(base, frame_stack=settings.frame_stack, faults=options.get("faults") or (), name=name)


def make_vector(
    task: str,
    num_envs: int,
    *,
    processes: bool = False,
    threads: int | None = None,
    **options: Unpack[Options],
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
        found = find_task(task)
        simulator = _simulator(found)
        if simulator.make_vector is not None:
            if options.get("faults"):
                raise ValueError(
                    f"{task} is stepped by its simulator, many at once, without faults; make one at a time"
                )
            return simulator.make_vector(found, resolve(found, options), num_envs, threads)
    makers: list[Callable[[], gym.Env[Any, Any]]] = [
        partial(_made, task, options, name=f"{task}[{number}]") for number in range(num_envs)
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
    env = Checked(env, name=name)
    if faults:
        env = Faults(env, faults)
    env = FrameStack(Sanity(env, name=name), frame_stack)
    return Boundary(env, name=name)


def resolve(task: Task, options: Options) -> Settings:
    """The task's settings with what was asked for in their place; what the task does not have is an error."""
    given = _given(options)
    given.pop("faults", None)  # they are no setting of the task
    for name, value in given.items():
        if getattr(task.settings, name) is None:
            there = [field.name for field in fields(Settings) if getattr(task.settings, field.name) is not None]
            raise ValueError(f"{task.id} has no {name}; it has {', '.join(there)}")
        if name in CHOICES and value not in CHOICES[name]:
            raise ValueError(f"{name} must be {' or '.join(CHOICES[name])}, got {value!r}")
    if "views" in given:
        given["views"] = tuple(task.view(asked) for asked in given["views"])
    return replace(task.settings, **given)


def _simulator(task: Task) -> Suite:
    found = suite(task.id.split("/")[0])
    if not found.installed:
        raise ModuleNotFoundError(f"{task.id} needs {' and '.join(found.packages)}: {found.install}")
    return found


def _make_own(path: str, options: Options, *, name: str) -> gym.Env[Observation, Any]:
    module, function = path.split(":", 1)
    try:
        found = getattr(import_user_module(module), function, None)
        if not callable(found):
            raise ValueError(f"{module} has no function {function!r}")
        env: gym.Env[Observation, Any] = found()
    except BaseException as error:
        if isinstance(error, ValueError | TypeError | ImportError | OSError) or not is_foreign(error):
            raise
        raise env_error(path, "the function", error) from error
    if not isinstance(env, gym.Env):
        raise TypeError(f"{path} must return a Gymnasium environment, it returned {type(env).__name__}")
    views_of(env)  # says what to do if there are none
    given = _given(options)
    if surplus := given.keys() - {"views", "frame_stack", "faults"}:
        raise ValueError(f"{path} decides {', '.join(sorted(surplus))} itself; set it there")
    if "views" in given:
        env = ChooseViews(env, given["views"])
    return wrap(env, frame_stack=given.get("frame_stack", 1), faults=given.get("faults", ()), name=name)


CHOICES = {"render_quality": get_args(Quality), "levels": get_args(Levels)}


def _given(options: Options) -> dict[str, Any]:
    """What was asked for, checked as far as it can be without knowing the task."""
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"make() has no {', '.join(sorted(unknown))}; it has {', '.join(Options.__annotations__)}")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & {"image_size", "frame_stack", "action_repeat"}:
        value = given[name]
        if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        given[name] = index(value)
    if "views" in given:
        if isinstance(given["views"], str):
            raise ValueError(f"views must be several names, as [{given['views']!r}], got a single string")
        given["views"] = tuple(str(view) for view in given["views"])
    return given

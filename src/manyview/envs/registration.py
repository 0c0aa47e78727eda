"""Make a task by name, wrap a custom environment, or make a vector environment."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from operator import index
from pkgutil import resolve_name
from typing import Any, SupportsIndex, Unpack, cast, get_args

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from manyview.envs.custom import make_custom_env
from manyview.envs.suite import (
    DEFAULT_RENDER_SCALES,
    MAX_RENDER_SCALE,
    MAX_RENDERED_SIZE,
    Levels,
    MakeOptions,
    RenderQuality,
    Suite,
    Task,
    TaskSettings,
)
from manyview.envs.views import Observation
from manyview.envs.wrappers.faults import Fault, FaultInjector
from manyview.envs.wrappers.observation import (
    FrameStack,
    ResizeViews,
    SelectStateVectors,
    SelectViews,
    check_state_names,
)
from manyview.envs.wrappers.sanity import SanityCheck
from manyview.envs.wrappers.validation import CallValidator, OutputValidator
from manyview.utils.entry_points import describe_entry_point, find_entry_points, load_entry_point
from manyview.utils.text import format_suggestions, suggest

SUITES = {
    "toy": "toy.suite:SUITE",
    "dmc": "dmc.suite:SUITE",
    "procgen": "procgen.suite:SUITE",
    "metaworld": "metaworld.suite:SUITE",
    "fetch": "robotics.suite:FETCH",
    "adroit": "robotics.suite:ADROIT",
}
"""Objects in `manyview.envs` by suite; a simulator is imported only when a task is made."""
SUITE_GROUP = "manyview.suites"
"""Entry points of installed packages: the name of a suite and its `Suite`."""
COUNTS = {"image_size", "frame_stack", "state_stack", "action_repeat", "render_scale"}
"""Options that are integers of at least 1."""
CHOICES = {"render_quality": get_args(RenderQuality), "levels": get_args(Levels)}


def list_suites() -> tuple[str, ...]:
    """Return the names of all suites: the built-in ones, then those of installed packages."""
    return (*SUITES, *sorted(find_entry_points(SUITE_GROUP).keys() - {*SUITES}))


def load_suite(name: str) -> Suite:
    """Import the suite `name` without its simulator; `ValueError` names the package of a broken one."""
    if name in SUITES:
        return cast("Suite", resolve_name(f"manyview.envs.{SUITES[name]}"))
    entry_point = find_entry_points(SUITE_GROUP)[name]
    suite = load_entry_point(entry_point)
    is_named = isinstance(suite, Suite) and suite.name == name
    if not is_named or any(key != task.id or not key.startswith(f"{name}/") for key, task in suite.tasks.items()):
        raise ValueError(
            f"{describe_entry_point(entry_point)} is invalid: expected a Suite {name!r} with tasks by id, such as "
            f"{name}/task, got {suite!r:.200}"
        )
    return cast("Suite", suite)


def list_tasks() -> dict[str, Task]:
    """Return the tasks of all suites by id, whether the suite is installed or not."""
    return {task.id: task for name in list_suites() for task in load_suite(name).tasks.values()}


def find_task(task_id: str) -> Task:
    """Return the task with this id; `ValueError` with the closest ids if there is none."""
    suite = task_id.split("/")[0]
    if suite in list_suites() and task_id in (tasks := load_suite(suite).tasks):  # imports no other suite
        return tasks[task_id]
    module, _, function = task_id.rpartition(".")
    own = [f"{module}:{function}"] if "/" not in task_id and module and function else []
    hint = suggest(task_id, list_tasks(), n=3) or format_suggestions(own or [f"{name}/..." for name in list_suites()])
    raise ValueError(
        f"unknown task {task_id!r}{hint} `manyview tasks` lists all tasks. For a "
        "custom environment give 'module:function', a function that returns a multi-view environment."
    )


def make(
    task: str,
    *,
    views: Sequence[str | int] | None = None,
    state: Sequence[str] | None = None,
    image_size: int | None = None,
    frame_stack: int | None = None,
    state_stack: int | None = None,
    action_repeat: int | None = None,
    render_quality: RenderQuality | None = None,
    render_scale: int | None = None,
    levels: Levels | None = None,
    faults: Sequence[Fault] | None = None,
) -> gym.Env[Observation, Any]:
    """Make a task as a Gymnasium environment.

    Its observation is a dict of views, state vectors if asked for, and the mask of the views. An option that is None
    takes the task's default: the paper's value for the tasks of the paper. `manyview tasks` prints the defaults.

    Args:
        task: `"dmc/hopper_hop"`, `"procgen/bigfish"`, `"toy/deep_sea"`, ... or `"module:function"` for a custom
            environment: the result of the function is wrapped with the frame stack. Arguments of the function follow a
            `?`, as in `"my_robot:make_env?front=0&wrist=2"`.
        views: Cameras by name or number; `"<camera>_foreground"` is a camera with its background removed.
        state: State vectors beside the views, by name, such as `["position", "velocity"]`. None: none for a task of a
            suite, and all that a custom environment declares.
        image_size: Height and width in pixels. The images of a custom environment are area-averaged to it.
        frame_stack: Number of frames of each view, stacked along the channels.
        state_stack: Number of consecutive values of each state vector, oldest first.
        action_repeat: Simulator frames per agent step.
        render_quality: `"standard"` is the simulator's default, `"fast"` omits shadows, reflections and multisampling,
            `"smooth"` is `fast` with a render scale of 2.
        render_scale: Rendered pixels per image pixel and side. The picture is rendered this many times larger and
            area-averaged, so that thin objects stay visible in small images. None: 1, or 2 with `"smooth"`.
        levels: Procgen's 200 `"train"` levels, or `"test"` for all levels.
        faults: Camera faults to inject.

    """
    options: MakeOptions = {
        "views": views,
        "state": state,
        "image_size": image_size,
        "frame_stack": frame_stack,
        "state_stack": state_stack,
        "action_repeat": action_repeat,
        "render_quality": render_quality,
        "render_scale": render_scale,
        "levels": levels,
        "faults": faults,
    }
    return _make_env(task, options, name=task)


def make_vector(
    task: str,
    num_envs: int,
    *,
    processes: bool = False,
    threads: int | None = None,
    **options: Unpack[MakeOptions],
) -> VectorEnv[Any, Any, Any]:
    """Make a vector environment of `num_envs` copies of a task, with the options of `make`.

    Episodes reset in the same step: the observation is the first of the new episode, `info["final_obs"]` holds the
    last of the old one, and every step of every environment is a real transition.

    `processes` runs each environment in a spawned process, so the calling script needs `if __name__ == "__main__":`.
    Procgen uses `threads` instead; None means one per usable core.
    """
    if num_envs < 1:
        raise ValueError(f"invalid num_envs: expected at least 1, got {num_envs}")
    if ":" not in task:
        spec = find_task(task)
        simulator = _require_suite(spec)
        if simulator.make_vector is not None:
            if options.get("faults"):
                raise ValueError(
                    f"faults are not supported by the vector environment of {task}: its simulator steps all "
                    "environments at once. Use make() for single environments."
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
    image_size: int | None = None,
    frame_stack: int = 1,
    state_stack: int = 1,
    faults: Sequence[Fault] = (),
    name: str | None = None,
) -> gym.Env[Observation, Any]:
    """Wrap an environment of single multi-view frames with checks, faults and frame stack.

    From the inside out: validate what the environment returns, resize it if `image_size` is set, inject the faults,
    warn about views that look wrong, stack frames, validate calls and actions. `MultiView` gives views to any other
    environment.
    """
    name = name or str(env)
    env = OutputValidator(env, name=name)
    if image_size is not None:
        env = ResizeViews(env, image_size)
    if faults:
        env = FaultInjector(env, faults)
    env = FrameStack(SanityCheck(env, name=name), frame_stack, state_stack=state_stack)
    return CallValidator(env, name=name)


def resolve_settings(task: Task, options: MakeOptions) -> TaskSettings:
    """Return the task's settings with the options applied.

    Raises `ValueError` for an option that the task does not have, and for an invalid value.
    """
    overrides = _validate_options(options)
    overrides.pop("faults", None)  # not a setting of the task
    for name, value in overrides.items():
        if getattr(task.settings, name) is None:
            available = [field.name for field in fields(TaskSettings) if getattr(task.settings, field.name) is not None]
            raise ValueError(f"unsupported option for {task.id}: expected one of {', '.join(available)}, got {name}")
        if name in CHOICES and value not in CHOICES[name]:
            raise ValueError(f"invalid {name}: expected {' or '.join(CHOICES[name])}, got {value!r}")
    if "views" in overrides:
        overrides["views"] = tuple(task.resolve_view(view) for view in overrides["views"])
    if "state" in overrides:
        check_state_names(overrides["state"], task.state, task.id)
    if "render_quality" in overrides:
        overrides.setdefault("render_scale", DEFAULT_RENDER_SCALES[overrides["render_quality"]])
    settings = replace(task.settings, **overrides)
    _check_render_scale(settings)
    return settings


def _check_render_scale(settings: TaskSettings) -> None:
    if settings.render_scale is not None and settings.image_size is not None:
        limit = max(1, min(MAX_RENDER_SCALE, MAX_RENDERED_SIZE // settings.image_size))
        if settings.render_scale > limit:
            raise ValueError(
                f"invalid render_scale: expected at most {limit} for images of {settings.image_size} pixels, got "
                f"{settings.render_scale}. Lower render_scale or image_size."
            )


def _make_env(task: str, options: MakeOptions, *, name: str) -> gym.Env[Observation, Any]:
    """Make a task; `name` identifies the environment in errors and warnings."""
    if ":" in task:
        return _make_custom(task, options, name=name)
    spec = find_task(task)
    settings = resolve_settings(spec, options)
    base: gym.Env[Observation, Any] = _require_suite(spec).make(spec, settings)
    base.metadata = {**base.metadata, "task": task, "settings": settings}
    return wrap(
        base,
        frame_stack=settings.frame_stack,
        state_stack=settings.state_stack,
        faults=options.get("faults") or (),
        name=name,
    )


def _require_suite(task: Task) -> Suite:
    suite = load_suite(task.id.split("/")[0])
    if not suite.is_installed:
        raise ModuleNotFoundError(f"{task.id} needs {' and '.join(suite.packages)}: {suite.install}")
    return suite


def _make_custom(task: str, options: MakeOptions, *, name: str) -> gym.Env[Observation, Any]:
    env = make_custom_env(task)
    overrides = _validate_options(options)
    supported = ("views", "state", "image_size", "frame_stack", "state_stack", "faults")
    if surplus := overrides.keys() - set(supported):
        raise ValueError(
            f"unsupported option for a custom environment: expected one of {', '.join(supported)}, got "
            f"{', '.join(sorted(surplus))}. Set it in {task}."
        )
    if "views" in overrides:
        env = SelectViews(env, overrides.pop("views"))
    if "state" in overrides:
        env = SelectStateVectors(env, overrides.pop("state"))
    return wrap(env, **overrides, name=name)


def _validate_options(options: MakeOptions) -> dict[str, Any]:
    """Return the options that are set, after the checks that need no task."""
    if unknown := options.keys() - MakeOptions.__annotations__.keys():
        expected = ", ".join(MakeOptions.__annotations__)
        raise TypeError(f"unknown option of make(): expected one of {expected}, got {', '.join(sorted(unknown))}")
    overrides: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in overrides.keys() & COUNTS:
        value = overrides[name]
        if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < 1:
            raise ValueError(f"invalid {name}: expected an integer of at least 1, got {value!r}")
        overrides[name] = index(value)
    for name in overrides.keys() & {"views", "state"}:
        if isinstance(overrides[name], str):
            raise ValueError(
                f"invalid {name}: expected a sequence of names, got the string {overrides[name]!r}. "
                f"Use [{overrides[name]!r}]."
            )
        overrides[name] = tuple(map(str, overrides[name]))
    return overrides

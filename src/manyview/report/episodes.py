"""Episodes of a run's agent, played again, also with some of its cameras only."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from manyview.agents import Agent
from manyview.envs import Fault, View, views_of
from manyview.envs.layers.boundary import EnvError
from manyview.envs.suite import Levels
from manyview.envs.views import Observation
from manyview.train import RunConfig, RunFolder, build, checkpoint
from manyview.train.clock import Clock
from manyview.train.config import MachineConfig
from manyview.train.evaluation import Evaluation, evaluate, starts_after
from manyview.train.machine import autocast, prepare, resolved
from manyview.train.stopping import EnvCalls


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of it, and of what."""

    config: RunConfig
    evaluation: Evaluation
    views: tuple[View, ...]
    present: tuple[str, ...]
    """The views that were not masked."""
    frames: int
    """That the agent had trained for."""
    beta: float
    levels: Levels | None
    """None where a task has none."""


def play(
    folder: Path,
    *,
    episodes: int,
    cameras: Sequence[str] | None = None,
    seed: int | None = None,
    filmed: bool = False,
    own_task: str | None = None,
    levels: Levels | None = None,
) -> Played:
    """Play with the newest checkpoint of a run, without noise.

    Args:
        folder: of the run.
        episodes: how many.
        cameras: only these are present, the others masked; a view derived from a camera goes with it. None: all.
        seed: of the episodes' starts. None: that of the run's own evaluation after so many frames, so that they begin
            as its episodes did.
        filmed: keep the pictures of the first episode.
        own_task: of a run on an environment of one's own, its `module:function`. A folder that came from elsewhere must
            not choose what is executed.
        levels: of a task that trains on some of its levels: those, or all of them for a `test`. None: those.

    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    run = RunFolder(folder)
    config = run.config()
    if ":" in config.task and config.task != own_task:
        raise ValueError(
            f"the run is of {config.task!r}, which is code: if it is yours, say so with --own-task {config.task}"
        )
    if not checkpoint.every(run.checkpoints):
        raise FileNotFoundError(f"{folder} holds no checkpoint, so there is no agent to play with")
    config = replace(config, machine=_usable_here(config.machine))
    prepare(config.machine)
    env, calls = _environment(config, cameras, levels), EnvCalls(config.task)
    try:
        shapes = build.shapes_of(config, env)
        played_on = getattr(env.metadata.get("settings"), "levels", None)
        folder, found = checkpoint.newest(run.checkpoints)
        _load(build.outline(config, shapes), folder, found)  # first: weights of any size take long to draw
        agent = build.agent(config, shapes)
        clock = _load(agent, folder, found)
        with autocast(config.machine):
            starts = starts_after(clock.frames, seed=config.seed, has_levels=played_on is not None)
            evaluation = evaluate(
                agent,
                env,
                shapes,
                episodes=episodes,
                seed=starts.seed if seed is None else seed,
                in_sequence=starts.in_sequence,
                step=clock.steps,
                calls=calls,
                filmed_steps=config.evaluation.video_steps if filmed else 0,
                max_steps=config.evaluation.max_steps,
            )
    finally:
        with suppress(EnvError), calls("close"):
            env.close()
    gone = set() if cameras is None else {view.name for view in shapes.views if _camera(view) not in cameras}
    return Played(
        config=config,
        evaluation=evaluation,
        views=shapes.views,
        present=tuple(view.name for view in shapes.views if view.name not in gone),
        frames=clock.frames,
        beta=agent.beta(clock.elapsed(config.bonus.unit)),
        levels=played_on,
    )


def absent_cameras(views: Sequence[View], present: Sequence[str]) -> list[str]:
    """All cameras but these; what is no camera is an error."""
    cameras = [view.name for view in views if view.derived_from is None]
    for name in present:
        of = next((view.derived_from for view in views if view.name == name), None)
        if of is not None:
            raise ValueError(f"{name} goes with its camera: name {of} to have both")
        if name not in cameras:
            raise ValueError(f"no camera {name!r}; the run has {', '.join(cameras)}")
    if not present:
        raise ValueError(f"at least one camera must be present: {', '.join(cameras)}")
    return [name for name in cameras if name not in present]


def _environment(config: RunConfig, cameras: Sequence[str] | None, levels: Levels | None) -> gym.Env[Observation, Any]:
    env = build.environment(config, levels=levels)
    if cameras is None:
        return env
    try:
        absent = absent_cameras(views_of(env), cameras)
    finally:
        env.close()
    gone = [Fault(view=name, kind="gone", lasts="episode", at_step=0) for name in absent]
    return build.environment(config, faults=gone, levels=levels)


def _load(agent: Agent, folder: Path, found: checkpoint.Checkpoint) -> Clock:
    """Load an agent from what was found in a folder; the clock at that time."""
    tree, clock = found.tree, Clock()
    try:
        agent.load_state(tree["agent"])
        clock.load_state(tree["clock"])
    except Exception as error:  # whole, but of another build or of somebody else's making
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the checkpoint {folder} cannot be loaded: {reason}") from error
    return clock


def _camera(view: View) -> str:
    return view.name if view.derived_from is None else view.derived_from


def _usable_here(machine: MachineConfig) -> MachineConfig:
    """The device of the training if there is such a one, else whatever there is."""
    try:
        return resolved(machine)
    except ValueError:
        return resolved(replace(machine, device="auto"))

"""Episodes of a run's agent, played again, also with some of its cameras only."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from manyview.agents import Agent
from manyview.config.schema import MachineConfig
from manyview.envs import Fault, View, get_views
from manyview.envs.contract import EnvError
from manyview.envs.suite import Levels
from manyview.envs.views import Observation
from manyview.train import RunConfig, RunDir, checkpoint, factory
from manyview.train.compute import autocast, configure_torch, resolve_machine
from manyview.train.counters import Counters
from manyview.train.evaluation import Evaluation, choose_starts, evaluate_policy
from manyview.train.signals import EnvCallTracker


@dataclass(frozen=True, kw_only=True)
class PolicyRollout:
    """What came of it, and of what."""

    config: RunConfig
    evaluation: Evaluation
    views: tuple[View, ...]
    present_views: tuple[str, ...]
    """The views that were not masked."""
    frames: int
    """That the agent had trained for."""
    beta: float
    levels: Levels | None
    """None where a task has none."""


def play_episodes(
    run_path: Path,
    *,
    episodes: int,
    cameras: Sequence[str] | None = None,
    seed: int | None = None,
    record_video: bool = False,
    trusted_task: str | None = None,
    levels: Levels | None = None,
) -> PolicyRollout:
    """Play with the newest checkpoint of a run, without noise.

    Args:
        run_path: of the run.
        episodes: how many.
        cameras: only these are present, the others masked; a view derived from a camera goes with it. None: all.
        seed: of the episodes' starts. None: that of the run's own evaluation after so many frames, so that they begin
            as its episodes did.
        record_video: keep the pictures of the first episode.
        trusted_task: of a run on an environment of one's own, its `module:function`. A folder that came from
            elsewhere must not choose what is executed.
        levels: of a task that trains on some of its levels: those, or all of them for a `test`. None: those.

    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    if ":" in config.task and config.task != trusted_task:
        raise ValueError(
            f"the run is of {config.task!r}, which is code: if it is yours, say so with --own-task {config.task}"
        )
    if not checkpoint.list_checkpoints(run_dir.checkpoints_dir):
        raise FileNotFoundError(f"{run_path} holds no checkpoint, so there is no agent to play with")
    config = replace(config, machine=_resolve_available_machine(config.machine))
    configure_torch(config.machine)
    env, calls = _make_env(config, cameras, levels), EnvCallTracker(config.task)
    try:
        shapes = factory.infer_shapes(config, env)
        evaluated_levels = getattr(env.metadata.get("settings"), "levels", None)
        run_path, found = checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)
        _load_agent(
            factory.build_agent_outline(config, shapes), run_path, found
        )  # first: weights of any size take long to draw
        agent = factory.build_agent(config, shapes)
        counters = _load_agent(agent, run_path, found)
        with autocast(config.machine):
            starts = choose_starts(counters.frames, seed=config.seed, has_levels=evaluated_levels is not None)
            evaluation = evaluate_policy(
                agent,
                env,
                shapes,
                episodes=episodes,
                seed=starts.seed if seed is None else seed,
                sequential=starts.sequential,
                step=counters.steps,
                calls=calls,
                video_steps=config.evaluation.video_steps if record_video else 0,
                max_steps=config.evaluation.max_steps,
            )
    finally:
        with suppress(EnvError), calls("close"):
            env.close()
    absent = (
        set() if cameras is None else {view.name for view in shapes.views if _get_source_camera(view) not in cameras}
    )
    return PolicyRollout(
        config=config,
        evaluation=evaluation,
        views=shapes.views,
        present_views=tuple(view.name for view in shapes.views if view.name not in absent),
        frames=counters.frames,
        beta=agent.beta(counters.count(config.bonus.unit)),
        levels=evaluated_levels,
    )


def list_absent_cameras(views: Sequence[View], present: Sequence[str]) -> list[str]:
    """All cameras but these; what is no camera is an error."""
    cameras = [view.name for view in views if view.derived_from is None]
    for name in present:
        camera = next((view.derived_from for view in views if view.name == name), None)
        if camera is not None:
            raise ValueError(f"{name} goes with its camera: name {camera} to have both")
        if name not in cameras:
            raise ValueError(f"no camera {name!r}; the run has {', '.join(cameras)}")
    if not present:
        raise ValueError(f"at least one camera must be present: {', '.join(cameras)}")
    return [name for name in cameras if name not in present]


def _make_env(config: RunConfig, cameras: Sequence[str] | None, levels: Levels | None) -> gym.Env[Observation, Any]:
    env = factory.make_env(config, levels=levels)
    if cameras is None:
        return env
    try:
        absent = list_absent_cameras(get_views(env), cameras)
    finally:
        env.close()
    faults = [Fault(view=name, kind="gone", lasts="episode", at_step=0) for name in absent]
    return factory.make_env(config, faults=faults, levels=levels)


def _load_agent(agent: Agent, folder: Path, found: checkpoint.Checkpoint) -> Counters:
    """Load an agent from what was found in a folder; the clock at that time."""
    state, counters = found.state, Counters()
    try:
        agent.load_state(state["agent"])
        counters.load_state(state["counters"])
    except Exception as error:  # whole, but of another build or of somebody else's making
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the checkpoint {folder} cannot be loaded: {reason}") from error
    return counters


def _get_source_camera(view: View) -> str:
    return view.name if view.derived_from is None else view.derived_from


def _resolve_available_machine(machine: MachineConfig) -> MachineConfig:
    """The device of the training if there is such a one, else whatever there is."""
    try:
        return resolve_machine(machine)
    except ValueError:
        return resolve_machine(replace(machine, device="auto"))

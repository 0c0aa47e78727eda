"""Evaluation of a saved policy, with all or some of its cameras."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from manyview.agents import Agent
from manyview.config.groups import ComputeConfig
from manyview.envs import Fault, View, get_views
from manyview.envs.contract import EnvError
from manyview.envs.suite import Levels
from manyview.envs.views import Observation
from manyview.train import RunConfig, RunDir, checkpoint, factory
from manyview.train.compute import autocast, configure_torch, resolve_compute
from manyview.train.counters import Counters
from manyview.train.evaluation import Evaluation, choose_starts, evaluate_policy
from manyview.train.signals import EnvCallTracker


@dataclass(frozen=True, kw_only=True)
class PolicyRollout:
    """Result of an evaluation, with the run and checkpoint it belongs to."""

    config: RunConfig
    evaluation: Evaluation
    views: tuple[View, ...]
    present_views: tuple[str, ...]
    """Names of the views that were not masked."""
    frames: int
    """Simulator frames of training before the checkpoint."""
    beta: float
    """Weight of the bonus at the checkpoint."""
    levels: Levels | None
    """Levels of the evaluation; None for tasks without levels."""


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
    """Play episodes with the newest checkpoint of a run, without exploration noise.

    Args:
        run_path: Run directory.
        episodes: Number of episodes, at least 1.
        cameras: Cameras to keep; the others are masked, together with the views derived from them. None keeps all.
        seed: Seed of the initial states. None uses the seed of the run's own evaluation at the checkpoint, so that
            episodes start as in that evaluation.
        record_video: Keep the images of the first episode.
        trusted_task: `module:function` of a run on your own environment. A run directory from elsewhere must not choose
            the code to execute.
        levels: `train` for the training levels, `test` for all levels, for tasks that train on some of their levels.
            None is `train`.

    Raises:
        ValueError: An argument is invalid, the task is not trusted, or the checkpoint cannot be loaded.
        FileNotFoundError: The directory holds no run or no checkpoint.

    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    run_dir = RunDir(run_path)
    config = run_dir.read_config()
    if ":" in config.task and config.task != trusted_task:
        raise ValueError(
            f"task {config.task!r} is code that is not trusted: expected --own-task {config.task}, got "
            f"{trusted_task!r}. Add the option if the code is yours"
        )
    if not checkpoint.list_checkpoints(run_dir.checkpoints_dir):
        raise FileNotFoundError(f"{run_path} holds no checkpoint: expected a run that has saved at least one")
    config = replace(config, compute=_resolve_available_compute(config.compute))
    configure_torch(config.compute)
    env, calls = _make_env(config, cameras, levels), EnvCallTracker(config.task)
    try:
        shapes = factory.infer_shapes(config, env)
        evaluated_levels = getattr(env.metadata.get("settings"), "levels", None)
        checkpoint_path, saved = checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)
        # Outline first: initializing weights of arbitrary size takes long, and a mismatch shows without them.
        _load_agent(factory.build_agent_outline(config, shapes), checkpoint_path, saved)
        agent = factory.build_agent(config, shapes)
        counters = _load_agent(agent, checkpoint_path, saved)
        with autocast(config.compute):
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
        beta=agent.beta(counters.count(config.beta_unit)),
        levels=evaluated_levels,
    )


def list_absent_cameras(views: Sequence[View], present: Sequence[str]) -> list[str]:
    """Return the cameras that are not in `present`.

    Raises:
        ValueError: `present` is empty, or has a name that is not a camera.

    """
    cameras = [view.name for view in views if view.derived_from is None]
    for name in present:
        camera = next((view.derived_from for view in views if view.name == name), None)
        if camera is not None:
            raise ValueError(f"{name} is derived from a camera: expected {camera}, which keeps both views")
        if name not in cameras:
            raise ValueError(f"unknown camera {name!r}: expected one of {', '.join(cameras)}")
    if not present:
        raise ValueError(f"no camera is present: expected at least one of {', '.join(cameras)}")
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


def _load_agent(agent: Agent, path: Path, saved: checkpoint.Checkpoint) -> Counters:
    """Load the agent from the checkpoint read from `path`; return the counters of the run at that time."""
    state, counters = saved.state, Counters()
    try:
        agent.load_state(state["agent"])
        counters.load_state(state["counters"])
    except Exception as error:  # checksums match, but another version or an untrusted source wrote it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"checkpoint {path} cannot be loaded: {reason}") from error
    return counters


def _get_source_camera(view: View) -> str:
    return view.name if view.derived_from is None else view.derived_from


def _resolve_available_compute(config: ComputeConfig) -> ComputeConfig:
    """Resolve the device of the training if it is available here, otherwise `auto`."""
    try:
        return resolve_compute(config)
    except ValueError:
        return resolve_compute(replace(config, device="auto"))

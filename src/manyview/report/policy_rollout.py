"""Evaluation of a saved policy, with all or some of its cameras."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from warnings import catch_warnings, simplefilter

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from manyview.agents import ActionSpec, Agent
from manyview.config.groups import ComputeConfig
from manyview.envs import Fault, View
from manyview.envs.contract import EnvError
from manyview.envs.suite import Levels
from manyview.envs.views import Observation, ViewWarning
from manyview.methods import Representation
from manyview.training import RunConfig, RunDir, checkpoint, factory
from manyview.training.compute import autocast, configure_torch, resolve_compute
from manyview.training.evaluation import Evaluation, choose_starts, evaluate_policy
from manyview.training.saved_agent import build_saved_agent, check_trusted_task
from manyview.training.signals import EnvCallTracker
from manyview.utils.seeding import make_rng
from manyview.utils.text import suggest


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


class RandomPolicy(Agent):
    """Policy of uniform random actions, equal at equal steps."""

    def __init__(self, representation: Representation, actions: ActionSpec, *, seed: int) -> None:
        super().__init__(representation)
        self._actions, self._seed = actions, seed

    def act(
        self,
        views: Tensor,
        mask: Tensor,  # noqa: ARG002
        vectors: Tensor | None = None,  # noqa: ARG002
        *,
        step: int,
        explore: bool,  # noqa: ARG002
    ) -> Tensor:
        rng, size = make_rng(self._seed, "random policy", step), self._actions.size
        if self._actions.discrete:
            return torch.from_numpy(rng.integers(size, size=len(views)))
        return torch.from_numpy(rng.uniform(-1, 1, (len(views), size)).astype(np.float32))


class RunPlayer:
    """Play episodes with the newest checkpoint of a run, without exploration noise.

    Use it as a context manager, or call `close`.

    Args:
        run_path: Run directory.
        trusted_task: `module:function` of a run on your own environment. A run directory from elsewhere must not choose
            the code to execute.
        levels: `train` for the training levels, `test` for all levels, for tasks that train on some of their levels.
            None is `train`.

    Raises:
        ValueError: The task is not trusted, or the checkpoint cannot be loaded.
        FileNotFoundError: The directory holds no run or no checkpoint.

    """

    def __init__(self, run_path: Path, *, trusted_task: str | None = None, levels: Levels | None = None) -> None:
        run_dir = RunDir(run_path)
        config = run_dir.read_config()
        check_trusted_task(config.task, trusted_task)
        if not checkpoint.list_checkpoints(run_dir.checkpoints_dir):
            raise FileNotFoundError(f"{run_path} holds no checkpoint: expected a run that has saved at least one")
        self.config = config = replace(config, compute=_resolve_available_compute(config.compute))
        configure_torch(config.compute)
        self._levels, self._calls = levels, EnvCallTracker(config.task)
        self._env = factory.make_env(config, levels=levels)
        try:
            self.shapes = factory.infer_shapes(config, self._env)
            self.levels: Levels | None = getattr(self._env.metadata.get("settings"), "levels", None)
            checkpoint_path, saved = checkpoint.load_newest_checkpoint(run_dir.checkpoints_dir)
            self.agent, self.counters = build_saved_agent(config, self.shapes, checkpoint_path, saved)
        except BaseException:
            self.close()
            raise

    @property
    def env(self) -> gym.Env[Observation, Any]:
        """Environment of the episodes, with stacked frames."""
        return self._env

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras, without derived views."""
        return tuple(view.name for view in self.shapes.cameras if view.derived_from is None)

    def play(
        self,
        *,
        episodes: int,
        cameras: Sequence[str] | None = None,
        faults: Sequence[Fault] = (),
        seed: int | None = None,
        record_video: bool = False,
        wrap_env: Callable[[gym.Env[Observation, Any]], gym.Env[Observation, Any]] | None = None,
    ) -> PolicyRollout:
        """Play episodes and return their results.

        Args:
            episodes: Number of episodes, at least 1.
            cameras: Cameras to keep; the others are masked, together with the views derived from them. None keeps all.
                Without any camera no policy can act: the actions are uniformly random.
            faults: Faults of the cameras.
            seed: Seed of the initial states. None uses the seed of the run's own evaluation at the checkpoint, so that
                episodes start as in that evaluation.
            record_video: Keep the images of the first episode.
            wrap_env: Wraps the environment, for example to record its episodes.

        Raises:
            ValueError: An argument is invalid.

        """
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        config, shapes, counters = self.config, self.shapes, self.counters
        absent = () if cameras is None else list_absent_views(shapes.views, cameras)
        starts = choose_starts(counters.frames, seed=config.seed, has_levels=self.levels is not None)
        env = factory.make_env(config, faults=faults, levels=self._levels) if faults else self._env
        is_blind = cameras is not None and not cameras
        policy = RandomPolicy(self.agent.representation, shapes.actions, seed=config.seed) if is_blind else self.agent
        try:
            with autocast(config.compute), catch_warnings():
                if faults:  # which sanity checks would report
                    simplefilter("ignore", ViewWarning)
                evaluation = evaluate_policy(
                    policy,
                    env if wrap_env is None else wrap_env(env),
                    shapes,
                    episodes=episodes,
                    seed=starts.seed if seed is None else seed,
                    sequential=starts.sequential,
                    step=counters.steps,
                    calls=self._calls,
                    video_steps=config.evaluation.video_steps if record_video else 0,
                    max_steps=config.evaluation.max_steps,
                    absent_views=absent,
                )
        finally:
            if faults:
                self._close_env(env)
        return PolicyRollout(
            config=config,
            evaluation=evaluation,
            views=shapes.views,
            present_views=tuple(view.name for view in shapes.views if view.name not in absent),
            frames=counters.frames,
            beta=self.agent.beta(counters.count(config.beta_unit)),
            levels=self.levels,
        )

    def close(self) -> None:
        """Close the environment and ignore its errors."""
        self._close_env(self._env)

    def _close_env(self, env: gym.Env[Observation, Any]) -> None:
        with suppress(EnvError), self._calls("close"):
            env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def list_absent_views(views: Sequence[View], present: Sequence[str]) -> tuple[str, ...]:
    """Return the cameras that are not in `present`, and the views derived from them.

    Raises ValueError if `present` has a name that is not a camera.
    """
    cameras = [view.name for view in views if view.derived_from is None]
    for name in present:
        camera = next((view.derived_from for view in views if view.name == name), None)
        if camera is not None:
            raise ValueError(f"{name} is derived from a camera: expected {camera}, which keeps both views")
        if name not in cameras:
            raise ValueError(f"unknown camera {name!r}: expected one of {', '.join(cameras)}{suggest(name, cameras)}")
    return tuple(view.name for view in views if (view.derived_from or view.name) not in present)


def _resolve_available_compute(config: ComputeConfig) -> ComputeConfig:
    """Resolve the device of the training if it is available here, otherwise `auto`."""
    try:
        return resolve_compute(config)
    except ValueError:
        return resolve_compute(replace(config, device="auto"))

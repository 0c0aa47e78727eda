"""Write episodes of a run's policy as a LeRobot dataset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from manyview.data.lerobot.layout import DatasetError
from manyview.data.lerobot.writer import DatasetSpec, DatasetWriter, RecordedFrame
from manyview.deploy.dataset_mapping import format_number_names
from manyview.envs.views import MASK, Image, Observation, View, ViewWrapper
from manyview.report.policy_rollout import RunPlayer
from manyview.runtime.spec import ActionBounds
from manyview.training.factory import Shapes
from manyview.training.policy_spec import build_policy_spec
from manyview.utils.atomic_io import create_folder
from manyview.utils.text import format_count

DEFAULT_FPS = 15.0
"""Frames per second if the environment does not say how often it acts."""
Log = Callable[[str], None]


@dataclass(frozen=True)
class DatasetExport:
    """Result of an export."""

    returns: list[float]
    num_frames: int
    fps: float
    left_out: tuple[str, ...]
    """Views that are computed from a camera, which a dataset does not hold."""


class EpisodeRecorder(ViewWrapper):
    """Record the episodes of an environment with stacked frames, as single frames.

    Args:
        env: Environment of an evaluation.
        shapes: Views and actions of the agent.
        bounds: Units of the recorded actions.
        write: Receives each episode when it has ended; one that is cut, at the next `reset` or at `finish`.

    """

    def __init__(
        self,
        env: gym.Env[Observation, Any],
        shapes: Shapes,
        bounds: ActionBounds,
        write: Callable[[Sequence[RecordedFrame]], None],
    ) -> None:
        super().__init__(env)
        self._shapes, self._bounds, self._write = shapes, bounds, write
        self._cameras = list_cameras(shapes.cameras)
        self._frames: list[RecordedFrame] = []
        self._observation: Observation = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        self.finish()
        self._observation, info = self.env.reset(seed=seed, options=options)
        return self._observation, info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        before = self._observation
        self._observation, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(self._make_frame(before, action, float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            self.finish()
        return self._observation, reward, terminated, truncated, info

    def finish(self) -> None:
        """Pass on the episode so far, if there is one."""
        if self._frames:
            frames, self._frames = self._frames, []
            self._write(frames)

    def _make_frame(
        self, observation: Observation, action: Any, reward: float, terminated: bool, truncated: bool
    ) -> RecordedFrame:
        names = [view.name for view in self._shapes.cameras]
        return RecordedFrame(
            images={view.name: _get_newest(observation[view.name], view) for view in self._cameras},
            present=[bool(observation[MASK][names.index(view.name)]) for view in self._cameras],
            state=self._join_vectors(observation),
            action=self._bounds.denormalize(np.asarray(action)),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
        )

    def _join_vectors(self, observation: Observation) -> NDArray[np.float32] | None:
        """Return the newest value of each vector, joined."""
        vectors = [observation[vector.name][-vector.size :] for vector in self._shapes.state_vectors]
        return np.concatenate(vectors) if vectors else None


def write_dataset(
    run: Path,
    out: Path,
    *,
    episodes: int,
    fps: float | None = None,
    seed: int | None = None,
    own_task: str | None = None,
    log: Log = lambda _: None,
) -> DatasetExport:
    """Play episodes with the newest checkpoint of a run and write them to the new folder `out`.

    Args:
        run: Run directory.
        out: New folder.
        episodes: Number of episodes.
        fps: Frames per second; None is the rate of the environment, or `DEFAULT_FPS`.
        seed: Seed of the initial states; None is that of the run's own evaluation.
        own_task: As for `RunPlayer`.
        log: Receives progress.

    Raises:
        ValueError: An argument or the run is invalid, or its views or actions do not fit into a dataset.
        FileExistsError: `out` exists.

    """
    with RunPlayer(run, trusted_task=own_task) as player, create_folder(out) as temporary:
        shapes = player.shapes
        spec = build_policy_spec(shapes, player.env)
        bounds = spec.actions
        if not isinstance(bounds, ActionBounds):
            raise DatasetError("discrete actions: expected a run with continuous actions")
        cameras = list_cameras(shapes.cameras)
        dataset_fps = (spec.control_hz or DEFAULT_FPS) if fps is None else fps
        writer = DatasetWriter(
            temporary,
            DatasetSpec(
                fps=dataset_fps,
                task=player.config.task,
                cameras={view.name: (view.height, view.width) for view in cameras},
                state_names=[name for vector in shapes.state_vectors for name in format_number_names(vector)],
                action_names=[f"action.{number}" for number in range(shapes.actions.size)],
            ),
        )

        def write_episode(frames: Sequence[RecordedFrame]) -> None:
            writer.add_episode(frames)
            log(f"episode {writer.num_episodes} of {episodes}: {format_count(len(frames), 'frame')}")

        def wrap_env(env: gym.Env[Observation, Any]) -> EpisodeRecorder:
            recorders.append(EpisodeRecorder(env, shapes, bounds, write_episode))
            return recorders[0]

        recorders: list[EpisodeRecorder] = []
        try:
            rollout = player.play(episodes=episodes, seed=seed, wrap_env=wrap_env)
            recorders[0].finish()
        except BaseException:
            writer.abort()
            raise
        writer.close()
    left_out = tuple(view.name for view in shapes.cameras if view.derived_from is not None)
    return DatasetExport(rollout.evaluation.returns, writer.num_frames, dataset_fps, left_out)


def list_cameras(views: Sequence[View]) -> list[View]:
    """Return the views that are cameras. Raises `DatasetError` for one with other channels than gray or RGB."""
    cameras = [view for view in views if view.derived_from is None]
    for view in cameras:
        if view.channels not in (1, 3):
            raise DatasetError(f"view {view.name} has {view.channels} channels: expected 1 or 3, as videos have")
    return cameras


def _get_newest(frames: Image, view: View) -> Image:
    """Return the newest of the frames that are stacked along the channels, in RGB."""
    newest = frames[..., -view.channels :]
    return np.ascontiguousarray(np.broadcast_to(newest, (*newest.shape[:2], 3)))

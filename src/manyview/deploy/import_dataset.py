"""Import a LeRobot dataset as demonstrations for runs on a task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from manyview.config.schema import RunConfig
from manyview.data.demonstrations import DemonstrationsManifest, DemonstrationWriter
from manyview.data.lerobot.layout import ACTION, DONE, PRESENT, REWARD, TERMINATED, DatasetError, DatasetInfo
from manyview.data.lerobot.reader import Episode, LeRobotDataset
from manyview.deploy.dataset_mapping import DatasetMapping, MappingOptions, map_dataset_features
from manyview.envs.contract import ContractError
from manyview.envs.views import MASK, Image, Observation, StateVector, View
from manyview.runtime.spec import ActionBounds, PolicySpec, Resize
from manyview.training import factory
from manyview.training.policy_spec import build_policy_spec
from manyview.utils.atomic_io import create_folder
from manyview.utils.text import format_count, sanitize_text

Rewards = Literal["recorded", "final"]
"""`recorded`: the column `next.reward`. `final`: 1 for the last action of each episode, 0 for all others."""
Ends = Literal["termination", "timeout"]
"""Meaning of the last frame of an episode where the dataset has no `next.terminated`."""
MAX_EXCESS = 0.05
"""Part of the range by which an action may exceed the bounds and is clipped; more means other units."""
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Choices of the user in an import."""

    mapping: MappingOptions
    rewards: Rewards = "recorded"
    ends: Ends = "termination"
    clip_actions: bool = False
    """Clip all actions to the bounds, however far they exceed them."""


@dataclass(frozen=True)
class Import:
    """Result of an import."""

    manifest: DemonstrationsManifest
    mapping: DatasetMapping
    fps: float
    num_frames: int
    num_dropped: int
    """Last actions that were left out: the episode did not end there, and its next observation is unknown."""
    num_clipped: int
    """Actions that were clipped to the bounds."""
    total_reward: float
    image_sizes: Mapping[str, tuple[int, int]]
    """Height and width of each camera's images in the dataset, by view."""
    resize: Resize
    """Resizing of images that had another size than their view."""


def import_demonstrations(
    folder: Path, config: RunConfig, out: Path, *, options: ImportOptions, log: Log = lambda _: None
) -> Import:
    """Import a dataset for runs with the task and `env` settings of `config`, and write it to the new folder `out`.

    Raises:
        DatasetError: The dataset is invalid, or does not fit the task.
        FileExistsError: `out` exists.

    """
    env = factory.make_training_env(config)
    try:
        shapes = factory.infer_shapes(config, env)
        spec = build_policy_spec(shapes, env)
    finally:
        env.close()
    if not isinstance(spec.actions, ActionBounds):
        raise DatasetError("discrete actions: expected a task with continuous actions, as off-policy agents need it")
    with LeRobotDataset(folder) as dataset, create_folder(out) as temporary:
        mapping = map_dataset_features(
            dataset.info, shapes.views, shapes.state_vectors, shapes.actions.size, options.mapping
        )
        _check_outcomes(dataset.info, options.rewards)
        writer = DemonstrationWriter(
            temporary, shapes.views, action_size=shapes.actions.size, state_vectors=shapes.state_vectors
        )
        importer = _Importer(writer, mapping, spec, shapes.views, shapes.state_vectors, options)
        cameras = [camera for camera in mapping.cameras.values() if camera is not None]
        for episode in dataset.iter_episodes(mapping.columns, cameras):
            importer.add_episode(episode)
            log(f"episode {episode.index + 1} of {dataset.info.num_episodes}: {format_count(episode.length, 'frame')}")
        if options.rewards == "final" and not importer.total_reward:
            raise DatasetError(
                "no reward would remain: with --rewards final it is that of each last action, and no episode has ended "
                f"by termination, as {TERMINATED}, {DONE} and --ends {options.ends} say"
            )
        info = dataset.info
        image_sizes = {
            view: info.features[camera].image_shape for view, camera in mapping.cameras.items() if camera is not None
        }
        manifest = writer.close(
            {
                "fps": info.fps,
                "episodes": info.num_episodes,
                "frames": info.num_frames,
                "cameras": dict(mapping.cameras),
                "state": {name: str(source) for name, source in mapping.state.items()},
                "rewards": options.rewards,
                "ends": options.ends,
            }
        )
    return Import(
        manifest,
        mapping,
        info.fps,
        info.num_frames,
        importer.num_dropped,
        importer.num_clipped,
        importer.total_reward,
        image_sizes,
        importer.resize,
    )


class _Importer:
    """Convert episodes to transitions."""

    def __init__(
        self,
        writer: DemonstrationWriter,
        mapping: DatasetMapping,
        spec: PolicySpec,
        views: Sequence[View],
        vectors: Sequence[StateVector],
        options: ImportOptions,
    ) -> None:
        self._writer, self._mapping, self._options = writer, mapping, options
        self._views, self._vectors = views, vectors
        self._view_specs = {view.name: view for view in spec.views}
        self.resize = spec.resize or Resize((views[0].height,))
        assert isinstance(spec.actions, ActionBounds)  # noqa: S101
        self._bounds = spec.actions
        self.num_dropped = self.num_clipped = 0
        self.total_reward = 0.0

    def add_episode(self, episode: Episode) -> None:
        """Add an episode: each frame has the action that leads to the next one."""
        actions = self._convert_actions(episode)
        rewards, is_end = self._read_rewards(episode), self._is_terminated(episode)
        last = episode.length - 1
        observations = self._iter_observations(episode)
        try:
            observation = next(observations)
            if last == 0 and not is_end:
                self.num_dropped += 1
                return
            self._writer.start_episode(observation)
            for step, observation in enumerate(observations):
                self._add(actions[step], rewards[step], False, observation)
            if is_end:
                # What follows a termination is never valued: the last image stands for it.
                self._add(actions[last], rewards[last], True, observation, repeated=True)
            else:
                self.num_dropped += 1
        except ContractError as error:
            raise DatasetError(f"episode {episode.index}: {sanitize_text(error)}") from None

    def _add(
        self, action: Any, reward: float, terminated: bool, observation: Observation, *, repeated: bool = False
    ) -> None:
        self._writer.add(action, float(reward), terminated, observation, repeated=repeated)
        self.total_reward += float(reward)

    def _convert_actions(self, episode: Episode) -> NDArray[np.float32]:
        """Return the actions in [-1, 1]."""
        actions = _to_rows(episode.columns[ACTION]).astype(np.float64)
        low, high = np.array(self._bounds.low), np.array(self._bounds.high)
        excess = np.maximum(low - actions, actions - high) / (high - low)
        if not np.isfinite(actions).all():
            raise DatasetError(f"episode {episode.index}: {ACTION} is not finite: expected numbers")
        if excess.max() > MAX_EXCESS and not self._options.clip_actions:
            frame, number = np.unravel_index(excess.argmax(), excess.shape)
            raise DatasetError(
                f"episode {episode.index}, frame {frame}: {ACTION}[{number}] exceeds the bounds of the task: expected "
                f"{low[number]:g} to {high[number]:g}, got {actions[frame, number]:g}. Use the units of the task, set "
                "its bounds with rescale_actions, or clip with --clip-actions"
            )
        self.num_clipped += int((excess > 1e-6).any(1).sum())
        return self._bounds.normalize(actions)

    def _read_rewards(self, episode: Episode) -> NDArray[np.float64]:
        is_last = np.arange(episode.length) == episode.length - 1
        rewards: NDArray[Any] = is_last if self._options.rewards == "final" else episode.columns[REWARD]
        return rewards.astype(np.float64)

    def _is_terminated(self, episode: Episode) -> bool:
        """Return whether the last action ended the episode in the world, not only in the recording."""
        for name in (DONE, TERMINATED):
            if name in episode.columns and episode.columns[name][:-1].any():
                frame = int(np.flatnonzero(episode.columns[name])[0])
                raise DatasetError(
                    f"episode {episode.index} goes beyond its end: expected {name} in the last frame only, got it in "
                    f"frame {frame} of {episode.length}"
                )
        if TERMINATED in episode.columns:
            return bool(episode.columns[TERMINATED][-1])
        is_done = DONE not in episode.columns or bool(episode.columns[DONE][-1])
        return is_done and self._options.ends == "termination"

    def _iter_observations(self, episode: Episode) -> Iterator[Observation]:
        for frame in range(episode.length):
            observation: Observation = {}
            mask = np.zeros(len(self._views), np.int8)
            for number, view in enumerate(self._views):
                feature = self._mapping.cameras[view.name]
                image = None if feature is None else next(episode.images[feature])
                if view.name in self._mapping.present and image is not None:
                    flags = _to_rows(episode.columns[PRESENT])
                    image = image if flags[frame, self._mapping.present[view.name]] else None
                mask[number] = image is not None
                observation[view.name] = np.zeros(view.shape, np.uint8) if image is None else self._resize(image, view)
            for vector in self._vectors:
                feature, columns = self._mapping.state[vector.name]
                values = _to_rows(episode.columns[feature])[frame, list(columns)]
                observation[vector.name] = values.astype(np.float32)
            observation[MASK] = mask
            yield observation

    def _resize(self, image: Image, view: View) -> Image:
        """Return an image in color as one of a view; one channel is the mean of the colors."""
        if view.channels == 1:
            image = ((image.sum(2, dtype=np.uint16, keepdims=True) * 2 + 3) // 6).astype(np.uint8)
        if image.shape == view.shape:
            return image
        if view.height != view.width or view.channels != image.shape[2]:
            raise DatasetError(
                f"view {view.name} has another size: expected {'x'.join(map(str, view.shape))}, got "
                f"{'x'.join(map(str, image.shape))}. Set env.image_size, so that views are square"
            )
        try:
            return self.resize.apply(image, self._view_specs[view.name])
        except ValueError as error:  # another part of the scene, or too few pixels
            raise DatasetError(str(error)) from None


def _to_rows(values: NDArray[Any]) -> NDArray[Any]:
    """Return a column as rows [N, size], also of size 1."""
    return values.reshape(len(values), -1)


def _check_outcomes(info: DatasetInfo, rewards: Rewards) -> None:
    if rewards == "recorded" and REWARD not in info.features:
        raise DatasetError(
            f"the dataset has no rewards: expected the column {REWARD}, got {', '.join(info.features)}. If every "
            "episode ends with success, use --rewards final: 1 for the last action, 0 for all others"
        )


def describe_import(result: Import, source: Path) -> list[str]:
    """Return lines of text about an import."""
    manifest, mapping = result.manifest, result.mapping
    cameras = [f"{view} from {camera}" if camera else f"{view} masked" for view, camera in mapping.cameras.items()]
    lines = [
        f"dataset      {source}, {format_count(manifest.source['episodes'], 'episode')}, "
        f"{format_count(result.num_frames, 'frame')} at {result.fps:g} per second",
        f"views        {', '.join(cameras)}",
    ]
    resized = [
        text
        for view in manifest.views
        if view.name in result.image_sizes
        and (text := _describe_resize(view, result.image_sizes[view.name], result.resize))
    ]
    if resized:
        lines.append(f"images       {'; '.join(resized)}")
    if mapping.state:
        lines.append(f"state        {', '.join(f'{name} from {source}' for name, source in mapping.state.items())}")
    lines.append(f"rewards      {manifest.source['rewards']}, {result.total_reward:g} in all")
    if result.num_clipped:
        lines.append(f"clipped      {format_count(result.num_clipped, 'action')} beyond the bounds of the task")
    if result.num_dropped:
        lines.append(
            f"left out     the last action of {format_count(result.num_dropped, 'episode')}: what followed is unknown"
        )
    return [*lines, f"transitions  {manifest.transitions:,}"]


def _describe_resize(view: View, size: tuple[int, int], resize: Resize) -> str:
    """Return what became of the images of a camera, empty if nothing did."""
    if size == (view.height, view.width):
        return ""
    side = min(size)
    shaped = {
        "crop": f", cropped to the central {side} x {side}",
        "pad": ", padded to a square",
        "stretch": ", stretched",
    }
    return (
        f"{view.name} {size[0]} x {size[1]}{shaped[resize.aspect] if size[0] != size[1] else ''}, "
        f"resized to {view.height} x {view.width}"
    )


def parse_pairs(pairs: Sequence[str], option: str) -> Mapping[str, str]:
    """Return `NAME=VALUE` arguments by name. Raises ValueError for another form or a name twice."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value) or name in parsed:
            raise ValueError(f"invalid {option}: expected NAME=VALUE with each name once, got {sanitize_text(pair)!r}")
        parsed[name] = value
    return parsed

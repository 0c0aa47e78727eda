"""Match the features of a LeRobot dataset with the views, state vectors and actions of a run, by their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from manyview.data.lerobot.layout import (
    ACTION,
    CAMERA_PREFIX,
    DONE,
    PRESENT,
    REWARD,
    STATE,
    TERMINATED,
    DatasetError,
    DatasetInfo,
    Feature,
)
from manyview.data.lerobot.reader import find_feature
from manyview.envs.views import StateVector, View
from manyview.utils.text import sanitize_text


class StateSource(NamedTuple):
    """Numbers of a feature that are a state vector."""

    feature: str
    columns: tuple[int, ...]

    def __str__(self) -> str:
        """Return the form of `--state`."""
        first, last = self.columns[0], self.columns[-1] + 1
        is_range = self.columns == tuple(range(first, last))
        return f"{self.feature}[{f'{first}:{last}' if is_range else ','.join(map(str, self.columns))}]"


@dataclass(frozen=True)
class DatasetMapping:
    """Features of a dataset by what they are in a run."""

    cameras: Mapping[str, str | None]
    """Feature of each view, None for a masked one."""
    state: Mapping[str, StateSource]
    """Numbers of each state vector."""
    present: Mapping[str, int]
    """Column of the flag of each view among those of `PRESENT`, if the dataset has them."""
    columns: tuple[str, ...]
    """Columns to read."""


@dataclass(frozen=True, kw_only=True)
class MappingOptions:
    """Choices of the user where names alone do not say what belongs together."""

    cameras: Mapping[str, str]
    """Camera of the dataset by view."""
    skip_cameras: Sequence[str] = ()
    """Cameras of the dataset to leave out."""
    mask_missing: bool = False
    """Mask views that the dataset does not have."""
    state: Mapping[str, str]
    """`FEATURE` or `FEATURE[START:END]` by state vector."""


def map_dataset_features(
    info: DatasetInfo, views: Sequence[View], vectors: Sequence[StateVector], action_size: int, options: MappingOptions
) -> DatasetMapping:
    """Match features by their names and `options`.

    Raises:
        DatasetError: A view, vector or the action has no match, or a camera of the dataset has no use.

    """
    action = find_feature(info, ACTION)
    if action.shape != (action_size,):
        raise DatasetError(
            f"{ACTION} has another size than the task: expected {action_size} numbers, got shape {list(action.shape)}"
            f"{_format_names(action)}"
        )
    cameras = _map_cameras(info, views, options)
    state = {vector.name: _map_vector(info, vector, vectors, options.state) for vector in vectors}
    if unknown := sorted(options.state.keys() - state.keys()):
        raise DatasetError(f"--state {sanitize_text(unknown[0])}: expected a state vector of {_list(state)}")
    optional = [name for name in (REWARD, DONE, TERMINATED) if name in info.features]
    for feature in map(info.features.__getitem__, optional):
        if feature.shape != (1,):
            raise DatasetError(
                f"unsupported {feature.name}: expected one number for each frame, got shape {list(feature.shape)}"
            )
    present = _map_present(info, cameras)
    columns = dict.fromkeys([ACTION, *optional, *(source.feature for source in state.values())])
    return DatasetMapping(cameras, state, present, (*columns, *([PRESENT] if present else [])))


def _map_cameras(info: DatasetInfo, views: Sequence[View], options: MappingOptions) -> dict[str, str | None]:
    offered = {feature.name.removeprefix(CAMERA_PREFIX): feature.name for feature in info.cameras}
    offered |= {feature.name: feature.name for feature in info.cameras}
    names = [view.name for view in views]
    if unknown := [name for name in options.cameras if name not in names]:
        raise DatasetError(f"--cameras {sanitize_text(unknown[0])}: expected a view of {_list(names)}")
    chosen = (*options.cameras.values(), *options.skip_cameras)
    if unknown := [name for name in chosen if name not in offered]:
        raise DatasetError(
            f"unknown camera {sanitize_text(unknown[0])!r}: expected one of the dataset, "
            f"{_list([feature.name for feature in info.cameras])}"
        )
    skipped = {offered[name] for name in options.skip_cameras}
    mapped: dict[str, str | None] = {}
    for view in views:
        feature = offered.get(options.cameras.get(view.name, view.name))
        # The dataset has no foreground: the agent would learn that everything is foreground.
        mapped[view.name] = None if view.derived_from is not None or feature in skipped else feature
    missing = [name for name, feature in mapped.items() if feature is None]
    unused = [feature.name for feature in info.cameras if feature.name not in {*mapped.values(), *skipped}]
    if unused:
        raise DatasetError(
            f"the task has no view for the cameras {_list(unused)}: expected views of the same names, got "
            f"{_list(names)}. Name them with --cameras VIEW=CAMERA, or leave them out with --skip-cameras"
        )
    if missing and not options.mask_missing:
        raise DatasetError(
            f"the dataset has no camera for the views {_list(missing)}: expected cameras of the same names, got "
            f"{_list([feature.name for feature in info.cameras])}. Name them with --cameras VIEW=CAMERA, or mask them "
            "with --mask-missing"
        )
    if len(missing) == len(views):
        raise DatasetError("every view is masked: expected at least one camera of the dataset among the views")
    used = [feature for feature in mapped.values() if feature is not None]
    if duplicates := sorted({feature for feature in used if used.count(feature) > 1}):
        raise DatasetError(f"camera {duplicates[0]} belongs to two views: expected one. Change --cameras")
    return mapped


def _map_vector(
    info: DatasetInfo, vector: StateVector, vectors: Sequence[StateVector], given: Mapping[str, str]
) -> StateSource:
    """Return the given source, else the feature or the numbers that have the name of the vector."""
    if vector.name in given:
        return _parse_source(info, vector, given[vector.name])
    feature = info.features.get(f"observation.{vector.name}")
    if feature is not None and feature.shape == (vector.size,):
        return StateSource(feature.name, tuple(range(vector.size)))
    state = info.features.get(STATE)
    if state is not None and len(state.shape) == 1:
        names = list(state.names or ())
        wanted = format_number_names(vector)
        if len(names) == state.size and set(wanted) <= set(names):
            return StateSource(STATE, tuple(names.index(name) for name in wanted))
        if len(vectors) == 1 and state.size == vector.size:
            return StateSource(STATE, tuple(range(vector.size)))
    offer = [
        f"{feature.name} of {feature.size}"
        for feature in info.features.values()
        if not feature.is_camera and feature.name.startswith("observation.") and len(feature.shape) == 1
    ]
    wanted = format_number_names(vector)
    raise DatasetError(
        f"the dataset has no {vector.size} numbers for the state vector {vector.name}: expected a feature "
        f"observation.{vector.name}, or numbers {' to '.join(dict.fromkeys((wanted[0], wanted[-1])))} in {STATE}, got "
        f"{_list(offer)}. Choose them with --state {vector.name}=FEATURE[START:END]"
    )


def _parse_source(info: DatasetInfo, vector: StateVector, text: str) -> StateSource:
    name, bracket, rest = text.partition("[")
    feature = find_feature(info, name)
    start, _, end = rest.removesuffix("]").partition(":")
    if bracket and not (rest.endswith("]") and start.isdecimal() and end.isdecimal()):
        raise DatasetError(f"invalid --state: expected FEATURE or FEATURE[START:END], got {sanitize_text(text)!r}")
    columns = range(int(start), int(end)) if bracket else range(feature.size)
    if len(feature.shape) != 1 or len(columns) != vector.size or columns.stop > feature.size:
        raise DatasetError(
            f"--state {vector.name}: expected {vector.size} numbers, got {sanitize_text(text)} of {name}, which has "
            f"the shape {list(feature.shape)}"
        )
    return StateSource(name, tuple(columns))


def _map_present(info: DatasetInfo, cameras: Mapping[str, str | None]) -> dict[str, int]:
    feature = info.features.get(PRESENT)
    if feature is None or feature.names is None or feature.shape != (len(feature.names),):
        return {}
    names = list(feature.names)
    sources = {view: source.removeprefix(CAMERA_PREFIX) for view, source in cameras.items() if source is not None}
    return {view: names.index(camera) for view, camera in sources.items() if camera in names}


def format_number_names(vector: StateVector) -> list[str]:
    """Return the names of a vector's numbers in `observation.state`: `joints.0` and so on, or the name of one."""
    return [vector.name] if vector.size == 1 else [f"{vector.name}.{index}" for index in range(vector.size)]


def _format_names(feature: Feature) -> str:
    return "" if not feature.names else f" ({sanitize_text(', '.join(feature.names), max_chars=200)})"


def _list(names: Sequence[str] | Mapping[str, object]) -> str:
    return sanitize_text(", ".join(names) or "none", max_chars=300)

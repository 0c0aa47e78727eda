"""Numeric check of an exported policy against the policy in torch, with every subset of its views."""

from collections.abc import Sequence
from contextlib import closing
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.config.schema import RunConfig
from manyview.envs import MASK
from manyview.envs.contract import ContractError, EnvError
from manyview.runtime.inputs import Observation
from manyview.runtime.policy import Policy
from manyview.runtime.spec import ActionBounds, PolicySpec
from manyview.training import factory
from manyview.training.saved_agent import check_trusted_task
from manyview.utils.seeding import make_rng

TOLERANCE = 1e-5
"""Largest difference of actions, in halves of the range between their bounds."""
RANDOM_STEPS, RECORDED_STEPS, RESET_EVERY = 32, 50, 8
MAX_SUBSET_VIEWS = 6
"""Views up to which all subsets are checked; with more, each alone, each missing, and all."""


class CheckedSubset(NamedTuple):
    """Largest difference between two policies that see the same views."""

    source: str
    """`random` or `recorded` inputs."""
    views: tuple[str, ...]
    observations: int
    max_difference: float
    """In halves of the action range; for discrete actions the share of different ones."""


def list_view_subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the subsets of views to check, the empty one excluded: no policy acts without views."""
    count = len(names)
    sizes = range(1, count + 1) if count <= MAX_SUBSET_VIEWS else (1, count - 1, count)
    return [subset for size in sizes for subset in combinations(names, size)]


def check_policy(
    exported: Policy, reference: Policy, recorded: Sequence[Observation] = ()
) -> tuple[CheckedSubset, ...]:
    """Compare the actions on random and on recorded observations, one episode after another.

    Raises `ValueError` if they differ by more than `TOLERANCE`.
    """
    sources = {"random": draw_observations(reference.spec, RANDOM_STEPS), "recorded": list(recorded)}
    checks = tuple(
        compare_policies(exported, reference, observations, source=source, views=subset)
        for source, observations in sources.items()
        if observations
        for subset in list_view_subsets([view.name for view in reference.spec.views])
    )
    worst = max(checks, key=lambda check: check.max_difference)
    if not worst.max_difference <= TOLERANCE:
        raise ValueError(
            f"the exported policy acts differently: expected a difference of at most {TOLERANCE:g}, got "
            f"{worst.max_difference:.2g} with {', '.join(worst.views)} on {worst.source} inputs. Nothing was written"
        )
    return checks


def compare_policies(
    exported: Policy, reference: Policy, observations: Sequence[Observation], *, source: str, views: tuple[str, ...]
) -> CheckedSubset:
    """Return the largest difference of the actions if only `views` are present; both policies are reset."""
    names, differences = {view.name for view in reference.spec.views}, []
    for number, observation in enumerate(observations):
        if number % RESET_EVERY == 0:
            exported.reset()
            reference.reset()
        shown = {name: None if name in names and name not in views else value for name, value in observation.items()}
        if not any(shown.get(name) is not None for name in names):
            continue  # the recording misses these views itself
        differences.append(_measure_difference(exported.act(shown), reference.act(shown), reference.spec))
    return CheckedSubset(source, views, len(differences), max(differences, default=0.0))


def draw_observations(spec: PolicySpec, count: int) -> list[Observation]:
    """Return observations of random pixels and normal state vectors, equal at every call."""
    rng = make_rng(0, "export check")
    return [
        {view.name: rng.integers(0, 256, view.shape, np.uint8) for view in spec.views}
        | {vector.name: rng.normal(size=vector.size).astype(np.float32) for vector in spec.vectors}
        for _ in range(count)
    ]


def record_observations(
    config: RunConfig, policy: Policy, own_task: str | None
) -> tuple[list[Observation], str | None]:
    """Play the policy in the run's environment; return single frames, or none and the reason."""
    try:
        check_trusted_task(config.task, own_task)
        with closing(factory.make_env(config)) as env:
            return _play(env, policy), None
    except (EnvError, ContractError, ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        return [], (str(error).splitlines() or [type(error).__name__])[0]


def _play(env: Any, policy: Policy) -> list[Observation]:
    observations: list[Observation] = []
    ended, seed = True, 0
    while len(observations) < RECORDED_STEPS:
        if ended:
            observation, _ = env.reset(seed=seed)
            policy.reset()
            seed += 1
        observations.append(_take_newest_frames(observation, policy.spec))
        action: Any = policy.act(observations[-1])
        if isinstance(policy.spec.actions, ActionBounds):
            action = policy.spec.actions.normalize(action)
        observation, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    return observations


def _take_newest_frames(observation: dict[str, NDArray[Any]], spec: PolicySpec) -> Observation:
    """Return the newest frame of each view of stacked frames; None for an absent view."""
    frames: dict[str, NDArray[Any] | None] = {
        vector.name: observation[vector.name][-vector.size :] for vector in spec.vectors
    }
    for view, is_present in zip(spec.views, observation[MASK], strict=True):
        frames[view.name] = observation[view.name][..., -view.channels :] if is_present else None
    return frames


def _measure_difference(action: NDArray[Any], expected: NDArray[Any], spec: PolicySpec) -> float:
    if not isinstance(spec.actions, ActionBounds):
        return float(action != expected)
    return float((np.abs(action.astype(np.float64) - expected) / spec.actions.half_range).max())

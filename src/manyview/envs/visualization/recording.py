"""Recording of views under random actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from manyview.envs.views import MASK, Image, Observation, View, get_views


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """Images and reward of an agent step or a reset."""

    step: int
    """Agent steps since the start of the episode."""
    frame: int
    """Simulator frames since the start of the episode."""
    images: dict[str, Image | None]
    """Newest frame of each view, by name; None for an absent view."""
    reward: float | None = None
    """Reward of the step; None at a reset."""
    is_last: bool = False
    """True if the episode ended at this step."""
    duration_s: float = 0.0
    """Wall time of the step."""


@dataclass(frozen=True, kw_only=True)
class ViewSummary:
    """Statistics of a view over recorded steps."""

    view: View
    brightness: float | None
    """Mean over all pixels, 0 to 255; None if the view was always absent."""
    present_fraction: float
    """Fraction of the steps in which the view was present."""


def record_random_steps(env: gym.Env[Observation, Any], num_steps: int, *, seed: int) -> list[RecordedStep]:
    """Record a reset and `num_steps` random actions, and a reset after each episode end."""
    views = get_views(env)
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    steps = [RecordedStep(step=0, frame=0, images=extract_newest_frames(observation, views))]
    for _ in range(num_steps):
        start_s = perf_counter()
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        duration_s = perf_counter() - start_s
        steps.append(
            RecordedStep(
                step=steps[-1].step + 1,
                frame=steps[-1].frame + info.get("frames", 1),
                images=extract_newest_frames(observation, views),
                reward=float(reward),
                is_last=terminated or truncated,
                duration_s=duration_s,
            )
        )
        if terminated or truncated:
            observation, _ = env.reset()
            steps.append(RecordedStep(step=0, frame=0, images=extract_newest_frames(observation, views)))
    return steps


def extract_newest_frames(observation: Observation, views: Sequence[View]) -> dict[str, Image | None]:
    """Return the newest frame of each view of a stacked observation; None for an absent view."""
    return {
        view.name: observation[view.name][..., -view.channels :] if present else None
        for view, present in zip(views, observation[MASK], strict=True)
    }


def summarize_views(views: Sequence[View], steps: Sequence[RecordedStep]) -> list[ViewSummary]:
    """Return statistics of each view over the steps."""
    summaries = []
    for view in views:
        images = [image for step in steps if (image := step.images[view.name]) is not None]
        brightness = float(np.mean([image.mean() for image in images])) if images else None
        summaries.append(ViewSummary(view=view, brightness=brightness, present_fraction=len(images) / len(steps)))
    return summaries


def compute_median_step_ms(steps: Sequence[RecordedStep]) -> float:
    """Return the median wall time of a step in milliseconds.

    The median, since the first steps of a simulator are slow.
    """
    return 1000 * float(np.median([step.duration_s for step in steps if step.reward is not None]))

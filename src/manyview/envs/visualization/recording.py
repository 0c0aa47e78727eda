"""Look at an environment: what every view shows during some random actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from manyview.envs.views import MASK, Image, Observation, View, get_views


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """What was seen after one step, or at the begin of an episode."""

    step: int
    """Agent steps since the episode began."""
    frame: int
    """Simulator frames since then."""
    images: dict[str, Image | None]
    """The newest frame of each view, by name; None for an absent one."""
    reward: float | None = None
    """None at the begin of an episode."""
    is_last: bool = False
    duration_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ViewSummary:
    """One view over some moments."""

    view: View
    brightness: float | None
    """Mean over all pixels, 0 to 255; None if the view was never there."""
    present_fraction: float
    """The fraction of moments in which the view was there."""


def record_random_steps(env: gym.Env[Observation, Any], num_steps: int, *, seed: int) -> list[RecordedStep]:
    """The first observation and those after `steps` random actions. An episode that ends is followed by the next."""
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
    """Of a stacked observation the last frame of each view; None for an absent view."""
    return {
        view.name: observation[view.name][..., -view.channels :] if present else None
        for view, present in zip(views, observation[MASK], strict=True)
    }


def summarize_views(views: Sequence[View], steps: Sequence[RecordedStep]) -> list[ViewSummary]:
    summaries = []
    for view in views:
        images = [picture for moment in steps if (picture := moment.images[view.name]) is not None]
        brightness = float(np.mean([picture.mean() for picture in images])) if images else None
        summaries.append(ViewSummary(view=view, brightness=brightness, present_fraction=len(images) / len(steps)))
    return summaries


def compute_median_step_ms(steps: Sequence[RecordedStep]) -> float:
    """The median: the first steps of a simulator are slow."""
    return 1000 * float(np.median([moment.duration_s for moment in steps if moment.reward is not None]))

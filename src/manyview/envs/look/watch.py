"""Look at an environment: what every view shows during some random actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from manyview.envs.views import MASK, Image, Observation, View, views_of


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What was seen after one step, or at the begin of an episode."""

    step: int
    """Agent steps since the episode began."""
    frame: int
    """Simulator frames since then."""
    pictures: dict[str, Image | None]
    """The newest frame of each view, by name; None for an absent one."""
    reward: float | None = None
    """None at the begin of an episode."""
    ended: bool = False
    took_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One view over some moments."""

    view: View
    brightness: float | None
    """Mean over all pixels, 0 to 255; None if the view was never there."""
    present: float
    """The fraction of moments in which the view was there."""


def watch(env: gym.Env[Observation, Any], steps: int, *, seed: int) -> list[Moment]:
    """The first observation and those after `steps` random actions. An episode that ends is followed by the next."""
    views = views_of(env)
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    moments = [Moment(step=0, frame=0, pictures=newest_frames(observation, views))]
    for _ in range(steps):
        begin = perf_counter()
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        took_s = perf_counter() - begin
        moments.append(
            Moment(
                step=moments[-1].step + 1,
                frame=moments[-1].frame + info.get("frames", 1),
                pictures=newest_frames(observation, views),
                reward=float(reward),
                ended=terminated or truncated,
                took_s=took_s,
            )
        )
        if terminated or truncated:
            observation, _ = env.reset()
            moments.append(Moment(step=0, frame=0, pictures=newest_frames(observation, views)))
    return moments


def newest_frames(observation: Observation, views: Sequence[View]) -> dict[str, Image | None]:
    """Of a stacked observation the last frame of each view; None for an absent view."""
    return {
        view.name: observation[view.name][..., -view.channels :] if present else None
        for view, present in zip(views, observation[MASK], strict=True)
    }


def summarise(views: Sequence[View], moments: Sequence[Moment]) -> list[Summary]:
    summaries = []
    for view in views:
        there = [picture for moment in moments if (picture := moment.pictures[view.name]) is not None]
        brightness = float(np.mean([picture.mean() for picture in there])) if there else None
        summaries.append(Summary(view=view, brightness=brightness, present=len(there) / len(moments)))
    return summaries


def step_ms(moments: Sequence[Moment]) -> float:
    """The median: the first steps of a simulator are slow."""
    return 1000 * float(np.median([moment.took_s for moment in moments if moment.reward is not None]))

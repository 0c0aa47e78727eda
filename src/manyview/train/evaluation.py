"""Episodes without exploration noise, on the same starts at every evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from manyview.agents import OffPolicyAgent
from manyview.envs import View
from manyview.envs.look.watch import Moment, newest_frames
from manyview.envs.views import Observation
from manyview.train.observe import to_tensors
from manyview.train.seeds import derived_seed
from manyview.train.stopping import Stopped, StopRequest

REWARDED_AT_ONCE = 512
"""Rows of a filmed episode whose r̂ is taken against each other."""


@dataclass(frozen=True)
class Film:
    """One episode, watched."""

    moments: list[Moment]
    reward_int: list[float] | None
    """r̂ of each moment among those of the episode; None without a bonus."""


@dataclass(frozen=True)
class Evaluation:
    returns: list[float]
    steps: list[int]
    film: Film | None

    @property
    def mean_return(self) -> float:
        return fmean(self.returns)


def evaluate(
    agent: OffPolicyAgent,
    env: gym.Env[Observation, Any],
    views: Sequence[View],
    *,
    episodes: int,
    seed: int,
    step: int,
    filmed: bool = False,
    stop: StopRequest | None = None,
) -> Evaluation:
    """Play so many episodes with the best known actions; film the first. A `stop` in between raises `Stopped`."""
    device = next(agent.parameters()).device
    returns, steps, film = [], [], None
    was_training = agent.training
    agent.eval()
    for number in range(episodes):
        observation, _ = env.reset(seed=derived_seed(seed, "evaluation", number))
        filming = filmed and number == 0
        moments = [Moment(step=0, frame=0, pictures=newest_frames(observation, views))]
        seen = []
        total, length, ended = 0.0, 0, False
        while not ended:
            if stop:
                raise Stopped
            tensors = to_tensors(observation, views, device)
            action = agent.act(*tensors, step=step, explore=False)[0].float().cpu().numpy()
            observation, reward, terminated, truncated, info = env.step(action)
            total, length, ended = total + float(reward), length + 1, terminated or truncated
            if filming:
                seen.append(tensors)
                moments.append(
                    Moment(
                        step=length,
                        frame=moments[-1].frame + info.get("frames", 1),
                        pictures=newest_frames(observation, views),
                        reward=float(reward),
                        ended=ended,
                    )
                )
        if filming:
            film = Film(moments[:-1], _rewards_int(agent, seen))  # of the last observation nobody acts on
        returns.append(total)
        steps.append(length)
    agent.train(was_training)
    return Evaluation(returns, steps, film)


@torch.no_grad()
def _rewards_int(agent: OffPolicyAgent, seen: list[tuple[Tensor, Tensor]]) -> list[float] | None:
    intrinsic = agent.intrinsic
    if intrinsic is None:
        return None
    rewards: list[float] = []
    for begin in range(0, len(seen), REWARDED_AT_ONCE):
        views, mask = (torch.cat(parts) for parts in zip(*seen[begin : begin + REWARDED_AT_ONCE], strict=True))
        rewards += intrinsic.reward(intrinsic.encode(views, mask)).tolist()
    return rewards

"""Episodes without exploration noise; the same seed gives the same starts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from manyview.agents import Agent
from manyview.envs import View
from manyview.envs.look.watch import Moment
from manyview.envs.views import Image, Observation
from manyview.methods import Episodic
from manyview.train.build import Shapes
from manyview.train.config import EvaluationConfig
from manyview.train.observe import seen_alone
from manyview.train.seeds import derived_seed
from manyview.train.stopping import EnvCalls, Stopped, StopRequest

REWARDED_AT_ONCE = 512
"""Rows of a filmed episode whose r̂ is taken against each other."""
EPISODES_APART = 1_000_003
"""Steps by which the noise of an evaluation's episodes differs."""


class Starts(NamedTuple):
    """How the episodes of an evaluation begin."""

    seed: int
    in_sequence: bool


def starts_after(frames: int, *, seed: int, has_levels: bool) -> Starts:
    """Those of a run's own evaluation.

    Ten levels of thousands are a sample: others at every evaluation, or the gap would be that of these ten. There a
    seed makes the engine anew, which takes longer than many an episode, so one has to do for all of them.
    """
    return Starts(derived_seed(seed, "levels", frames), True) if has_levels else Starts(seed, False)


@dataclass(frozen=True)
class Film:
    """One episode, watched."""

    moments: list[Moment]
    reward_int: list[float] | None
    """r̂ of each moment among those of the episode, and MEM's bank if it has one; None without a bonus."""


@dataclass(frozen=True)
class Evaluation:
    returns: list[float]
    steps: list[int]
    film: Film | None
    cut: int = 0
    """Episodes that a limit ended; their returns are those so far."""

    @property
    def mean_return(self) -> float:
        return fmean(self.returns)


def evaluate(
    agent: Agent,
    env: gym.Env[Observation, Any],
    shapes: Shapes,
    *,
    episodes: int,
    seed: int,
    step: int,
    in_sequence: bool = False,
    filmed_steps: int = 0,
    max_steps: int = EvaluationConfig.max_steps,
    stop: StopRequest | None = None,
    calls: EnvCalls | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Play so many episodes without exploring. A `stop` in between raises `Stopped`.

    Each begins by a seed of its own, or `in_sequence`: the first does, and the others follow it as the engine has them.

    Args:
        agent: plays.
        env: is played.
        shapes: of its observations.
        episodes: how many.
        seed: of their starts.
        step: of the agent, by which its noise falls.
        in_sequence: see above.
        filmed_steps: so many of the first episode are filmed.
        max_steps: an episode that has not ended by then is cut there, and counted.
        stop: who asks for a stop.
        calls: marks what the environment is doing.
        warn: is told of either limit as soon as it is met.

    """
    device = next(agent.parameters()).device
    calls = calls or EnvCalls(str(env.metadata.get("task", env)))
    returns, steps, film, cut = [], [], None, 0
    with _evaluating(agent):
        for number in range(episodes):
            own_seed = number == 0 or not in_sequence
            with calls("reset"):
                observation, _ = env.reset(seed=derived_seed(seed, "evaluation", number) if own_seed else None)
            seen, moments = [], []
            total, length, frame, paid, ended = 0.0, 0, 0, None, False
            while True:
                tensors = seen_alone(observation, shapes, device, episode=number)
                if number == 0 and length <= filmed_steps > 0:
                    seen.append(tensors)
                    pictures = _pictures(*tensors, shapes.views)
                    moments.append(Moment(step=length, frame=frame, pictures=pictures, reward=paid, ended=ended))
                if ended:
                    break
                if length >= max_steps:
                    cut += 1
                    warn(
                        f"an evaluation's episode had not ended after {max_steps:,} steps and was cut there; its "
                        "return is that so far. evaluation.max_steps changes the limit"
                    )
                    break
                if number == 0 and length == filmed_steps > 0:
                    warn(f"videos end after {filmed_steps:,} steps of an episode. evaluation.video_steps changes it")
                if stop:
                    raise Stopped
                noise_step = step + length + EPISODES_APART * number
                action = shapes.actions.for_env(agent.act(*tensors, step=noise_step, explore=False))[0]
                with calls("step"):
                    observation, reward, terminated, truncated, info = env.step(action)
                paid, frame = float(reward), frame + info.get("frames", 1)
                total, length, ended = total + paid, length + 1, terminated or truncated
            if seen:
                film = Film(moments, _rewards_int(agent, seen))
            returns.append(total)
            steps.append(length)
    return Evaluation(returns, steps, film, cut)


@contextmanager
def _evaluating(agent: Agent) -> Iterator[None]:
    was_training = agent.training
    agent.eval()
    try:
        yield
    finally:
        agent.train(was_training)


def _pictures(views: Tensor, mask: Tensor, shown: Sequence[View]) -> dict[str, Image | None]:
    """The newest frame of each view; None for an absent one."""
    frames = views[0].cpu().numpy().transpose(0, 2, 3, 1)
    return {
        view.name: frame[..., -view.channels :] if present else None
        for view, frame, present in zip(shown, frames, mask[0].tolist(), strict=True)
    }


@torch.no_grad()
def _rewards_int(agent: Agent, seen: list[tuple[Tensor, Tensor]]) -> list[float] | None:
    intrinsic = agent.intrinsic
    if intrinsic is None or isinstance(intrinsic, Episodic):
        return None
    rewards: list[float] = []
    for begin in range(0, len(seen), REWARDED_AT_ONCE):
        views, mask = (torch.cat(parts) for parts in zip(*seen[begin : begin + REWARDED_AT_ONCE], strict=True))
        rewards += intrinsic.reward(intrinsic.encode(views, mask)).tolist()
    return rewards

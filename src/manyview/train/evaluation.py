"""Episodes without exploration noise; the same seed gives the same starts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from manyview.agents import Agent
from manyview.config.schema import EvaluationConfig
from manyview.envs import View
from manyview.envs.contract import EnvError
from manyview.envs.views import Image, Observation
from manyview.envs.visualization.recording import RecordedStep
from manyview.methods import EpisodicBonus
from manyview.train import factory
from manyview.train.checkpoint import format_checkpoint_name
from manyview.train.compute import autocast
from manyview.train.factory import Shapes
from manyview.train.preprocessing import prepare_observation
from manyview.train.signals import EnvCallTracker, StopRequest, StopRequested
from manyview.train.trainer import Trainer
from manyview.train.video import EpisodeRecording, write_episode_video
from manyview.utils.seeding import derive_seed

BONUS_BATCH_ROWS = 512
"""Rows of a filmed episode whose r̂ is taken against each other."""
EPISODE_NOISE_STRIDE = 1_000_003
"""Steps by which the noise of an evaluation's episodes differs."""


MAX_VIDEOS = 100
"""About so many in a run."""


class EpisodeStarts(NamedTuple):
    """How the episodes of an evaluation begin."""

    seed: int
    sequential: bool


def choose_starts(frames: int, *, seed: int, has_levels: bool) -> EpisodeStarts:
    """Those of a run's own evaluation.

    Ten levels of thousands are a sample: others at every evaluation, or the gap would be that of these ten. There a
    seed makes the engine anew, which takes longer than many an episode, so one has to do for all of them.
    """
    return EpisodeStarts(derive_seed(seed, "levels", frames), True) if has_levels else EpisodeStarts(seed, False)


@dataclass(frozen=True)
class Evaluation:
    returns: list[float]
    steps: list[int]
    recording: EpisodeRecording | None
    cut: int = 0
    """Episodes that a limit ended; their returns are those so far."""

    @property
    def mean_return(self) -> float:
        return fmean(self.returns)


def evaluate_policy(
    agent: Agent,
    env: gym.Env[Observation, Any],
    shapes: Shapes,
    *,
    episodes: int,
    seed: int,
    step: int,
    sequential: bool = False,
    filmed_steps: int = 0,
    max_steps: int = EvaluationConfig.max_steps,
    stop: StopRequest | None = None,
    calls: EnvCallTracker | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Play so many episodes without exploring. A `stop` in between raises `StopRequested`.

    Each begins by a seed of its own, or `sequential`: the first does, and the others follow it as the engine has them.

    Args:
        agent: plays.
        env: is played.
        shapes: of its observations.
        episodes: how many.
        seed: of their starts.
        step: of the agent, by which its noise falls.
        sequential: see above.
        filmed_steps: so many of the first episode are filmed.
        max_steps: an episode that has not ended by then is cut there, and counted.
        stop: who asks for a stop.
        calls: marks what the environment is doing.
        warn: is told of either limit as soon as it is met.

    """
    device = next(agent.parameters()).device
    calls = calls or EnvCallTracker(str(env.metadata.get("task", env)))
    returns, steps, recording, cut = [], [], None, 0
    with _set_eval_mode(agent):
        for index in range(episodes):
            is_seeded = index == 0 or not sequential
            with calls("reset"):
                observation, _ = env.reset(seed=derive_seed(seed, "evaluation", index) if is_seeded else None)
            observations, moments = [], []
            total, length, frame, last_reward, ended = 0.0, 0, 0, None, False
            while True:
                tensors = prepare_observation(observation, shapes, device, episode=index)
                if index == 0 and length <= filmed_steps > 0:
                    observations.append(tensors)
                    images = _extract_images(*tensors, shapes.views)
                    moments.append(
                        RecordedStep(step=length, frame=frame, images=images, reward=last_reward, is_last=ended)
                    )
                if ended:
                    break
                if length >= max_steps:
                    cut += 1
                    warn(
                        f"an evaluation's episode had not ended after {max_steps:,} steps and was cut there; its "
                        "return is that so far. evaluation.max_steps changes the limit"
                    )
                    break
                if index == 0 and length == filmed_steps > 0:
                    warn(f"videos end after {filmed_steps:,} steps of an episode. evaluation.video_steps changes it")
                if stop:
                    raise StopRequested
                noise_step = step + length + EPISODE_NOISE_STRIDE * index
                action = shapes.actions.to_env(agent.act(*tensors, step=noise_step, explore=False))[0]
                with calls("step"):
                    observation, reward, terminated, truncated, info = env.step(action)
                last_reward, frame = float(reward), frame + info.get("frames", 1)
                total, length, ended = total + last_reward, length + 1, terminated or truncated
            if observations:
                recording = EpisodeRecording(moments, _compute_bonuses(agent, observations))
            returns.append(total)
            steps.append(length)
    return Evaluation(returns, steps, recording, cut)


class Evaluator:
    """Evaluate a trainer's agent on its task and, where training uses some levels only, on all levels.

    Args:
        trainer: its agent is evaluated, at the trainer's counters.
        videos_dir: where videos of first episodes go.
        warn: gets each warning once.

    """

    def __init__(self, trainer: Trainer, videos_dir: Path, *, warn: Callable[[str], None]) -> None:
        self._trainer, self._videos_dir, self._warn = trainer, videos_dir, warn
        self._video_enabled, self._warned = trainer.config.evaluation.video, set[str]()
        self.envs: dict[str, gym.Env[Observation, Any]] = {}
        """Environments by level set; empty if `evaluation.episodes` is 0."""
        if trainer.config.evaluation.episodes:
            levels = factory.list_evaluation_levels(trainer.env.metadata.get("settings"))
            self.envs = {name or "all": factory.make_env(trainer.config, levels=name) for name in levels}

    def evaluate(self, stop: StopRequest, log: Callable[..., None]) -> None:
        """Log an `evaluation` record and write a video if one is due. A stop request raises `StopRequested`."""
        if not self.envs:
            return
        evaluations = {levels: self._evaluate_levels(env, levels, stop) for levels, env in self.envs.items()}
        first = evaluations.pop(next(iter(evaluations)))
        figures: dict[str, Any] = {"return": first.mean_return, "returns": first.returns, "lengths": first.steps}
        for levels, other in evaluations.items():
            figures |= {
                f"{levels}_return": other.mean_return,
                f"{levels}_returns": other.returns,
                f"{levels}_lengths": other.steps,
                "gap": first.mean_return - other.mean_return,
            }
        if cut := first.cut + sum(other.cut for other in evaluations.values()):
            figures["cut"] = cut
        log("evaluation", **figures)
        if first.recording is not None:
            self._write_video(first.recording)

    def _evaluate_levels(self, env: gym.Env[Observation, Any], levels: str, stop: StopRequest) -> Evaluation:
        trainer, config = self._trainer, self._trainer.config
        starts = choose_starts(trainer.counters.frames, seed=config.seed, has_levels=len(self.envs) > 1)
        with autocast(config.machine):
            return evaluate_policy(
                trainer.agent,
                env,
                trainer.shapes,
                episodes=config.evaluation.episodes,
                seed=starts.seed,
                sequential=starts.sequential,
                step=trainer.counters.steps,
                filmed_steps=config.evaluation.video_steps if levels != "test" and self.should_record_video else 0,
                max_steps=config.evaluation.max_steps,
                stop=stop,
                calls=trainer.env_calls,
                warn=self._warn_once,
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)

    @property
    def should_record_video(self) -> bool:
        """Whether this evaluation is filmed: at most `MAX_VIDEOS` in a run, and always the last."""
        if not self._video_enabled:
            return False
        frames, total = self._trainer.counters.frames, self._trainer.config.schedule.frames
        stems = (path.stem for path in self._videos_dir.glob("*.mp4"))
        last = max((int(stem) for stem in stems if stem.isdecimal()), default=-inf)
        return self._trainer.is_done or frames - last >= total // MAX_VIDEOS

    def _write_video(self, recording: EpisodeRecording) -> None:
        trainer, frames = self._trainer, self._trainer.counters.frames
        path = self._videos_dir / f"{format_checkpoint_name(frames)}.mp4"
        try:
            write_episode_video(
                path, recording, trainer.shapes.views, config=trainer.config, frames=frames, beta=trainer.beta
            )
        except (ImportError, OSError) as error:  # a run is worth more than its videos
            self._video_enabled = not isinstance(error, ImportError)
            self._warn(f"no video: {error}")

    def close(self) -> None:
        """Close the environments; an error of theirs loses nothing."""
        for env in self.envs.values():
            with suppress(EnvError), self._trainer.env_calls("close"):
                env.close()


@contextmanager
def _set_eval_mode(agent: Agent) -> Iterator[None]:
    was_training = agent.training
    agent.eval()
    try:
        yield
    finally:
        agent.train(was_training)


def _extract_images(views: Tensor, mask: Tensor, view_specs: Sequence[View]) -> dict[str, Image | None]:
    """The newest frame of each view; None for an absent one."""
    frames = views[0].cpu().numpy().transpose(0, 2, 3, 1)
    return {
        view.name: frame[..., -view.channels :] if present else None
        for view, frame, present in zip(view_specs, frames, mask[0].tolist(), strict=True)
    }


@torch.no_grad()
def _compute_bonuses(agent: Agent, observations: list[tuple[Tensor, Tensor]]) -> list[float] | None:
    intrinsic = agent.bonus
    if intrinsic is None or isinstance(intrinsic, EpisodicBonus):
        return None
    rewards: list[float] = []
    for start in range(0, len(observations), BONUS_BATCH_ROWS):
        views, mask = (torch.cat(parts) for parts in zip(*observations[start : start + BONUS_BATCH_ROWS], strict=True))
        rewards += intrinsic.compute_reward(intrinsic.encode(views, mask)).tolist()
    return rewards

"""Evaluate a policy on episodes without exploration noise; equal seeds give equal starts."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from manyview.agents import Agent
from manyview.config.groups import EvaluationConfig
from manyview.data.neighbors import NeighborFn
from manyview.envs import View
from manyview.envs.contract import EnvError
from manyview.envs.views import Image, Observation
from manyview.envs.visualization.recording import RecordedStep
from manyview.training import factory
from manyview.training.checkpoint import format_checkpoint_name
from manyview.training.compute import autocast
from manyview.training.factory import Shapes
from manyview.training.preprocessing import mask_views, prepare_observation
from manyview.training.signals import EnvCallTracker, StopRequest, StopRequested
from manyview.training.trainer import Trainer
from manyview.training.video import EpisodeRecording, write_episode_video
from manyview.utils.seeding import derive_seed

BONUS_BATCH_ROWS = 512
"""Rows of a recorded episode among which r̂ is computed."""
EPISODE_NOISE_STRIDE = 1_000_003
"""Offset between the noise steps of consecutive evaluation episodes."""
MAX_VIDEOS = 100
"""Approximate upper limit of videos in a run."""


class EpisodeStarts(NamedTuple):
    """Seeding of the episodes of an evaluation; see `evaluate_policy`."""

    seed: int
    sequential: bool


def choose_starts(frames: int, *, seed: int, has_levels: bool) -> EpisodeStarts:
    """Return the episode starts of an evaluation at `frames`.

    Tasks with levels: an evaluation sees a few of thousands, so every evaluation draws others; otherwise the
    generalization gap would be that of a fixed few. A new seed rebuilds their engine, which takes longer than many an
    episode, so all episodes share one seed. Other tasks start from the same states at every evaluation.
    """
    return EpisodeStarts(derive_seed(seed, "levels", frames), True) if has_levels else EpisodeStarts(seed, False)


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes, and a recording of the first one if requested."""

    returns: list[float]
    steps: list[int]
    recording: EpisodeRecording | None
    cut: int = 0
    """Number of episodes cut at `max_steps`; their returns count up to there."""

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
    video_steps: int = 0,
    max_steps: int = EvaluationConfig.max_steps,
    stop: StopRequest | None = None,
    calls: EnvCallTracker | None = None,
    warn: Callable[[str], None] = lambda _: None,
    search: NeighborFn | None = None,
    absent_views: Collection[str] = (),
) -> Evaluation:
    """Evaluate a policy without exploration.

    Args:
        agent: Policy to evaluate.
        env: Environment to evaluate it in.
        shapes: Views and actions of the environment.
        episodes: Number of episodes.
        seed: Seed of the episode starts.
        step: Agent step of the training, on which the noise schedule depends.
        sequential: Seed the first episode only; the environment chooses the starts of the others. By default each
            episode has its own seed.
        video_steps: Number of steps of the first episode to record.
        max_steps: Cut episodes at this length; `Evaluation.cut` counts them.
        stop: Stop request, checked before every step.
        calls: Marks calls of the environment for the watchdog.
        warn: Receives a text as soon as `max_steps` or `video_steps` is reached.
        search: Search in the replay buffer, without which a bonus that stores features records no r̂.
        absent_views: Views to mask, as if their camera were absent.

    Raises:
        StopRequested: There was a stop request.

    """
    device = next(agent.parameters()).device
    calls = calls or EnvCallTracker(str(env.metadata.get("task", env)))
    returns, steps, recording, cut = [], [], None, 0
    with _set_eval_mode(agent), agent.use_new_memory():
        for index in range(episodes):
            agent.memory.reset()
            is_seeded = index == 0 or not sequential
            with calls("reset"):
                observation, _ = env.reset(seed=derive_seed(seed, "evaluation", index) if is_seeded else None)
            observations, recorded_steps = [], []
            total, length, frame, last_reward, ended = 0.0, 0, 0, None, False
            while True:
                visible = mask_views(observation, shapes.cameras, absent_views) if absent_views else observation
                tensors = prepare_observation(visible, shapes, device, episode=index)
                if index == 0 and length <= video_steps > 0:
                    observations.append(tensors)
                    images = _extract_images(tensors[0], tensors[1], shapes.views)
                    recorded_steps.append(
                        RecordedStep(step=length, frame=frame, images=images, reward=last_reward, is_last=ended)
                    )
                if ended:
                    break
                if length >= max_steps:
                    cut += 1
                    warn(
                        f"an evaluation episode was cut after {max_steps:,} steps; its return counts up to there. "
                        "Change the limit with evaluation.max_steps"
                    )
                    break
                if index == 0 and length == video_steps > 0:
                    warn(f"a video was cut after {video_steps:,} steps. Change the limit with evaluation.video_steps")
                if stop:
                    raise StopRequested
                noise_step = step + length + EPISODE_NOISE_STRIDE * index
                action = shapes.actions.to_env(agent.act(*tensors, step=noise_step, explore=False))[0]
                with calls("step"):
                    observation, reward, terminated, truncated, info = env.step(action)
                last_reward, frame = float(reward), frame + info.get("frames", 1)
                total, length, ended = total + last_reward, length + 1, terminated or truncated
            if observations:
                recording = EpisodeRecording(recorded_steps, _compute_bonuses(agent, observations, search))
            returns.append(total)
            steps.append(length)
    return Evaluation(returns, steps, recording, cut)


class Evaluator:
    """Evaluate a trainer's agent on its task and, where training uses some levels only, on all levels.

    Args:
        trainer: Trainer whose agent is evaluated, at the trainer's counters.
        videos_dir: Directory for the videos of first episodes.
        log: Writes a record of a kind with figures: `evaluation`, and `warning` once for each text.

    """

    def __init__(self, trainer: Trainer, videos_dir: Path, *, log: Callable[..., None]) -> None:
        self._trainer, self._videos_dir, self._log = trainer, videos_dir, log
        self._video_enabled, self._warned = trainer.config.evaluation.video, set[str]()
        self.envs: dict[str, gym.Env[Observation, Any]] = {}
        """Environments by level set; empty if `evaluation.episodes` is 0."""
        if trainer.config.evaluation.episodes:
            levels = factory.list_evaluation_levels(trainer.env.metadata.get("settings"))
            with ExitStack() as opened:  # closes the first environment if the second fails
                opened.callback(self.close)
                for name in levels:
                    self.envs[name or "all"] = factory.make_env(trainer.config, levels=name)
                opened.pop_all()

    def evaluate(self, stop: StopRequest) -> None:
        """Log an `evaluation` record, and write a video if one is due; a stop request raises `StopRequested`."""
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
        self._log("evaluation", **figures)
        if first.recording is not None:
            self._write_video(first.recording)

    def _evaluate_levels(self, env: gym.Env[Observation, Any], levels: str, stop: StopRequest) -> Evaluation:
        trainer, config = self._trainer, self._trainer.config
        starts = choose_starts(trainer.counters.frames, seed=config.seed, has_levels=len(self.envs) > 1)
        with autocast(config.compute):
            return evaluate_policy(
                trainer.agent,
                env,
                trainer.shapes,
                episodes=config.evaluation.episodes,
                seed=starts.seed,
                sequential=starts.sequential,
                step=trainer.counters.steps,
                video_steps=config.evaluation.video_steps if levels != "test" and self.should_record_video else 0,
                max_steps=config.evaluation.max_steps,
                stop=stop,
                calls=trainer.env_calls,
                warn=self._warn_once,
                search=trainer.search_neighbors,
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._log("warning", text=text)

    @property
    def should_record_video(self) -> bool:
        """True if this evaluation records a video: about `MAX_VIDEOS` times in a run, and always the last time."""
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
        except (ImportError, OSError) as error:  # training continues without videos
            self._video_enabled = not isinstance(error, ImportError)
            self._log("warning", text=f"no video written: {error}")

    def close(self) -> None:
        """Close the environments and ignore their errors: all results are written."""
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
    """Return the newest frame of each view [H, W, C]; None for an absent view."""
    frames = views[0].cpu().numpy().transpose(0, 2, 3, 1)
    return {
        view.name: frame[..., -view.channels :] if present else None
        for view, frame, present in zip(view_specs, frames, mask[0].tolist(), strict=True)
    }


@torch.no_grad()
def _compute_bonuses(
    agent: Agent, observations: list[tuple[Tensor, ...]], search: NeighborFn | None
) -> list[float] | None:
    rewards: list[float] = []
    for start in range(0, len(observations), BONUS_BATCH_ROWS):
        batch = zip(*observations[start : start + BONUS_BATCH_ROWS], strict=True)
        views, mask, *vectors = (torch.cat(parts) for parts in batch)
        reward = agent.reward_states(views, mask, search, **({"vectors": vectors[0]} if vectors else {}))
        if reward is None:
            return None
        rewards += reward.tolist()
    return rewards

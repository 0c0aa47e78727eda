"""What a run will take, before it begins: bytes, parameters, and hours by some real steps and updates."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from time import perf_counter

from manyview.data.room import free_memory_bytes
from manyview.train import build
from manyview.train.config import RunConfig
from manyview.train.machine import prepare, resolved
from manyview.train.memory import keep_freed_memory
from manyview.train.observe import seen_alone
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.on_policy import OnPolicyTrainer
from manyview.train.rehearsal import kept_bytes
from manyview.train.tree import changed

TRIED_UPDATES = 5
TRIED_STEPS = 2_000
TRIED_ALONE = 20
TRIED_S = 3.0
"""How long steps are tried for, at most."""
LONG_EPISODE_FRAMES = 1000
"""An episode that does not end within the trial is taken for one of the suites' usual length."""


@dataclass(frozen=True)
class Plan:
    config: RunConfig
    views: tuple[str, ...]
    frames_per_step: int
    parameters: int
    data_bytes: int
    """Of the replay, or of a rollout."""
    update_bytes: int | None
    """Beside the replay: a batch, parameters, moments and what an update keeps for its backward pass."""
    free_bytes: int | None
    step_s: float
    update_s: float
    evaluation_s: float

    @property
    def steps(self) -> float:
        return self.config.schedule.frames / self.frames_per_step

    @property
    def updates(self) -> float:
        schedule, rollout, ppo = self.config.schedule, self.config.rollout, self.config.ppo
        if self.config.on_policy:
            rows = rollout.envs * rollout.steps
            return self.steps / rows * ppo.epochs * ceil(rows / ppo.batch_size)
        return max(0.0, self.steps - schedule.seed_frames / self.frames_per_step) / schedule.update_every_steps

    @property
    def seconds(self) -> float:
        rollout = self.config.rollout
        least = rollout.envs * rollout.steps * self.frames_per_step if self.config.on_policy else 1
        evaluations = 1 + self.config.schedule.frames / max(least, self.config.evaluation.every_frames)
        return self.steps * self.step_s + self.updates * self.update_s + evaluations * self.evaluation_s


def plan(config: RunConfig) -> Plan:
    """Take some real steps and updates of the run, with a replay just large enough for them."""
    config = replace(config, machine=resolved(config.machine))
    prepare(config.machine)
    trial = _trial(config)
    trainer = OnPolicyTrainer(trial) if config.on_policy else OffPolicyTrainer(trial)
    keep_freed_memory()
    try:
        if isinstance(trainer, OnPolicyTrainer):
            steps_s, episode_steps = _try_rollout(trainer)
            update_s = median(_seconds(trainer.advance) for _ in range(min(TRIED_UPDATES, trainer.updates_left)))
            evaluated_step_s = _try_alone(trainer) if config.evaluation.episodes else 0.0
        else:
            steps_s, episode_steps = _try_steps(trainer)
            update_s = median(_seconds(trainer.update) for _ in range(TRIED_UPDATES + 1))
            evaluated_step_s = steps_s
        update_bytes = trainer.update_bytes
        if isinstance(trainer, OnPolicyTrainer) and update_bytes is not None:  # the trial's rollout is shorter
            update_bytes += sum(
                sign * kept_bytes(trainer.agent, one, trainer.shapes) for sign, one in ((1, config), (-1, trial))
            )
    finally:
        trainer.close()
    shapes, settings = trainer.shapes, trainer.env.metadata.get("settings")
    frames_per_step = 1 if settings is None else settings.action_repeat or 1
    return Plan(
        config=config,
        views=tuple(view.name for view in shapes.views),
        frames_per_step=frames_per_step,
        parameters=trainer.parameter_count,
        data_bytes=(build.rollout_bytes if config.on_policy else build.replay_bytes)(config, shapes),
        update_bytes=update_bytes,
        free_bytes=free_memory_bytes(),
        step_s=steps_s,
        update_s=update_s,
        evaluation_s=config.evaluation.episodes
        * len(build.levels_of(settings))
        * evaluated_step_s
        * (episode_steps or LONG_EPISODE_FRAMES / frames_per_step),
    )


def _trial(config: RunConfig) -> RunConfig:
    """The run with the policy's actions from the first step, no updates of its own, and a small replay in memory."""
    config, rows, envs = config.alone, (TRIED_UPDATES + 1) * config.ppo.batch_size, config.rollout.envs
    if config.on_policy:
        least = 1 + max(3, config.mem.k, config.re3.k)  # there must be room for the neighbours
        return changed(config, {"rollout": {"steps": min(config.rollout.steps, max(least, ceil(rows / envs)))}})
    never = config.schedule.frames + 1
    return changed(
        config,
        {
            "schedule": {"random_steps": 0, "seed_frames": never},
            "replay": {"capacity": min(config.replay.capacity, TRIED_STEPS), "folder": None, "prefetch": False},
        },
    )


def _try_rollout(trainer: OnPolicyTrainer) -> tuple[float, float | None]:
    """Seconds of a step of one environment, and the steps of an episode if one ended."""
    trainer.advance()  # the first is slow
    began, taken, ended = perf_counter(), 0, 0
    while trainer.rollout.length < trainer.rollout.steps:
        ended += len(trainer.advance().episodes)
        taken += trainer.config.rollout.envs
    # Not the length of those that ended, which are the short ones.
    return (perf_counter() - began) / max(1, taken), taken / ended if ended else None


def _try_alone(trainer: OnPolicyTrainer) -> float:
    """Seconds of a step of an evaluation, which plays one environment."""
    env, shapes = build.environment(trainer.config), trainer.shapes
    observation, _ = env.reset(seed=0)
    began = perf_counter()
    for step in range(TRIED_ALONE):
        seen = seen_alone(observation, shapes, trainer.device, episode=0)
        action = shapes.actions.for_env(trainer.agent.act(*seen, step=step, explore=False))[0]
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    return (perf_counter() - began) / TRIED_ALONE


def _try_steps(trainer: OffPolicyTrainer) -> tuple[float, int | None]:
    """Seconds of a step, and the steps of an episode if one ended."""
    for _ in range(trainer.config.replay.n_step + 3):  # the first steps of a simulator are slow
        trainer.advance()
    began, taken, episode_steps = perf_counter(), 0, None
    while taken < TRIED_STEPS // 2 and (taken < 3 or perf_counter() - began < TRIED_S):
        episodes = trainer.advance().episodes
        taken += 1
        episode_steps = episodes[0]["steps"] if episodes else episode_steps
    return (perf_counter() - began) / taken, episode_steps


def _seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began

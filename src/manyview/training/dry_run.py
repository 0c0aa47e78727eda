"""Estimate memory, parameters and duration of a run from a few real steps and updates."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median
from time import perf_counter
from typing import Any

from manyview.config.overrides import apply_overrides
from manyview.config.schema import RunConfig
from manyview.data.layout import check_replay_fits
from manyview.training import factory
from manyview.training.compute import configure_torch, resolve_compute
from manyview.training.memory_estimate import estimate_rollout_state_bytes, make_feature_replay, make_search
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.on_policy import OnPolicyTrainer, check_rollout_fits
from manyview.training.preprocessing import prepare_observation
from manyview.training.run_dir import RunDir
from manyview.utils.resources import InsufficientSpaceError, get_free_memory_bytes, keep_freed_memory
from manyview.utils.text import format_bytes

TRIAL_UPDATES = 5
TRIAL_STEPS = 2_000
TRIAL_EVALUATION_STEPS = 20
MIN_SEARCH_ROWS = 100
MAX_TRIAL_S = 3.0
"""Time after which no further trial step or update begins, at least 3 steps and 1 update."""
DEFAULT_EPISODE_FRAMES = 1000
"""Assumed episode length, the suites' usual one, if no episode ends within the trial."""


@dataclass(frozen=True)
class RunEstimate:
    """Measured costs of a run's parts; totals follow from its config."""

    config: RunConfig
    views: tuple[str, ...]
    frames_per_step: int
    parameters: int
    data_bytes: int
    """Bytes of the replay buffer or of the rollout buffer."""
    update_bytes: int | None
    """Memory beside the data: a batch, parameters, moments and activations of an update; None if unknown."""
    free_bytes: int | None
    step_s: float
    update_s: float
    evaluation_s: float
    search_s: float = 0.0
    """Time of a search among the stored features at the end of the run; 0 if the bonus stores none."""

    @property
    def steps(self) -> float:
        return self.config.schedule.frames / self.frames_per_step

    @property
    def updates(self) -> float:
        schedule, rollout, agent = self.config.schedule, self.config.rollout, self.config.agent
        if self.config.is_on_policy:
            rows = rollout.envs * rollout.steps
            return self.steps / rows * float(agent.epochs * math.ceil(rows / agent.batch_size))
        return max(0.0, self.steps - schedule.seed_frames / self.frames_per_step) / schedule.update_every_steps

    @property
    def mean_search_s(self) -> float:
        """Mean time of a search, which is proportional to the steps that it reads while the replay buffer fills up."""
        first, last = self.config.schedule.seed_frames / self.frames_per_step, self.steps
        rows = _count_search_rows(self.config, last)
        if first >= rows:
            return self.search_s
        filling = (rows**2 - first**2) / 2  # sum of the rows until the search set is complete
        return self.search_s * (filling / rows + last - rows) / (last - first)

    @property
    def seconds(self) -> float:
        rollout = self.config.rollout
        min_frames = rollout.envs * rollout.steps * self.frames_per_step if self.config.is_on_policy else 1
        evaluations = 1 + self.config.schedule.frames / max(min_frames, self.config.evaluation.every_frames)
        update_s = self.update_s + self.mean_search_s
        return self.steps * self.step_s + self.updates * update_s + evaluations * self.evaluation_s


def estimate_run(config: RunConfig) -> RunEstimate:
    """Run some real steps and updates, with a replay buffer just large enough for them."""
    config = replace(config, compute=resolve_compute(config.compute))
    configure_torch(config.compute)
    trial = _make_trial_config(config)
    trainer = OnPolicyTrainer(trial) if config.is_on_policy else OffPolicyTrainer(trial)
    keep_freed_memory()
    try:
        if isinstance(trainer, OnPolicyTrainer):
            step_s, episode_steps = _time_rollout(trainer)
            update_s = _time_updates(trainer.advance, max_updates=min(TRIAL_UPDATES, trainer.num_pending_updates))
            evaluation_step_s = _time_evaluation_step(trainer) if config.evaluation.episodes else 0.0
        else:
            step_s, episode_steps = _time_steps(trainer)
            update_s = _time_updates(trainer.update, max_updates=TRIAL_UPDATES + 1)
            evaluation_step_s = step_s
        update_bytes = trainer.update_bytes
        if isinstance(trainer, OnPolicyTrainer) and update_bytes is not None:  # the trial's rollout is shorter
            update_bytes += sum(
                sign * estimate_rollout_state_bytes(trainer.agent, run_config, trainer.shapes)
                for sign, run_config in ((1, config), (-1, trial))
            )
    finally:
        trainer.close()
    shapes, settings = trainer.shapes, trainer.env.metadata.get("settings")
    frames_per_step = 1 if settings is None else settings.action_repeat or 1
    return RunEstimate(
        config=config,
        views=tuple(view.name for view in shapes.views),
        frames_per_step=frames_per_step,
        parameters=trainer.parameter_count,
        data_bytes=factory.compute_rollout_bytes(config, shapes)
        if config.is_on_policy
        else factory.compute_replay_bytes(config, shapes, trainer.agent.bonus),
        update_bytes=update_bytes,
        free_bytes=get_free_memory_bytes(),
        step_s=step_s,
        update_s=update_s,
        evaluation_s=config.evaluation.episodes
        * len(factory.list_evaluation_levels(settings))
        * evaluation_step_s
        * (episode_steps or DEFAULT_EPISODE_FRAMES / frames_per_step),
        search_s=_time_search(trainer.agent, config, shapes, steps=config.schedule.frames // frames_per_step),
    )


def find_obstacle(estimate: RunEstimate) -> str | None:
    """Return why this machine will refuse the run for its memory or disk space; None if it fits."""
    config, update_bytes = estimate.config, estimate.update_bytes or 0
    try:
        if config.is_on_policy:
            check_rollout_fits(config, estimate.data_bytes, update_bytes)
        else:
            check_replay_fits(
                estimate.data_bytes,
                capacity=config.replay.capacity,
                directory=factory.get_replay_directory(config),
                other_memory_bytes=update_bytes,
            )
    except InsufficientSpaceError as error:
        return str(error)
    return None


def _make_trial_config(config: RunConfig) -> RunConfig:
    """Return the config of the trial: policy actions from the first step, no updates, a small replay in memory."""
    config, envs = config.single_process, config.rollout.envs
    if config.is_on_policy:
        rows = (TRIAL_UPDATES + 1) * config.agent.batch_size
        min_steps = 1 + max(3, getattr(config.bonus, "k", 0))  # k-NN needs more than k rows
        return apply_overrides(
            config, {"rollout": {"steps": min(config.rollout.steps, max(min_steps, math.ceil(rows / envs)))}}
        )
    after_end = config.schedule.frames + 1
    return apply_overrides(
        config,
        {
            "schedule": {"random_steps": 0, "seed_frames": after_end},
            "replay": {"capacity": min(config.replay.capacity, TRIAL_STEPS), "directory": None, "prefetch": False},
        },
    )


def _time_rollout(trainer: OnPolicyTrainer) -> tuple[float, float | None]:
    """Return seconds per step of one environment, and steps per episode if one ended."""
    trainer.advance()  # the first step is slow
    start_s, steps, episodes = perf_counter(), 0, 0
    while trainer.rollout.length < trainer.rollout.num_steps:
        episodes += len(trainer.advance().episodes)
        steps += trainer.config.rollout.envs
    # Not the mean length of the finished episodes: those are the short ones.
    return (perf_counter() - start_s) / max(1, steps), steps / episodes if episodes else None


def _time_evaluation_step(trainer: OnPolicyTrainer) -> float:
    """Return seconds per step of an evaluation, which runs a single environment."""
    env, shapes = factory.make_env(trainer.config), trainer.shapes
    observation, _ = env.reset(seed=0)
    start_s = perf_counter()
    for step in range(TRIAL_EVALUATION_STEPS):
        observation_tensors = prepare_observation(observation, shapes, trainer.device, episode=0)
        action = shapes.actions.to_env(trainer.agent.act(*observation_tensors, step=step, explore=False))[0]
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    return (perf_counter() - start_s) / TRIAL_EVALUATION_STEPS


def _time_steps(trainer: OffPolicyTrainer) -> tuple[float, int | None]:
    """Return seconds per step, and the steps of an episode if one ended."""
    window_steps = trainer.config.sequence_length or trainer.config.replay.n_step
    for _ in range(window_steps + 3):  # the first steps of a simulator are slow
        trainer.advance()
    start_s, steps, episode_steps = perf_counter(), 0, None
    while steps < TRIAL_STEPS // 2 and (steps < 3 or perf_counter() - start_s < MAX_TRIAL_S):
        episodes = trainer.advance().episodes
        steps += 1
        episode_steps = episodes[0]["steps"] if episodes else episode_steps
    return (perf_counter() - start_s) / steps, episode_steps


def _time_updates(update: Callable[[], object], *, max_updates: int) -> float:
    """Return the median seconds of an update; of fewer updates if they take long."""
    start_s, times_s = perf_counter(), [_time_call(update)]
    while len(times_s) < max_updates and perf_counter() - start_s < MAX_TRIAL_S:
        times_s.append(_time_call(update))
    return median(times_s)


def _time_search(agent: Any, config: RunConfig, shapes: factory.Shapes, *, steps: int) -> float:
    """Return the seconds of a batch's search after `steps` of the run; 0 if the bonus stores no features.

    It is timed among as many random features as the run will hold, or as many as fit into memory.
    """
    if getattr(agent, "neighbor_search", None) is None:
        return 0.0
    fitting = (get_free_memory_bytes() or math.inf) / 4 // (4 * math.prod(agent.bonus.feature_shape))
    rows = max(MIN_SEARCH_ROWS, int(min(steps, config.replay.capacity, fitting)))
    replay = make_feature_replay(agent, shapes, rows=rows)
    search = make_search(agent, replay, batch_size=config.replay.batch_size)
    search_s = median(_time_call(search) for _ in range(TRIAL_UPDATES))
    return search_s * _count_search_rows(config, steps) / _count_search_rows(config, rows)


def _count_search_rows(config: RunConfig, steps: float) -> float:
    """Return the number of stored features that a search reads after `steps` of the run."""
    return min(steps, config.replay.capacity)


def _time_call(work: Callable[[], object]) -> float:
    start_s = perf_counter()
    work()
    return perf_counter() - start_s


def format_estimate(estimate: RunEstimate, run_dir: RunDir) -> list[str]:
    """Return the estimate as lines of text: sizes, times and the run directory."""
    config = estimate.config
    location = "in memory" if config.replay.directory is None else f"in {config.replay.directory}"
    data = (
        {
            "rollout": f"{format_bytes(estimate.data_bytes)} for {config.rollout.steps:,} steps of "
            f"{config.rollout.envs} environments"
        }
        if config.is_on_policy
        else {"replay": f"{format_bytes(estimate.data_bytes)} {location} for {config.replay.capacity:,} steps"}
    )
    search = (
        {"search time": f"{1000 * estimate.search_s:.3g} ms more per update in the full replay buffer"}
        if estimate.search_s
        else {}
    )
    rows = {
        "views": ", ".join(estimate.views),
        "parameters": f"{estimate.parameters:,}",
        **data,
        "other memory": f"{format_bytes(estimate.update_bytes)} for networks, their moments and an update",
        "free memory": format_bytes(estimate.free_bytes),
        "step time": f"{1000 * estimate.step_s:.3g} ms",
        "update time": f"{1000 * estimate.update_s:.3g} ms",
        **search,
        "total": f"{estimate.config.schedule.frames:,} frames, {estimate.steps:,.0f} steps, "
        f"{estimate.updates:,.0f} updates",
        "duration": f"about {timedelta(seconds=round(estimate.seconds))} on {estimate.config.compute.device}",
        "run directory": str(run_dir.path),
    }
    return [f"{name:<14}{value}" for name, value in rows.items()]

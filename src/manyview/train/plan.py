"""What a run will take, before it begins: bytes, parameters, and hours by some real steps and updates."""

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

from manyview.data.room import free_memory_bytes
from manyview.train import build
from manyview.train.config import RunConfig
from manyview.train.machine import prepare, resolved
from manyview.train.memory import keep_freed_memory
from manyview.train.trainer import Trainer
from manyview.train.tree import changed

TRIED_UPDATES = 5
TRIED_STEPS = 2_000
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
    replay_bytes: int
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
        schedule = self.config.schedule
        return max(0.0, self.steps - schedule.seed_frames / self.frames_per_step) / schedule.update_every_steps

    @property
    def seconds(self) -> float:
        evaluations = 1 + self.config.schedule.frames / self.config.evaluation.every_frames
        return self.steps * self.step_s + self.updates * self.update_s + evaluations * self.evaluation_s


def plan(config: RunConfig) -> Plan:
    """Take some real steps and updates of the run, with a replay just large enough for them."""
    config = replace(config, machine=resolved(config.machine))
    prepare(config.machine)
    trainer = Trainer(_trial(config))
    keep_freed_memory()
    try:
        steps_s, episode_steps = _try_steps(trainer)
        update_s = median(_try_update(trainer) for _ in range(TRIED_UPDATES + 1))
    finally:
        trainer.close()
    shapes, settings = trainer.shapes, trainer.env.metadata.get("settings")
    frames_per_step = 1 if settings is None else settings.action_repeat or 1
    return Plan(
        config=config,
        views=tuple(view.name for view in shapes.views),
        frames_per_step=frames_per_step,
        parameters=trainer.parameter_count,
        replay_bytes=build.replay_bytes(config, shapes),
        update_bytes=trainer.update_bytes,
        free_bytes=free_memory_bytes(),
        step_s=steps_s,
        update_s=update_s,
        evaluation_s=config.evaluation.episodes * steps_s * (episode_steps or LONG_EPISODE_FRAMES / frames_per_step),
    )


def _trial(config: RunConfig) -> RunConfig:
    """The run with the policy's actions from the first step, no updates of its own, and a small replay in memory."""
    never = config.schedule.frames + 1
    return changed(
        config,
        {
            "schedule": {"random_steps": 0, "seed_frames": never},
            "replay": {"capacity": min(config.replay.capacity, TRIED_STEPS), "folder": None, "prefetch": False},
        },
    )


def _try_steps(trainer: Trainer) -> tuple[float, int | None]:
    """Seconds of a step, and the steps of an episode if one ended."""
    for _ in range(trainer.config.replay.n_step + 3):  # the first steps of a simulator are slow
        trainer.advance()
    began, taken, episode_steps = perf_counter(), 0, None
    while taken < TRIED_STEPS // 2 and (taken < 3 or perf_counter() - began < TRIED_S):
        episode = trainer.advance().episode
        taken += 1
        episode_steps = episode["steps"] if episode else episode_steps
    return (perf_counter() - began) / taken, episode_steps


def _try_update(trainer: Trainer) -> float:
    began = perf_counter()
    trainer.update()
    return perf_counter() - began

"""A whole run: Algorithm 1 with evaluations, records, videos and checkpoints around it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from traceback import format_exc
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from manyview.envs.views import Observation
from manyview.methods import Healthy
from manyview.train import build, checkpoint
from manyview.train.config import RunConfig
from manyview.train.evaluation import Film, evaluate
from manyview.train.film import write_film
from manyview.train.folder import RunFolder, manifest_of
from manyview.train.machine import autocast, prepare
from manyview.train.memory import keep_freed_memory
from manyview.train.records import JsonLines, Kind, Listener, Listeners, TensorBoard, WeightsAndBiases
from manyview.train.trainer import Trainer
from manyview.train.tree import to_plain

SKIPS_BEFORE_GOING_BACK = 3
KEPT_CHECKPOINTS = 2


class DivergedError(RuntimeError):
    """Updates stay non-finite even from the last good checkpoint."""


def run(config: RunConfig, folder: RunFolder, *listeners: Listener) -> None:
    """Train to the end of the schedule. `listeners` are told of every record, as the file in `folder` is."""
    session = begin(config, folder, *listeners)
    try:
        session.play()
    finally:
        session.close()


def begin(config: RunConfig, folder: RunFolder, *listeners: Listener) -> "Session":
    """Build a run and take its folder. What is wrong with the settings, the machine or the folder shows here."""
    folder.refuse_if_taken()
    prepare(config.machine)
    trainer = Trainer(config)
    evaluation_env = build.environment(trainer.config)
    keep_freed_memory()  # after the replay has its own
    services = _services(config, folder)
    folder.begin(trainer.config, _manifest(trainer))
    told = Listeners(JsonLines(folder.metrics_file), *services, *listeners)
    return Session(trainer, evaluation_env, folder, told)


class Session:
    """One run while it lasts."""

    def __init__(
        self, trainer: Trainer, evaluation_env: gym.Env[Observation, Any], folder: RunFolder, told: Listeners
    ) -> None:
        self.trainer, self.folder, self.told, self.config = trainer, folder, told, trainer.config
        self.evaluation_env = evaluation_env
        self._began_s = perf_counter()
        self._films = self.config.evaluation.video
        self._went_back_at = -1

    def close(self) -> None:
        self.told.close()
        self.evaluation_env.close()
        self.trainer.close()

    def play(self) -> None:
        trainer, config = self.trainer, self.config
        self._tell("start", task=config.task, method=config.method, seed=config.seed, total=config.schedule.frames)
        try:
            self._evaluate()
            self._save()
            while not trainer.done:
                self.advance()
        except KeyboardInterrupt:
            self._save()
            self._tell("end", state="stopped")
            raise
        except Exception as error:
            self._tell("end", state="failed", reason=repr(error), traceback=format_exc())
            raise
        self._tell("end", state="finished")

    def advance(self) -> None:
        """An agent step, and what is due after it."""
        trainer, config, before = self.trainer, self.config, self.trainer.clock.frames
        metrics, episode = trainer.advance()
        if episode is not None:
            lengths = {"steps": "length", "frames": "length_frames"}  # the clock has these names
            self._tell("episode", **{lengths.get(name, name): value for name, value in episode.items()})
        if metrics is not None and trainer.clock.updates % self._updates_per_record() == 0:
            self._tell("train", beta=trainer.beta, **_floats(metrics), **self._health())
        if trainer.clock.skipped_in_a_row:
            self._after_a_skip()
        if self._is_due(config.evaluation.every_frames, since=before):
            self._evaluate()
        if self._is_due(config.log.checkpoint_every_frames, since=before):
            self._save()

    def _is_due(self, every_frames: int, *, since: int) -> bool:
        return since // every_frames < self.trainer.clock.frames // every_frames or self.trainer.done

    def _updates_per_record(self) -> int:
        return max(1, self.config.log.every_steps // self.config.schedule.update_every_steps)

    def _evaluate(self) -> None:
        trainer, config = self.trainer, self.config
        with autocast(config.machine):
            found = evaluate(
                trainer.agent,
                self.evaluation_env,
                trainer.shapes.views,
                episodes=config.evaluation.episodes,
                seed=config.seed,
                step=trainer.clock.steps,
                filmed=self._films,
            )
        self._tell("evaluation", **{"return": found.mean_return, "returns": found.returns, "lengths": found.steps})
        if found.film is not None:
            self._write_film(found.film)

    def _write_film(self, film: Film) -> None:
        frames, views = self.trainer.clock.frames, self.trainer.shapes.views
        path = self.folder.named(self.folder.videos, frames, ".mp4")
        try:
            write_film(path, film, views, config=self.config, frames=frames, beta=self.trainer.beta)
        except (ImportError, OSError) as error:  # a run is worth more than its videos
            self._films = False
            self._tell("warning", text=f"no videos: {error}")

    def _save(self) -> None:
        trainer, kept = self.trainer, self.folder.checkpoints
        tree = {"clock": trainer.clock.state(), "agent": trainer.agent.state(), "sampler": trainer.sampler.state()}
        checkpoint.save(self.folder.named(kept, trainer.clock.frames), tree)
        checkpoint.keep_newest(kept, KEPT_CHECKPOINTS)

    def _after_a_skip(self) -> None:
        """An update that is not finite is left out; after three in a row the agent goes back to where it was good."""
        clock = self.trainer.clock
        text = f"update skipped: a loss or gradient was not finite ({clock.skipped_updates} so far)"
        if clock.skipped_in_a_row >= SKIPS_BEFORE_GOING_BACK:
            good = checkpoint.newest(self.folder.checkpoints)
            if good is None or self._went_back_at == clock.updates:
                raise DivergedError(f"{clock.skipped_in_a_row} updates in a row were not finite, also from {good}")
            self.trainer.agent.load_state(checkpoint.load(good)["agent"])
            self._went_back_at = clock.updates
            clock.skipped_in_a_row = 0
            text += f"; back to the agent of {good.name}"
        self._tell("warning", text=text)

    @torch.no_grad()
    def _health(self) -> dict[str, Any]:
        """Meters of a representation that has them, on the last batch."""
        representation = self.trainer.agent.representation
        batch = self.trainer.last_batch
        if not isinstance(representation, Healthy) or batch is None:
            return {}
        features = representation.encode(batch.views, batch.mask)
        health = representation.health(features, beta=self.trainer.beta, rows=batch.rows)
        return {**health.metrics(), "health": health.verdict()}

    def _tell(self, kind: Kind, **figures: Any) -> None:
        clock = self.trainer.clock
        seconds = round(perf_counter() - self._began_s, 3)
        self.told.record({"kind": kind, **clock.times(), "seconds": seconds, **figures})


def _floats(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    names = list(metrics)
    return dict(zip(names, torch.stack([metrics[name].float() for name in names]).tolist(), strict=True))


def _manifest(trainer: Trainer) -> dict[str, Any]:
    settings = trainer.env.metadata.get("settings")
    return manifest_of(
        trainer.config,
        views=[view.name for view in trainer.shapes.views],
        settings=None if settings is None else to_plain(settings),
        parameters=trainer.parameter_count,
        replay_bytes=trainer.replay.nbytes,
    )


def _services(config: RunConfig, folder: RunFolder) -> Sequence[Listener]:
    services: list[Listener] = []
    if config.log.tensorboard:
        with suppress(ModuleNotFoundError):  # JSON lines are the truth
            services.append(TensorBoard(folder.tensorboard))
    if config.log.wandb:
        folder.path.mkdir(parents=True, exist_ok=True)  # it would take another place otherwise
        services.append(WeightsAndBiases(folder.path, name=str(folder.path), config=to_plain(config)))
    return services

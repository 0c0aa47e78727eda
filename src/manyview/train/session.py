"""A whole run: Algorithm 1 or 2 with evaluations, records, videos and checkpoints around it, stopped and resumed."""

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import get_ident
from time import perf_counter
from traceback import format_exc, format_stack
from typing import IO, Any

import gymnasium as gym
import torch
from torch import Tensor

from manyview.data import Log, Scribe
from manyview.envs.layers.boundary import EnvError
from manyview.envs.views import Observation
from manyview.methods import Healthy
from manyview.train import checkpoint
from manyview.train.checkpoint import Checkpoint, CheckpointError
from manyview.train.diary import Diary
from manyview.train.evaluation import Evaluation, Film, evaluate, starts_after
from manyview.train.film import write_film
from manyview.train.folder import RunFolder
from manyview.train.machine import autocast
from manyview.train.records import JsonLines, Kind, Listeners
from manyview.train.resume import Resumed, promise_of, segments_of
from manyview.train.stopping import Stopped, StopRequest, Watchdog, set_current_request, stop_request
from manyview.train.trainer import Trainer

SKIPS_BEFORE_GOING_BACK = 3
KEPT_CHECKPOINTS = 3
MOST_STACK = 20_000
FILMS = 100
"""About so many in a run."""


class NotSavedError(RuntimeError):
    """The last thing a run does is to be saved, and that did not work."""


class MovedError(NotSavedError):
    """The folder of a run that is being trained was moved, removed or made anew."""


class DivergedError(RuntimeError):
    """Updates stay non-finite even from the last good checkpoint."""


def check_held(folder: RunFolder, lock: IO[str]) -> None:
    """Raise `MovedError` unless the folder is still the one that this process locked: a new one is somebody else's."""
    if not folder.is_held(lock):
        raise MovedError(
            f"run folder was moved: expected the folder that this process locked at {folder.path}, got none or another "
            "one. Nothing is saved there; the same command with --out of its new place goes on"
        )


@dataclass(frozen=True)
class Desk:
    """What a session writes with."""

    lines: JsonLines
    scribe: Scribe
    log: Log
    lock: IO[str]
    made_with: Mapping[str, Any]
    """The manifest of this process."""


class Session:
    """One run while it lasts."""

    def __init__(
        self,
        trainer: Trainer,
        evaluation_envs: Mapping[str, gym.Env[Observation, Any]],
        folder: RunFolder,
        told: Listeners,
        desk: Desk,
        resumed: Resumed | None,
        stop: StopRequest | None = None,
    ) -> None:
        self.trainer, self.folder, self.told, self.config = trainer, folder, told, trainer.config
        self.evaluation_envs = evaluation_envs
        self.desk, self._resumed = desk, resumed
        before = Diary() if resumed is None else resumed.diary
        self._began_s = perf_counter() - before.seconds
        self._due, self._good = list(before.due), before.good
        self._edge = before
        """The diary at the last moment of which a state can be taken."""
        self._films = self.config.evaluation.video
        self._warned: set[str] = set()
        self._asks_to_stop, self._stop = stop, stop or StopRequest()
        self._watchdog: Watchdog | None = None
        self._thread, self._saved = get_ident(), False

    def close(self) -> None:
        self.desk.scribe.close()  # first: its jobs flush the records
        set_current_request(None)
        self.told.close()
        for env in self.evaluation_envs.values():
            with suppress(EnvError), self.trainer.env_calls("close"):  # all that matters is written
                env.close()
        with suppress(EnvError):
            self.trainer.close()
        self.desk.lock.close()
        if self._watchdog is not None:
            self._watchdog.close()

    def play(self) -> bool:
        """To the end, or to where somebody asks for a stop by SIGTERM or Ctrl-C; whether it is the end."""
        # From the first record to the last: whoever reads that a run is under way can ask it to stop.
        with self._heard_stops() as self._stop:
            set_current_request(self._stop)
            self._tell_begin()
            try:
                finished = self._play()
            except KeyboardInterrupt:  # the second one: whatever was being done is not worth a checkpoint
                self._tell("end", state="stopped", reason="at once, without a checkpoint")
                raise
            except Exception as error:
                reason = str(error) if isinstance(error, EnvError) else repr(error)
                self._tell("end", state="failed", reason=reason, traceback=_bounded(format_exc()))
                raise
            self._tell("end", state="finished" if finished else "stopped")
            if finished:
                self._finish()
            return finished

    def _heard_stops(self) -> AbstractContextManager[StopRequest]:
        """Signals, or whoever else asks for stops."""
        if self._asks_to_stop is not None:
            return nullcontext(self._asks_to_stop)
        self._thread, deadline_s = get_ident(), self.config.env.step_deadline_s
        self._watchdog = Watchdog(self.trainer.env_calls, self._leave, step_deadline_s=deadline_s)
        return stop_request(self._watchdog.last_resort)

    def _leave(self, call: str, seconds: float, number: int | None) -> None:
        """Keep what is complete and end the process: its thread does not come back from the environment.

        The state of this moment cannot be taken, so the run goes on from its newest checkpoint.
        """
        reason = f"{self.config.task}: env.{call} has not returned for {seconds:.0f} s"
        if not self._saved:
            newest = next(iter(checkpoint.every(self.folder.checkpoints)), None)
            reason += ". Saved are the records and whole segments, not this moment: the same command goes on from " + (
                "the begin" if newest is None else f"checkpoint {newest.name}"
            )
        stack = "".join(format_stack(sys._current_frames().get(self._thread)))
        state = "failed" if number is None else "stopped"
        with suppress(Exception):
            self._tell("end", state=state, reason=reason, traceback=_bounded(stack))
        for finish in (self.desk.lines.flush, self.desk.scribe.wait, self.told.close):
            with suppress(Exception):
                finish()
        os.write(2, f"{reason}\n".encode())
        interrupted = 128 + signal.SIGINT
        os._exit(interrupted if number == signal.SIGINT else 0 if self._saved else 1)

    def _play(self) -> bool:
        """All steps, or those up to a stop, and the last checkpoint on the disk; whether it was all."""
        trainer = self.trainer
        self._do_what_is_due()
        self._edge = self._diary()
        while not (trainer.done or self._stop):
            self.advance()
        if self._watchdog is not None:
            self._watchdog.settle()
        finished = trainer.done and not self._due  # then whoever asks for a stop asks too late
        last = checkpoint.name_of(trainer.edge_frames, stop=not finished)
        if not finished:
            self.save(last)
        self._expect(last)
        self._saved = True
        return finished

    def _expect(self, last: str) -> None:
        """Of the last checkpoint there is no later attempt: without it a run has neither stopped nor finished."""
        self.desk.scribe.wait()
        failures = self._tell_failures()
        if not (self.folder.checkpoints / last).is_dir():
            raise NotSavedError(_not_saved(f"checkpoint {last}", failures[-1] if failures else "it is not there"))

    def _finish(self) -> None:
        """Nothing goes on from here, so the replay is needed no more."""
        check_held(self.folder, self.desk.lock)
        try:
            self._tidy(self._good)  # a kill may have come between the last checkpoint and this
            self.desk.lines.flush()  # a manifest that says so must not outlive the record of the end
            self.folder.mark_finished()
        except OSError as error:
            raise NotSavedError(_not_saved("that the run has finished", error)) from None
        if not self.config.log.keep_replay:
            self.desk.log.forget(but=())

    @property
    def stopped_by(self) -> int | None:
        """The number of the signal."""
        return self._stop.asked

    def advance(self) -> None:
        """An agent step, and what is due after it."""
        trainer, config, before = self.trainer, self.config, self.trainer.clock.frames
        skipped = trainer.clock.skipped_updates
        metrics, episodes, news = trainer.advance()
        self.desk.log.follow()
        for text in news:
            self._tell("warning", text=text)
        lengths = {"steps": "length", "frames": "length_frames"}  # the clock has these names
        for episode in episodes:
            self._tell("episode", **{lengths.get(name, name): value for name, value in episode.items()})
        if metrics is not None and trainer.record_is_due:
            self._tell("train", **{"beta": trainer.beta, **_floats(metrics), **self._health()})
        if trainer.clock.skipped_updates > skipped:
            self._after_a_skip()
        self._tell_failures()
        for what, every_frames in (
            ("evaluation", config.evaluation.every_frames),
            ("checkpoint", config.log.checkpoint_every_frames),
        ):
            due = before // every_frames < trainer.clock.frames // every_frames or trainer.done
            if due and what not in self._due:
                self._due.append(what)
        if trainer.at_edge:
            self._do_what_is_due()
            self._edge = self._diary()

    def _do_what_is_due(self) -> None:
        """All of it, unless a stop comes between; then the rest is due when the run goes on."""
        if self._due:
            check_held(self.folder, self.desk.lock)
        with suppress(Stopped):
            if "evaluation" in self._due:
                self._evaluate()
                self._due.remove("evaluation")
            if "checkpoint" in self._due:
                self._due.remove("checkpoint")
                self._good = checkpoint.name_of(self.trainer.clock.frames)
                self.save(self._good)

    def _evaluate(self) -> None:
        if not self.evaluation_envs:
            return
        found = {levels: self._evaluated(env, levels) for levels, env in self.evaluation_envs.items()}
        first = found.pop(next(iter(found)))
        figures: dict[str, Any] = {"return": first.mean_return, "returns": first.returns, "lengths": first.steps}
        for levels, other in found.items():
            figures |= {
                f"{levels}_return": other.mean_return,
                f"{levels}_returns": other.returns,
                f"{levels}_lengths": other.steps,
                "gap": first.mean_return - other.mean_return,
            }
        if cut := first.cut + sum(other.cut for other in found.values()):
            figures["cut"] = cut
        self._tell("evaluation", **figures)
        if first.film is not None:
            self._write_film(first.film)

    def _evaluated(self, env: gym.Env[Observation, Any], levels: str) -> Evaluation:
        trainer, config = self.trainer, self.config
        has_levels = len(self.evaluation_envs) > 1
        starts = starts_after(trainer.clock.frames, seed=config.seed, has_levels=has_levels)
        with autocast(config.machine):
            return evaluate(
                trainer.agent,
                env,
                trainer.shapes,
                episodes=config.evaluation.episodes,
                seed=starts.seed,
                in_sequence=starts.in_sequence,
                step=trainer.clock.steps,
                filmed_steps=config.evaluation.video_steps if levels != "test" and self._film_is_due else 0,
                max_steps=config.evaluation.max_steps,
                stop=self._stop,
                calls=trainer.env_calls,
                warn=self._warn_once,
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._tell("warning", text=text)

    @property
    def _film_is_due(self) -> bool:
        """At most one for each hundredth of the run, and the last: evaluations may be thousands."""
        if not self._films:
            return False
        filmed = (path.stem for path in self.folder.videos.glob("*.mp4"))
        last = max((int(stem) for stem in filmed if stem.isdecimal()), default=-inf)
        return self.trainer.done or self.trainer.clock.frames - last >= self.config.schedule.frames // FILMS

    def _write_film(self, film: Film) -> None:
        frames, views = self.trainer.clock.frames, self.trainer.shapes.views
        path = self.folder.videos / f"{checkpoint.name_of(frames)}.mp4"
        try:
            write_film(path, film, views, config=self.config, frames=frames, beta=self.trainer.beta)
        except (ImportError, OSError) as error:  # a run is worth more than its videos
            self._films = not isinstance(error, ImportError)
            self._tell("warning", text=f"no video: {error}")

    def save(self, name: str) -> None:
        """Ask for a checkpoint of this moment. Training goes on while it is written."""
        desk, parent, good = self.desk, self.folder.checkpoints, self._good
        diary = self._diary() if self.trainer.at_edge else self._edge
        tree, inserted = {**self.trainer.state(), "session": diary.plain()}, self.trainer.inserted
        manifest = self._manifest(tree)
        desk.log.cut()

        def job() -> None:
            desk.lines.flush()
            segments = [entry.plain() for entry in desk.log.entries(inserted=inserted)]
            checkpoint.save(parent / name, tree, {**manifest, "segments": segments})
            self._tidy(good)

        desk.scribe.ask(job)

    def _tidy(self, good: str) -> None:
        """Keep the newest checkpoints, the good one, and the segments they name; a job of the scribe."""
        self.desk.log.keep(segments_of(checkpoint.keep_newest(self.folder.checkpoints, KEPT_CHECKPOINTS, also=good)))

    def _diary(self) -> Diary:
        return Diary(
            seconds=perf_counter() - self._began_s,
            metrics_bytes=self.desk.lines.size,
            metrics_sha256=self.desk.lines.sha256,
            due=tuple(self._due),
            good=self._good,
        )

    def _manifest(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        return {"format": checkpoint.FORMAT, "promise": promise_of(tree), **self.desk.made_with}

    def _tell_failures(self) -> list[OSError]:
        failures = self.desk.scribe.failures()
        for error in failures:
            self._tell("warning", text=f"not saved, and tried again later: {error}")
        return failures

    def _after_a_skip(self) -> None:
        """An update that is not finite is left out; after three in a row the agent goes back to where it was good."""
        clock = self.trainer.clock
        text = f"update skipped: a loss or gradient was not finite ({clock.skipped_updates} so far)"
        if clock.skipped_in_a_row >= SKIPS_BEFORE_GOING_BACK:
            if clock.went_back_at == clock.updates:
                raise DivergedError(
                    f"{clock.skipped_in_a_row} updates in a row were not finite, also from the agent of {self._good}. "
                    "The same command would meet them again: lower the learning rate, or take "
                    "machine.precision=float32, with --fresh or in another folder with --out"
                )
            self.desk.scribe.wait()
            folder, good = self._last_good()
            self.trainer.go_back(good.tree["agent"])
            text += f"; back to the agent of {folder.name}"
        self._tell("warning", text=text)

    def _last_good(self) -> tuple[Path, Checkpoint]:
        """The last checkpoint that was due; if the disk was full then, the newest one there is."""
        parent = self.folder.checkpoints
        try:
            return parent / self._good, checkpoint.load(parent / self._good)
        except CheckpointError:
            return checkpoint.newest(parent)

    @torch.no_grad()
    def _health(self) -> dict[str, Any]:
        """Meters of a representation that has them, on the last batch."""
        representation, looked = self.trainer.agent.representation, self.trainer.looked_at()
        if not isinstance(representation, Healthy) or looked is None:
            return {}
        features = representation.encode(looked.views, looked.mask)
        health = representation.health(features, beta=self.trainer.beta, rows=looked.rows)
        return {**health.metrics(), "health": health.verdict()}

    def _tell_begin(self) -> None:
        config, resumed = self.config, self._resumed
        about = {"task": config.task, "method": config.method, "seed": config.seed, "total": config.schedule.frames}
        if resumed is None:
            self._tell("start", **about)
            return
        self._tell("resume", **about, checkpoint=resumed.folder.name, promise=resumed.promise)
        damage = self.desk.lines.damage
        for text in (*resumed.refused, *resumed.changes, *([damage] if damage else [])):
            self._tell("warning", text=text)

    def _tell(self, kind: Kind, **figures: Any) -> None:
        clock = self.trainer.clock
        seconds = round(perf_counter() - self._began_s, 3)
        self.told.record({"kind": kind, **clock.times(), "seconds": seconds, **figures})


def _bounded(stack: str) -> str:
    """Its end, as text that any file can hold: what an environment says may be long, and anything."""
    return stack[-MOST_STACK:].encode(errors="backslashreplace").decode()


def _not_saved(what: str, reason: object) -> str:
    return f"{what} could not be written: {reason}. Once that is put right, the same command goes on"


def _floats(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    names = list(metrics)
    return dict(zip(names, torch.stack([metrics[name].float() for name in names]).tolist(), strict=True))

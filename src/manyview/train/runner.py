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

from manyview.data import AsyncWriter, ReplayLog
from manyview.envs.contract import EnvError
from manyview.envs.views import Observation
from manyview.methods import HasDiagnostics
from manyview.train import checkpoint
from manyview.train.checkpoint import Checkpoint, CheckpointError, RunnerState
from manyview.train.compute import autocast
from manyview.train.evaluation import EpisodeRecording, Evaluation, choose_starts, evaluate_policy
from manyview.train.loggers import JsonLinesLogger, LoggerCollection, RecordKind
from manyview.train.resume import ResumeInfo, collect_segments, determine_resume_mode
from manyview.train.run_dir import RunDir
from manyview.train.signals import StopRequest, StopRequested, Watchdog, handle_stop_signals, set_current_request
from manyview.train.trainer import Trainer
from manyview.train.video import write_episode_video

SKIPS_BEFORE_ROLLBACK = 3
MAX_CHECKPOINTS = 3
MAX_STACK_CHARS = 20_000
MAX_VIDEOS = 100
"""About so many in a run."""


class SaveFailedError(RuntimeError):
    """The last thing a run does is to be saved, and that did not work."""


class RunMovedError(SaveFailedError):
    """The folder of a run that is being trained was moved, removed or made anew."""


class DivergedError(RuntimeError):
    """Updates stay non-finite even from the last good checkpoint."""


def check_held(run_dir: RunDir, lock: IO[str]) -> None:
    """Raise `MovedError` unless the folder is still the one that this process locked: a new one is somebody else's."""
    if not run_dir.is_held(lock):
        raise RunMovedError(
            f"run directory was moved: expected the one this process locked at {run_dir.path}, got none or another "
            "one. Nothing is saved there; the same command with --out of its new place goes on"
        )


@dataclass(frozen=True)
class RunIO:
    """What a session writes with."""

    metrics_logger: JsonLinesLogger
    writer: AsyncWriter
    segment_log: ReplayLog
    lock: IO[str]
    process_manifest: Mapping[str, Any]
    """The manifest of this process."""


class Runner:
    """One run while it lasts."""

    def __init__(
        self,
        trainer: Trainer,
        evaluation_envs: Mapping[str, gym.Env[Observation, Any]],
        run_dir: RunDir,
        loggers: LoggerCollection,
        io: RunIO,
        resume_info: ResumeInfo | None,
        stop: StopRequest | None = None,
    ) -> None:
        self.trainer, self.run_dir, self.loggers, self.config = trainer, run_dir, loggers, trainer.config
        self.evaluation_envs = evaluation_envs
        self.io, self._resume_info = io, resume_info
        before = RunnerState() if resume_info is None else resume_info.runner_state
        self._start_s = perf_counter() - before.elapsed_s
        self._pending_jobs, self._last_good = list(before.pending_jobs), before.last_good
        self._checkpoint_state = before
        """The diary at the last moment of which a state can be taken."""
        self._video_enabled = self.config.evaluation.video
        self._warned: set[str] = set()
        self._external_stop, self._stop = stop, stop or StopRequest()
        self._watchdog: Watchdog | None = None
        self._thread, self._saved = get_ident(), False

    def close(self) -> None:
        self.io.writer.close()  # first: its jobs flush the records
        set_current_request(None)
        self.loggers.close()
        for env in self.evaluation_envs.values():
            with suppress(EnvError), self.trainer.env_calls("close"):  # all that matters is written
                env.close()
        with suppress(EnvError):
            self.trainer.close()
        self.io.lock.close()
        if self._watchdog is not None:
            self._watchdog.close()

    def run(self) -> bool:
        """To the end, or to where somebody asks for a stop by SIGTERM or Ctrl-C; whether it is the end."""
        # From the first record to the last: whoever reads that a run is under way can ask it to stop.
        with self._handle_stops() as self._stop:
            set_current_request(self._stop)
            self._log_start()
            try:
                finished = self._run_loop()
            except KeyboardInterrupt:  # the second one: whatever was being done is not worth a checkpoint
                self._log("end", state="stopped", reason="at once, without a checkpoint")
                raise
            except Exception as error:
                reason = str(error) if isinstance(error, EnvError) else repr(error)
                self._log("end", state="failed", reason=reason, traceback=_truncate_stack(format_exc()))
                raise
            self._log("end", state="finished" if finished else "stopped")
            if finished:
                self._finish()
            return finished

    def _handle_stops(self) -> AbstractContextManager[StopRequest]:
        """Signals, or whoever else asks for stops."""
        if self._external_stop is not None:
            return nullcontext(self._external_stop)
        self._thread, deadline_s = get_ident(), self.config.env.step_deadline_s
        self._watchdog = Watchdog(self.trainer.env_calls, self._exit_stuck_process, step_deadline_s=deadline_s)
        return handle_stop_signals(self._watchdog.arm_forced_exit)

    def _exit_stuck_process(self, call: str, seconds: float, number: int | None) -> None:
        """Keep what is complete and end the process: its thread does not come back from the environment.

        The state of this moment cannot be taken, so the run goes on from its newest checkpoint.
        """
        reason = f"{self.config.task}: env.{call} has not returned for {seconds:.0f} s"
        if not self._saved:
            newest = next(iter(checkpoint.list_checkpoints(self.run_dir.checkpoints_dir)), None)
            reason += ". Saved are the records and whole segments, not this moment: the same command goes on from " + (
                "the begin" if newest is None else f"checkpoint {newest.name}"
            )
        stack = "".join(format_stack(sys._current_frames().get(self._thread)))
        state = "failed" if number is None else "stopped"
        with suppress(Exception):
            self._log("end", state=state, reason=reason, traceback=_truncate_stack(stack))
        for finish in (self.io.metrics_logger.flush, self.io.writer.wait, self.loggers.close):
            with suppress(Exception):
                finish()
        os.write(2, f"{reason}\n".encode())
        interrupted = 128 + signal.SIGINT
        os._exit(interrupted if number == signal.SIGINT else 0 if self._saved else 1)

    def _run_loop(self) -> bool:
        """All steps, or those up to a stop, and the last checkpoint on the disk; whether it was all."""
        trainer = self.trainer
        self._run_pending_jobs()
        self._checkpoint_state = self._capture_state()
        while not (trainer.is_done or self._stop):
            self.advance()
        if self._watchdog is not None:
            self._watchdog.wait_if_exiting()
        finished = trainer.is_done and not self._pending_jobs  # then whoever asks for a stop asks too late
        last = checkpoint.format_checkpoint_name(trainer.checkpoint_frames, stop=not finished)
        if not finished:
            self.save(last)
        self._check_saved(last)
        self._saved = True
        return finished

    def _check_saved(self, last: str) -> None:
        """Of the last checkpoint there is no later attempt: without it a run has neither stopped nor finished."""
        self.io.writer.wait()
        failures = self._log_failures()
        if not (self.run_dir.checkpoints_dir / last).is_dir():
            raise SaveFailedError(
                _format_save_error(f"checkpoint {last}", failures[-1] if failures else "it is not there")
            )

    def _finish(self) -> None:
        """Nothing goes on from here, so the replay is needed no more."""
        check_held(self.run_dir, self.io.lock)
        try:
            self._prune_checkpoints(self._last_good)  # a kill may have come between the last checkpoint and this
            self.io.metrics_logger.flush()  # a manifest that says so must not outlive the record of the end
            self.run_dir.mark_finished()
        except OSError as error:
            raise SaveFailedError(_format_save_error("that the run has finished", error)) from None
        if not self.config.log.keep_replay:
            self.io.segment_log.truncate(keep=())

    @property
    def stop_signal(self) -> int | None:
        """The number of the signal."""
        return self._stop.signal

    def advance(self) -> None:
        """An agent step, and what is due after it."""
        trainer, config, before = self.trainer, self.config, self.trainer.counters.frames
        skipped = trainer.counters.skipped_updates
        metrics, episodes, news = trainer.advance()
        self.io.segment_log.flush_full_segments()
        for text in news:
            self._log("warning", text=text)
        lengths = {"steps": "length", "frames": "length_frames"}  # the clock has these names
        for episode in episodes:
            self._log("episode", **{lengths.get(name, name): value for name, value in episode.items()})
        if metrics is not None and trainer.should_log:
            self._log("train", **{"beta": trainer.beta, **_to_floats(metrics), **self._compute_diagnostics()})
        if trainer.counters.skipped_updates > skipped:
            self._handle_skipped_update()
        self._log_failures()
        for what, every_frames in (
            ("evaluation", config.evaluation.every_frames),
            ("checkpoint", config.log.checkpoint_every_frames),
        ):
            due = before // every_frames < trainer.counters.frames // every_frames or trainer.is_done
            if due and what not in self._pending_jobs:
                self._pending_jobs.append(what)
        if trainer.can_checkpoint:
            self._run_pending_jobs()
            self._checkpoint_state = self._capture_state()

    def _run_pending_jobs(self) -> None:
        """All of it, unless a stop comes between; then the rest is due when the run goes on."""
        if self._pending_jobs:
            check_held(self.run_dir, self.io.lock)
        with suppress(StopRequested):
            if "evaluation" in self._pending_jobs:
                self._evaluate()
                self._pending_jobs.remove("evaluation")
            if "checkpoint" in self._pending_jobs:
                self._pending_jobs.remove("checkpoint")
                self._last_good = checkpoint.format_checkpoint_name(self.trainer.counters.frames)
                self.save(self._last_good)

    def _evaluate(self) -> None:
        if not self.evaluation_envs:
            return
        evaluations = {levels: self._evaluate_levels(env, levels) for levels, env in self.evaluation_envs.items()}
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

    def _evaluate_levels(self, env: gym.Env[Observation, Any], levels: str) -> Evaluation:
        trainer, config = self.trainer, self.config
        has_levels = len(self.evaluation_envs) > 1
        starts = choose_starts(trainer.counters.frames, seed=config.seed, has_levels=has_levels)
        with autocast(config.machine):
            return evaluate_policy(
                trainer.agent,
                env,
                trainer.shapes,
                episodes=config.evaluation.episodes,
                seed=starts.seed,
                sequential=starts.sequential,
                step=trainer.counters.steps,
                filmed_steps=config.evaluation.video_steps if levels != "test" and self._should_record_video else 0,
                max_steps=config.evaluation.max_steps,
                stop=self._stop,
                calls=trainer.env_calls,
                warn=self._warn_once,
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._log("warning", text=text)

    @property
    def _should_record_video(self) -> bool:
        """At most one for each hundredth of the run, and the last: evaluations may be thousands."""
        if not self._video_enabled:
            return False
        stems = (path.stem for path in self.run_dir.videos_dir.glob("*.mp4"))
        last = max((int(stem) for stem in stems if stem.isdecimal()), default=-inf)
        return self.trainer.is_done or self.trainer.counters.frames - last >= self.config.schedule.frames // MAX_VIDEOS

    def _write_video(self, recording: EpisodeRecording) -> None:
        frames, views = self.trainer.counters.frames, self.trainer.shapes.views
        path = self.run_dir.videos_dir / f"{checkpoint.format_checkpoint_name(frames)}.mp4"
        try:
            write_episode_video(path, recording, views, config=self.config, frames=frames, beta=self.trainer.beta)
        except (ImportError, OSError) as error:  # a run is worth more than its videos
            self._video_enabled = not isinstance(error, ImportError)
            self._log("warning", text=f"no video: {error}")

    def save(self, name: str) -> None:
        """Ask for a checkpoint of this moment. Training goes on while it is written."""
        io, parent, last_good = self.io, self.run_dir.checkpoints_dir, self._last_good
        runner_state = self._capture_state() if self.trainer.can_checkpoint else self._checkpoint_state
        state, inserted = {**self.trainer.get_state(), "runner": runner_state.to_plain()}, self.trainer.num_inserted
        manifest = self._build_manifest(state)
        io.segment_log.flush()

        def job() -> None:
            io.metrics_logger.flush()
            segments = [segment.to_plain() for segment in io.segment_log.list_segments(inserted=inserted)]
            checkpoint.save_checkpoint(parent / name, state, {**manifest, "segments": segments})
            self._prune_checkpoints(last_good)

        io.writer.submit(job)

    def _prune_checkpoints(self, last_good: str) -> None:
        """Keep the newest checkpoints, the good one, and the segments they name; a job of the scribe."""
        self.io.segment_log.prune(
            collect_segments(
                checkpoint.prune_checkpoints(self.run_dir.checkpoints_dir, MAX_CHECKPOINTS, keep=last_good)
            )
        )

    def _capture_state(self) -> RunnerState:
        return RunnerState(
            elapsed_s=perf_counter() - self._start_s,
            metrics_bytes=self.io.metrics_logger.size,
            metrics_sha256=self.io.metrics_logger.sha256,
            pending_jobs=tuple(self._pending_jobs),
            last_good=self._last_good,
        )

    def _build_manifest(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {"format": checkpoint.FORMAT, "resume_mode": determine_resume_mode(state), **self.io.process_manifest}

    def _log_failures(self) -> list[OSError]:
        failures = self.io.writer.pop_failures()
        for error in failures:
            self._log("warning", text=f"not saved, and tried again later: {error}")
        return failures

    def _handle_skipped_update(self) -> None:
        """An update that is not finite is left out; after three in a row the agent goes back to where it was good."""
        counters = self.trainer.counters
        text = f"update skipped: a loss or gradient was not finite ({counters.skipped_updates} so far)"
        if counters.skipped_in_a_row >= SKIPS_BEFORE_ROLLBACK:
            if counters.rolled_back_at == counters.updates:
                raise DivergedError(
                    f"{counters.skipped_in_a_row} updates in a row were not finite, also from the agent of "
                    f"{self._last_good}. "
                    "The same command would meet them again: lower the learning rate, or take "
                    "machine.precision=float32, with --fresh or in another folder with --out"
                )
            self.io.writer.wait()
            directory, last_good = self._load_last_good()
            self.trainer.rollback(last_good.state["agent"])
            text += f"; back to the agent of {directory.name}"
        self._log("warning", text=text)

    def _load_last_good(self) -> tuple[Path, Checkpoint]:
        """The last checkpoint that was due; if the disk was full then, the newest one there is."""
        parent = self.run_dir.checkpoints_dir
        try:
            return parent / self._last_good, checkpoint.load_checkpoint(parent / self._last_good)
        except CheckpointError:
            return checkpoint.load_newest_checkpoint(parent)

    @torch.no_grad()
    def _compute_diagnostics(self) -> dict[str, Any]:
        """Meters of a representation that has them, on the last batch."""
        representation, last_batch = self.trainer.agent.representation, self.trainer.get_last_batch()
        if not isinstance(representation, HasDiagnostics) or last_batch is None:
            return {}
        features = representation.encode(last_batch.views, last_batch.mask)
        health = representation.diagnose(features, beta=self.trainer.beta, indices=last_batch.rows)
        return {**health.to_metrics(), "health": health.summarize()}

    def _log_start(self) -> None:
        config, resume_info = self.config, self._resume_info
        about = {"task": config.task, "method": config.method, "seed": config.seed, "total": config.schedule.frames}
        if resume_info is None:
            self._log("start", **about)
            return
        self._log("resume", **about, checkpoint=resume_info.checkpoint_dir.name, resume_mode=resume_info.resume_mode)
        damage = self.io.metrics_logger.damage
        for text in (*resume_info.rejected, *resume_info.changes, *([damage] if damage else [])):
            self._log("warning", text=text)

    def _log(self, kind: RecordKind, **figures: Any) -> None:
        counters = self.trainer.counters
        seconds = round(perf_counter() - self._start_s, 3)
        self.loggers.record({"kind": kind, **counters.to_record(), "seconds": seconds, **figures})


def _truncate_stack(stack: str) -> str:
    """Its end, as text that any file can hold: what an environment says may be long, and anything."""
    return stack[-MAX_STACK_CHARS:].encode(errors="backslashreplace").decode()


def _format_save_error(what: str, reason: object) -> str:
    return f"{what} could not be written: {reason}. Once that is put right, the same command goes on"


def _to_floats(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    names = list(metrics)
    return dict(zip(names, torch.stack([metrics[name].float() for name in names]).tolist(), strict=True))

"""One run from start to end: the training loop with its evaluations, records, checkpoints, stops and resumes."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from threading import get_ident
from time import perf_counter
from traceback import format_exc, format_stack
from typing import Any

from manyview.config.schema import RunConfig
from manyview.data import AsyncWriter
from manyview.envs.contract import EnvError
from manyview.training import checkpoint, manifest
from manyview.training.checkpoint import RunnerState
from manyview.training.checkpoint_manager import CheckpointManager
from manyview.training.compute import configure_torch
from manyview.training.evaluation import Evaluator
from manyview.training.loggers import JsonLinesLogger, Logger, LoggerCollection, RecordKind, to_floats
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.on_policy import OnPolicyTrainer
from manyview.training.resume import check_run_dir, restore_trainer
from manyview.training.run_dir import RunDir, SaveFailedError
from manyview.training.signals import StopRequest, StopRequested, Watchdog, handle_stop_signals, set_current_request
from manyview.training.trackers import build_service_loggers
from manyview.training.trainer import Trainer
from manyview.utils.resources import keep_freed_memory
from manyview.utils.text import keep_end

SKIPS_BEFORE_ROLLBACK = 3
MAX_STACK_CHARS = 20_000


class DivergedError(RuntimeError):
    """Updates stay non-finite even from the last good checkpoint."""


def make_trainer(config: RunConfig) -> Trainer:
    """Return Algorithm 1 for an off-policy agent, Algorithm 2 for an on-policy one, in this process."""
    if config.scale.actors:
        raise ValueError("scale.actors needs Ray: use `manyview train --actors` or `build_trainer=ActorLearnerTrainer`")
    return OnPolicyTrainer(config) if config.is_on_policy else OffPolicyTrainer(config)


def run(config: RunConfig, run_dir: RunDir, *loggers: Logger) -> bool:
    """Train to the end of the schedule, resuming the run in `run_dir` if there is one; return False after a stop.

    `loggers` receive every record of `metrics.jsonl`. `Runner` has more options.
    """
    with Runner(config, run_dir, loggers=loggers) as runner:
        return runner.run()


class Runner(AbstractContextManager["Runner"]):
    """A run in its directory: set up or resumed by the constructor, trained by `run`, released by `close`.

    Args:
        config: All settings; to resume, those of the run in the directory.
        run_dir: Directory of the run, locked until `close`.
        loggers: Receive every record, as `metrics.jsonl` does.
        fresh: Start again; an earlier run in the directory is renamed.
        accept_changes: Resume although versions, threads or the machine have changed.
        build_trainer: Builds the trainer; `make_trainer` trains in this process.
        stop: Source of stop requests; None for SIGTERM, SIGHUP and Ctrl-C.

    Raises:
        ValueError: Settings, task or directory are invalid, or are not those of the run to resume.
        RunFinishedError: The run in the directory has finished.
        FileExistsError: Another process trains in the directory.

    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir,
        *,
        loggers: Sequence[Logger] = (),
        fresh: bool = False,
        accept_changes: bool = False,
        build_trainer: Callable[[RunConfig], Trainer] = make_trainer,
        stop: StopRequest | None = None,
    ) -> None:
        check_run_dir(config, run_dir, fresh=fresh)
        configure_torch(config.compute)
        self.run_dir = run_dir
        with ExitStack() as cleanup:  # closes what is open if a later part fails
            self.trainer = build_trainer(config)
            cleanup.callback(self.trainer.close)
            self.config = self.trainer.config
            if run_dir.has_run and fresh:
                run_dir.move_aside()
            self.evaluator = Evaluator(self.trainer, run_dir.videos_dir, log=self._log)
            cleanup.callback(self.evaluator.close)
            self.lock = cleanup.enter_context(run_dir.lock())
            self.writer = AsyncWriter(partial(run_dir.check_held, self.lock))
            cleanup.callback(self.writer.close)
            self.segment_log = self.trainer.open_log(run_dir.replay_dir, self.writer)
            self.manifest = manifest.build_manifest(self.trainer)
            """The manifest of this process."""
            self._resume_info = restore_trainer(
                self.trainer, self.segment_log, run_dir.checkpoints_dir, self.manifest, accept_changes=accept_changes
            )
            keep_freed_memory()  # after the replay buffer has its memory
            self._open_records(loggers)
            cleanup.pop_all()
        self._external_stop, self._stop = stop, stop or StopRequest()
        self._watchdog: Watchdog | None = None
        self._thread, self._saved = get_ident(), False

    def _open_records(self, loggers: Sequence[Logger]) -> None:
        """Write manifest and config, and open the records where the checkpoint left them."""
        run_dir, resume_info = self.run_dir, self._resume_info
        if resume_info is not None and not run_dir.manifest_file.exists():
            resume_info = self._resume_info = manifest.rebuild_manifest(run_dir, resume_info)
        run_manifest = manifest.extend_manifest(run_dir, self.manifest, resume_info, self.trainer)
        since_frames = self.trainer.counters.frames if resume_info else None
        services = build_service_loggers(self.config, run_dir, run_id=run_manifest["id"], since_frames=since_frames)
        run_dir.initialize(self.config, run_manifest)
        state = resume_info.runner_state if resume_info else RunnerState()
        self.metrics_logger = JsonLinesLogger(
            run_dir.metrics_file, keep_bytes=state.metrics_bytes, sha256=state.metrics_sha256
        )
        self.loggers = LoggerCollection(self.metrics_logger, *services, *loggers)
        self.checkpoints = CheckpointManager(
            run_dir.checkpoints_dir,
            self.writer,
            self.segment_log,
            self.metrics_logger,
            self.manifest,
            last_good=state.last_good,
        )
        self._start_s = perf_counter() - state.elapsed_s
        self._pending_jobs = list(state.pending_jobs)
        self._checkpoint_state = state
        """The runner's state when the trainer last could be checkpointed."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish writing and release environments, workers and the directory."""
        self.writer.close()  # first: its jobs flush the records
        set_current_request(None)
        self.loggers.close()
        self.evaluator.close()
        with suppress(EnvError):  # everything is written
            self.trainer.close()
        self.lock.close()
        if self._watchdog is not None:
            self._watchdog.close()

    def run(self) -> bool:
        """Train to the end or to a stop request; return whether the run has finished."""
        # Signals are handled from the first record to the last: a run with a start record can be stopped.
        with self._handle_stops() as self._stop:
            set_current_request(self._stop)
            self._log_start()
            try:
                finished = self._run_loop()
            except KeyboardInterrupt:  # the second one: leave without a checkpoint
                self._log("end", state="stopped", reason="at once, without a checkpoint")
                raise
            except Exception as error:
                reason = str(error) if isinstance(error, EnvError) else repr(error)
                self._log("end", state="failed", reason=reason, traceback=keep_end(format_exc(), MAX_STACK_CHARS))
                raise
            self._log("end", state="finished" if finished else "stopped")
            if finished:
                self._finish()
            return finished

    def _handle_stops(self) -> AbstractContextManager[StopRequest]:
        """Return the source of stop requests: the given one, or signals."""
        if self._external_stop is not None:
            return nullcontext(self._external_stop)
        self._thread, deadline_s = get_ident(), self.config.env.step_deadline_s
        self._watchdog = Watchdog(self.trainer.env_calls, self._exit_stuck_process, step_deadline_s=deadline_s)
        return handle_stop_signals(self._watchdog.arm_forced_exit)

    def _exit_stuck_process(self, call: str, seconds: float, number: int | None) -> None:
        """Keep what is complete and end the process, whose main thread is stuck in the environment.

        The state of this moment cannot be captured, so the run resumes from its newest checkpoint.
        """
        reason = f"{self.config.task}: env.{call} has not returned for {seconds:.0f} s"
        if not self._saved:
            newest = self.checkpoints.find_newest()
            reason += ". Records and whole segments are saved, this moment is not: the same command resumes from " + (
                "the start" if newest is None else f"checkpoint {newest}"
            )
        stack = "".join(format_stack(sys._current_frames().get(self._thread)))
        state = "failed" if number is None else "stopped"
        with suppress(Exception):
            self._log("end", state=state, reason=reason, traceback=keep_end(stack, MAX_STACK_CHARS))
        for finish in (self.metrics_logger.flush, self.writer.wait, self.loggers.close):
            with suppress(Exception):
                finish()
        os.write(2, f"{reason}\n".encode())
        os._exit(128 + signal.SIGINT if number == signal.SIGINT else 0 if self._saved else 1)

    def _run_loop(self) -> bool:
        """Advance to the end or a stop and wait for the last checkpoint; return whether it was the end."""
        trainer = self.trainer
        self._run_pending_jobs()
        self._checkpoint_state = self._capture_state()
        while not (trainer.is_done or self._stop):
            self.advance()
        if self._watchdog is not None:
            self._watchdog.wait_if_exiting()
        finished = trainer.is_done and not self._pending_jobs  # a stop request after that is too late
        last = checkpoint.format_checkpoint_name(trainer.checkpoint_frames, stop=not finished)
        if not finished:
            self.save(last)
        self._check_saved(last)
        self._saved = True
        return finished

    def _check_saved(self, last: str) -> None:
        """Raise `SaveFailedError` unless the last checkpoint is on the disk: there is no later attempt."""
        self.writer.wait()
        failures = self._log_failures()
        if not self.checkpoints.is_saved(last):
            raise SaveFailedError(f"checkpoint {last}", failures[-1] if failures else "it is missing")

    def _finish(self) -> None:
        """Mark the run as finished, and remove the replay log, from which nothing resumes."""
        self.run_dir.check_held(self.lock)
        try:
            self.checkpoints.prune()  # a kill may have come between the last checkpoint and this
            self.metrics_logger.flush()  # the record of the end must be on the disk before the manifest says so
            self.run_dir.mark_finished()
        except OSError as error:
            raise SaveFailedError("the end of the run", error) from None
        if not self.config.logging.keep_replay:
            self.segment_log.truncate(keep=())

    @property
    def stop_signal(self) -> int | None:
        """Number of the signal that stopped the run."""
        return self._stop.signal

    def advance(self) -> None:
        """Run one unit of training, log it, and run the jobs that are due after it."""
        trainer, config, before = self.trainer, self.config, self.trainer.counters.frames
        skipped = trainer.counters.skipped_updates
        metrics, episodes, warnings = trainer.advance()
        self.segment_log.flush_full_segments()
        for text in warnings:
            self._warn(text)
        lengths = {"steps": "length", "frames": "length_frames"}  # records count with these names
        for episode in episodes:
            self._log("episode", **{lengths.get(name, name): value for name, value in episode.items()})
        if metrics is not None and trainer.should_log:
            self._log("train", **{"beta": trainer.beta, **to_floats(metrics), **trainer.compute_diagnostics()})
        if trainer.counters.skipped_updates > skipped:
            self._handle_skipped_update()
        self._log_failures()
        for job, every_frames in (
            ("evaluation", config.evaluation.every_frames),
            ("checkpoint", config.logging.checkpoint_every_frames),
        ):
            is_due = before // every_frames < trainer.counters.frames // every_frames or trainer.is_done
            if is_due and job not in self._pending_jobs:
                self._pending_jobs.append(job)
        if trainer.can_checkpoint:
            self._run_pending_jobs()
            self._checkpoint_state = self._capture_state()

    def _run_pending_jobs(self) -> None:
        """Evaluate and save if due. A stop request in between leaves the rest for the resumed run."""
        if self._pending_jobs:
            self.run_dir.check_held(self.lock)
        with suppress(StopRequested):
            if "evaluation" in self._pending_jobs:
                self.loggers.show_activity(f"evaluating {self.config.evaluation.episodes} episodes")
                self.evaluator.evaluate(self._stop)
                self._pending_jobs.remove("evaluation")
            if "checkpoint" in self._pending_jobs:
                self._pending_jobs.remove("checkpoint")
                self.checkpoints.last_good = checkpoint.format_checkpoint_name(self.trainer.counters.frames)
                self.save(self.checkpoints.last_good)

    def save(self, name: str) -> None:
        """Save the state of the last moment at which the trainer could be checkpointed."""
        runner_state = self._capture_state() if self.trainer.can_checkpoint else self._checkpoint_state
        state = {**self.trainer.get_state(), "runner": runner_state.to_plain()}
        self.checkpoints.save(name, state, inserted=self.trainer.num_inserted)

    def _capture_state(self) -> RunnerState:
        return RunnerState(
            elapsed_s=perf_counter() - self._start_s,
            metrics_bytes=self.metrics_logger.size,
            metrics_sha256=self.metrics_logger.sha256,
            pending_jobs=tuple(self._pending_jobs),
            last_good=self.checkpoints.last_good,
        )

    def _log_failures(self) -> list[OSError]:
        failures = self.writer.pop_failures()
        for error in failures:
            self._warn(f"not saved, will be retried: {error}")
        return failures

    def _handle_skipped_update(self) -> None:
        """Log a skipped update; after three in a row roll the agent back to the last good checkpoint."""
        counters = self.trainer.counters
        text = f"update skipped: a loss or gradient was not finite ({counters.skipped_updates} so far)"
        if counters.skipped_in_a_row >= SKIPS_BEFORE_ROLLBACK:
            if counters.rolled_back_at == counters.updates:
                raise DivergedError(
                    f"training diverged: {counters.skipped_in_a_row} updates in a row were not finite, also from the "
                    f"agent of {self.checkpoints.last_good}. The same command would repeat them: lower the "
                    "learning rate or set compute.precision=float32, with --fresh or in another directory with --out"
                )
            directory, last_good = self.checkpoints.load_last_good()
            self.trainer.rollback(last_good.state["agent"])
            text += f"; back to the agent of {directory.name}"
        self._warn(text)

    def _log_start(self) -> None:
        config, resume_info = self.config, self._resume_info
        summary = {"task": config.task, "method": config.method, "seed": config.seed, "total": config.schedule.frames}
        if resume_info is None:
            self._log("start", **summary)
            if not config.is_on_policy and config.schedule.frames < config.schedule.seed_frames:
                self._warn(
                    f"the run ends without an update: expected schedule.frames of at least schedule.seed_frames="
                    f"{config.schedule.seed_frames}, got {config.schedule.frames}. Train longer, or lower it"
                )
            return
        self._log("resume", **summary, checkpoint=resume_info.checkpoint_dir.name, resume_mode=resume_info.resume_mode)
        damage = self.metrics_logger.damage
        for text in (*resume_info.rejected, *resume_info.changes, *([damage] if damage else [])):
            self._warn(text)

    def _warn(self, text: str) -> None:
        self._log("warning", text=text)

    def _log(self, kind: RecordKind, **figures: Any) -> None:
        seconds = round(perf_counter() - self._start_s, 3)
        self.loggers.record({"kind": kind, **self.trainer.counters.to_record(), "seconds": seconds, **figures})

"""One run with the processes that its settings ask for: this one, or actors and learners on Ray."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial

from manyview.report.tail import stream_records
from manyview.training import RunConfig, RunDir
from manyview.training.loggers import Logger
from manyview.training.resume import check_run
from manyview.training.runner import Runner, make_trainer
from manyview.training.signals import exit_on_sigterm
from manyview.training.trainer import Trainer


class TrainingSession(AbstractContextManager["TrainingSession"]):
    """A run that is set up or resumed by the constructor, trained by `run` and released by `close`.

    Args:
        config: All settings; to resume, those of the run in the directory.
        run_dir: Directory of the run.
        loggers: Receive every record.
        address: Address of a Ray cluster, for `scale.actors`; None starts one on this machine.
        fresh: Start again; an earlier run in the directory is renamed.
        accept_changes: Resume although versions, threads or the machine have changed.

    Raises:
        ValueError: Settings, task or directory are invalid, or are not those of the run to resume.
        RunFinishedError: The run in the directory has finished.

    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir,
        *,
        loggers: Sequence[Logger] = (),
        address: str | None = None,
        fresh: bool = False,
        accept_changes: bool = False,
    ) -> None:
        self.run_dir = run_dir
        self.stop_signal: int | None = None
        """Signal that stopped `run`; None if it ended otherwise."""
        check_address(config, address)
        self._runner: Runner | None = None
        with ExitStack() as cleanup:
            cleanup.enter_context(exit_on_sigterm())
            if config.scale.learners > 1:
                check_run(config, run_dir, fresh=fresh)
                self._connect(cleanup, config, address)
                if run_dir.has_run and fresh:
                    run_dir.move_aside()
                _check_lock(run_dir)
                self._train_distributed = partial(
                    _train_distributed, config, run_dir, loggers, accept_changes=accept_changes
                )
            else:
                self._runner = Runner(
                    config,
                    run_dir,
                    loggers=loggers,
                    fresh=fresh,
                    accept_changes=accept_changes,
                    build_trainer=self._choose_trainer(cleanup, config, address),
                )
                cleanup.callback(self._runner.close)
            self._cleanup = cleanup.pop_all()

    def run(self) -> bool:
        """Train to the end or to a stop; return whether the run has finished."""
        if self._runner is None:
            self.stop_signal = self._train_distributed()
            return self.run_dir.is_finished
        finished = self._runner.run()
        self.stop_signal = self._runner.stop_signal
        return finished

    def close(self) -> None:
        """Finish writing, and release environments, the directory and Ray."""
        self._cleanup.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _choose_trainer(
        self, cleanup: ExitStack, config: RunConfig, address: str | None
    ) -> Callable[[RunConfig], Trainer]:
        return partial(self._build_actor_trainer, cleanup, address) if config.scale.actors else make_trainer

    def _build_actor_trainer(self, cleanup: ExitStack, address: str | None, config: RunConfig) -> Trainer:
        self._connect(cleanup, config, address)
        from manyview.scale.trainer import ActorLearnerTrainer

        return ActorLearnerTrainer(config)

    def _connect(self, cleanup: ExitStack, config: RunConfig, address: str | None) -> None:
        from manyview.scale.cluster import check_resources, connect, count_cpus, count_gpus

        cleanup.enter_context(connect(address, cpus=count_cpus(config, spares=1)))
        cleanup.enter_context(exit_on_sigterm())  # Ray replaces the handler
        check_resources("the run", cpus=count_cpus(config), gpus=count_gpus(config))


def check_address(config: RunConfig, address: str | None) -> None:
    """Raise `ValueError` for a cluster that the run would not use."""
    if address is not None and not config.scale.actors:
        raise ValueError(f"--address needs actors: expected --actors of at least 1, got none for cluster {address}")


def _check_lock(run_dir: RunDir) -> None:
    """Raise `FileExistsError` if another process trains in the directory; create it otherwise."""
    from manyview.scale.shared_fs import retry_while_locked

    retry_while_locked(run_dir.lock).close()


def _train_distributed(
    config: RunConfig, run_dir: RunDir, loggers: Sequence[Logger], *, accept_changes: bool
) -> int | None:
    """Train with several learners, and pass on the records that they write to the run directory."""
    from manyview.scale.learners import train_distributed

    with ExitStack() as streams:
        for logger in loggers:
            streams.enter_context(stream_records(run_dir.metrics_file, logger))
        warn = partial(print, file=sys.stderr, flush=True)
        return train_distributed(config, run_dir, accept_changes=accept_changes, warn=warn)

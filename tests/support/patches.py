"""Patches of a process, applied before it runs the command `manyview`."""

import os
import resource
import signal
from time import sleep
from typing import Any

from manyview.training import RunConfig, signals
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.runner import Runner

MAX_FILE_BYTES = 8_000
"""Enough for metrics and manifests, too small for a checkpoint."""
HOLD_AT_FRAMES = 100
"""After the evaluation at 60 of 120 frames, so that the metrics file has records of the run."""


def shorten_stop_timeouts() -> None:
    """Shorten the timeouts after a stop request, for fast tests of hanging calls."""
    signals.STOP_TIMEOUT_S, signals.FORCED_EXIT_S = 0.5, 1.5


def ignore_sighup() -> None:
    """Ignore SIGHUP, as `nohup` does before it runs a command."""
    shorten_timeouts_and_hold()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def limit_file_size() -> None:
    """Limit the size of written files to `MAX_FILE_BYTES`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, resource.RLIM_INFINITY))


def send_sigterm_before_first_step() -> None:
    """Send SIGTERM before the first step."""
    init = OffPolicyTrainer.__init__

    def init_after_sigterm(self: OffPolicyTrainer, config: RunConfig) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        init(self, config)

    OffPolicyTrainer.__init__ = init_after_sigterm  # type: ignore[method-assign]


def send_sigterm_after_first_record() -> None:
    """Send SIGTERM after the record `start` is written."""
    log = Runner._log

    def log_and_stop(self: Runner, kind: Any, **figures: Any) -> None:
        log(self, kind, **figures)
        if kind == "start":
            os.kill(os.getpid(), signal.SIGTERM)

    Runner._log = log_and_stop  # type: ignore[method-assign]


def hold_until_stop() -> None:
    """Pause the run at `HOLD_AT_FRAMES` until a stop request.

    It cannot finish before the signal arrives.
    """
    advance = Runner.advance

    def advance_and_hold(self: Runner) -> None:
        advance(self)
        while self.trainer.counters.frames == HOLD_AT_FRAMES and not self._stop:
            sleep(0.01)

    Runner.advance = advance_and_hold  # type: ignore[method-assign]


def shorten_timeouts_and_hold() -> None:
    """Apply `shorten_stop_timeouts` and `hold_until_stop`."""
    shorten_stop_timeouts()
    hold_until_stop()


def send_sigint_after_last_step() -> None:
    """Send SIGINT after the last step, while the checkpoint is written."""
    check_saved = Runner._check_saved

    def interrupt_and_check(self: Runner, last: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        check_saved(self, last)

    Runner._check_saved = interrupt_and_check  # type: ignore[method-assign]

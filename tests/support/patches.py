"""What is done to a process before it runs the command."""

import os
import resource
import signal
from time import sleep
from typing import Any

from manyview.training import RunConfig, signals
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.runner import Runner

SMALL_BYTES = 8_000
"""Enough for records and manifests, too little for a checkpoint."""
HELD_AT_FRAMES = 100
"""Of 120, and after the evaluation at 60, so that there is a record of being under way."""


def impatient() -> None:
    """A call that does not return is given up soon, so that tests of it are quick."""
    signals.STOP_TIMEOUT_S, signals.FORCED_EXIT_S = 0.5, 1.5


def ignores_hangups() -> None:
    """What `nohup` does before it runs a command."""
    impatient_and_held()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def small_files_only() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_BYTES, resource.RLIM_INFINITY))


def sigterm_while_it_begins() -> None:
    """Somebody changes their mind before the first step."""
    build = OffPolicyTrainer.__init__

    def asked_to_stop(self: OffPolicyTrainer, config: RunConfig) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        build(self, config)

    OffPolicyTrainer.__init__ = asked_to_stop  # type: ignore[method-assign]


def sigterm_at_its_first_record() -> None:
    """Somebody reads that the run has begun, and stops it."""
    tell = Runner._log

    def asked_to_stop(self: Runner, kind: Any, **figures: Any) -> None:
        tell(self, kind, **figures)
        if kind == "start":
            os.kill(os.getpid(), signal.SIGTERM)

    Runner._log = asked_to_stop  # type: ignore[method-assign]


def held_until_a_stop() -> None:
    """So that it cannot be over before it is stopped, however late the signal comes."""
    advance = Runner.advance

    def held(self: Runner) -> None:
        advance(self)
        while self.trainer.counters.frames == HELD_AT_FRAMES and not self._stop:
            sleep(0.01)

    Runner.advance = held  # type: ignore[method-assign]


def impatient_and_held() -> None:
    impatient()
    held_until_a_stop()


def control_c_when_all_is_done() -> None:
    """Too late: the last step has been made, only its checkpoint is still being written."""
    expect = Runner._check_saved

    def interrupted(self: Runner, last: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        expect(self, last)

    Runner._check_saved = interrupted  # type: ignore[method-assign]

"""A sweep on Ray Tune. A trial is an ordinary run in its ordinary folder, so what is done once is never done again."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from traceback import print_exc
from typing import Any, Protocol

from manyview.data.durable import remove
from manyview.scale.engine import engine_part, ray
from manyview.scale.sweep import Planned, Sweep, log_of
from manyview.train import RunFolder
from manyview.train.opening import FinishedError, run

LOCK_PATIENCE_S = 30.0
"""A killed sweep's trials may live for a moment after it; nobody else trains in their folders."""


class Watcher(Protocol):
    """Is told what becomes of runs."""

    def begun(self, planned: Planned) -> None:
        """A run begins, or goes on."""

    def ended(self, planned: Planned) -> None:
        """It has finished."""

    def failed(self, planned: Planned, reason: str, *, attempts: int, given_up: bool) -> None:
        """It crashed; it is tried again unless it is given up."""

    def tick(self) -> None:
        """Some time has passed."""


def run_sweep(sweep: Sweep, planned: Sequence[Planned], watcher: Watcher) -> bool:
    """Train every run that has not finished, as many at once as the cluster holds; whether all have."""
    tune = engine_part("tune")

    left = [one for one in planned if not RunFolder(one.folder).finished]
    if not left:
        return True
    _check_resources(sweep)
    beside = Path(sweep.out).absolute() / f".tune-{token_hex(4)}"  # where all machines see it
    tuner = tune.Tuner(
        tune.with_resources(trial_of(left), {"cpu": sweep.cpus, "gpu": sweep.gpus}),
        param_space={"number": tune.grid_search(list(range(len(left))))},
        run_config=tune.RunConfig(
            storage_path=str(beside),
            failure_config=tune.FailureConfig(max_failures=sweep.retries),
            callbacks=[_callback(left, watcher)],
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    finally:
        remove(beside)  # runs have all that is needed again
    return all(RunFolder(one.folder).finished for one in planned)


def _check_resources(sweep: Sweep) -> None:
    """Ray would wait for ever for what is not there."""
    there = ray.cluster_resources()
    for name, wanted in (("CPU", sweep.cpus), ("GPU", sweep.gpus)):
        if wanted > there.get(name, 0):
            raise ValueError(f"a run wants {wanted:g} {name}s, and the cluster has {there.get(name, 0):g}")


def trial_of(planned: Sequence[Planned]) -> Callable[[Mapping[str, Any]], None]:
    """What Tune calls with the number of a run, in a process of its own."""
    absolute = [Planned(one.config, one.folder.absolute()) for one in planned]

    def trial(choice: Mapping[str, Any]) -> None:
        train(absolute[choice["number"]])

    return trial


def train(planned: Planned) -> None:
    """A run to its end, with what it prints in its log."""
    log_of(planned).parent.mkdir(parents=True, exist_ok=True)
    with log_of(planned).open("a") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            _train(planned)
        except BaseException:
            print_exc()
            raise


def _train(planned: Planned) -> None:
    patience_ends_s = monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            run(planned.config, RunFolder(planned.folder))
        except FinishedError:
            return
        except FileExistsError:
            if monotonic() > patience_ends_s:
                raise
            sleep(1.0)
        else:
            return


def _callback(planned: Sequence[Planned], watcher: Watcher) -> Any:
    class Told(engine_part("tune").Callback):  # type: ignore[misc]
        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            watcher.begun(planned[trial.config["number"]])

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            watcher.ended(planned[trial.config["number"]])

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            self._failed(trial, given_up=False)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            self._failed(trial, given_up=True)

        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:  # noqa: ARG002
            watcher.tick()

        def _failed(self, trial: Any, *, given_up: bool) -> None:
            one = planned[trial.config["number"]]
            watcher.failed(one, _why(trial), attempts=trial.num_failures, given_up=given_up)

    return Told()


def _why(trial: Any) -> str:
    """Tune keeps the error of a trial in a file: the last line of a traceback, or that its process is gone."""
    found = Path(trial.error_file or "")
    lines = found.read_text(encoding="utf-8", errors="replace").splitlines() if found.is_file() else []
    errors = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t"))]
    died = [line for line in errors if "actor died" in line.lower()]
    return "its process died" if died else errors[-1] if errors else "it ended without a word"

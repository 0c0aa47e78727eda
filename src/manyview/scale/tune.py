"""A sweep on Ray Tune. A trial is an ordinary run in its ordinary folder, so what is done once is never done again."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from traceback import print_exc
from typing import Any, Protocol

from manyview.data.durable import remove
from manyview.envs.optional import optional
from manyview.scale.cluster import check_resources
from manyview.scale.engine import engine_part
from manyview.scale.patience import when_free
from manyview.scale.search import Range, Search, Values, folder_of
from manyview.scale.shared import go_to, look_for, seen_by_all
from manyview.scale.sweep import Planned, Sweep, log_of, return_of
from manyview.train import RunFolder
from manyview.train.opening import FinishedError, run
from manyview.utils.files import open_own

ASKED_AGAIN = 100
"""How often Optuna may choose what was chosen before, until all is taken to be tried."""


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


def run_sweep(sweep: Sweep, planned: Sequence[Planned], watcher: Watcher, *, accept_changes: bool = False) -> bool:
    """Train every run that has not finished, as many at once as the cluster holds; whether all have."""
    left = [one for one in planned if not RunFolder(one.folder).finished]
    if not left:
        return True
    numbers = engine_part("tune").grid_search(list(range(len(left))))
    trial = trial_of(left, accept_changes=accept_changes)
    _fit(sweep, trial, lambda choice: left[choice["number"]], watcher, param_space={"number": numbers})
    return all(RunFolder(one.folder).finished for one in planned)


def run_search(sweep: Sweep, search: Search, watcher: Watcher, *, accept_changes: bool = False) -> bool:
    """Choose values and train with them, until so many choices are tried; whether none was given up.

    What was tried before is known by its folders: what has finished guides the choice, and what has not, for whatever
    reason, goes on first.
    """
    tried = sweep.tried()
    returns = {folder_of(values): return_of(sweep.trial(values)) for values in tried}
    waiting = [values for values in tried if returns[folder_of(values)] is None]
    left = search.trials - len(tried) + len(waiting)
    if left <= 0:
        return True
    chooser = choosing(search, tried, returns, waiting)
    return _fit(
        sweep,
        searching(sweep, search, accept_changes=accept_changes),
        lambda choice: _under_way(sweep.trial(search.rounded(choice))),
        watcher,
        tune_config=engine_part("tune").TuneConfig(metric="return", mode="max", search_alg=chooser, num_samples=left),
    )


def choosing(
    search: Search, tried: Sequence[Values], returns: Mapping[str, float | None], waiting: Sequence[Values]
) -> Any:
    """Optuna as Tune asks for it. Nothing is chosen twice, and when nothing is left to choose it says so."""
    optuna = optional("optuna", extra="scale")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions, searcher = _distributions(search), engine_part("tune.search").Searcher
    # Whoever goes on must not begin with what was chosen first.
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=len(tried)))
    for values in tried:
        found = returns.get(folder_of(values))
        if found is not None:
            study.add_trial(optuna.create_trial(params=dict(values), distributions=distributions, value=found))
    for values in waiting:
        study.enqueue_trial(dict(values))

    class Choosing(searcher):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__(metric="return", mode="max")
            self._known = {folder_of(values) for values in tried if values not in waiting}
            self._asked: dict[str, Any] = {}

        def suggest(self, trial_id: str) -> dict[str, Any] | str:
            for _ in range(ASKED_AGAIN):
                trial = study.ask(distributions)
                values = search.rounded(trial.params)
                if folder_of(values) not in self._known:
                    self._known.add(folder_of(values))
                    self._asked[trial_id] = trial
                    return values
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return str(searcher.FINISHED)

        def on_trial_complete(
            self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
        ) -> None:
            found = None if error or result is None else result.get("return")
            fail = optuna.trial.TrialState.FAIL
            study.tell(self._asked.pop(trial_id), found, state=fail if found is None else None)

        def save(self, checkpoint_path: str) -> None:
            """Nothing: the folders have it."""

        def restore(self, checkpoint_path: str) -> None:
            """Nothing."""

    return Choosing()


def _under_way(runs: Sequence[Planned]) -> Planned:
    """That of a trial which trains now, or the last."""
    return next((one for one in runs if not RunFolder(one.folder).finished), runs[-1])


def _fit(
    sweep: Sweep,
    trial: Callable[[Mapping[str, Any]], None],
    run_of: Callable[[Mapping[str, Any]], Planned],
    watcher: Watcher,
    **how: Any,
) -> bool:
    """Whether no trial was given up."""
    tune, here = engine_part("tune"), Path.cwd()
    taken = {"cpu": sweep.cpus, "gpu": sweep.gpus, "memory": sweep.memory_gb * 1e9}
    check_resources("a run", cpus=sweep.cpus, gpus=sweep.gpus, memory_gb=sweep.memory_gb)
    beside = Path(sweep.out).absolute() / f".tune-{token_hex(4)}"  # where all machines see it
    with seen_by_all(Path(sweep.out).absolute()) as sign:

        def trial_here(choice: Mapping[str, Any]) -> None:
            look_for(sign)
            go_to(here)
            trial(choice)

        tuner = tune.Tuner(
            tune.with_resources(trial_here, taken),
            run_config=tune.RunConfig(
                storage_path=str(beside),
                failure_config=tune.FailureConfig(max_failures=sweep.retries),
                callbacks=[_callback(run_of, watcher)],
                verbose=0,
            ),
            **how,
        )
        try:
            return not tuner.fit().num_errors
        finally:
            remove(beside)  # runs have all that is needed again


def _distributions(search: Search) -> dict[str, Any]:
    optuna = optional("optuna", extra="scale").distributions
    kinds = {True: optuna.IntDistribution, False: optuna.FloatDistribution}
    return {
        name: kinds[field.whole](field.low, field.high, log=field.log)
        if isinstance(field, Range)
        else optuna.CategoricalDistribution(field)
        for name, field in search.fields.items()
    }


def searching(sweep: Sweep, search: Search, *, accept_changes: bool) -> Callable[[Values], None]:
    """What Tune calls with the values that were chosen."""
    absolute = replace(sweep, out=str(Path(sweep.out).absolute()))

    def trial(choice: Values) -> None:
        runs = absolute.trial(search.rounded(choice))
        for one in runs:
            train(one, accept_changes=accept_changes)
        found = return_of(runs)
        if found is None:
            raise RuntimeError("no return to choose by: a run of this trial has not finished, or its last is no number")
        engine_part("tune").report({"return": found})

    return trial


def trial_of(planned: Sequence[Planned], *, accept_changes: bool) -> Callable[[Mapping[str, Any]], None]:
    """What Tune calls with the number of a run, in a process of its own."""
    absolute = [Planned(one.config, one.folder.absolute()) for one in planned]

    def trial(choice: Mapping[str, Any]) -> None:
        train(absolute[choice["number"]], accept_changes=accept_changes)

    return trial


def train(planned: Planned, *, accept_changes: bool) -> None:
    """A run to its end, with what it prints in its log."""
    log_of(planned).parent.mkdir(parents=True, exist_ok=True)
    with open(log_of(planned), "a", opener=open_own) as log, redirect_stdout(log), redirect_stderr(log):
        try:
            _train(planned, accept_changes=accept_changes)
        except BaseException:
            print_exc()
            raise


def _train(planned: Planned, *, accept_changes: bool) -> None:
    folder = RunFolder(planned.folder)
    if folder.taken:
        when_free(folder.hold).close()  # that a trial which was killed is really gone
    with suppress(FinishedError):
        run(planned.config, folder, accept_changes=accept_changes)


def _callback(run_of: Callable[[Mapping[str, Any]], Planned], watcher: Watcher) -> Any:
    # Of this kind, or Tune would put one of its own beside it that prints a line for every trial.
    class Told(engine_part("tune.progress_reporter").TrialProgressCallback):  # type: ignore[misc]
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            """Nothing: a run writes its own records."""

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            watcher.begun(run_of(trial.config))

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            watcher.ended(run_of(trial.config))

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            self._failed(trial, given_up=False)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            self._failed(trial, given_up=True)

        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:  # noqa: ARG002
            watcher.tick()

        def _failed(self, trial: Any, *, given_up: bool) -> None:
            watcher.failed(run_of(trial.config), _why(trial), attempts=trial.num_failures, given_up=given_up)

    return Told()


def _why(trial: Any) -> str:
    """Tune keeps the error of a trial in a file: the last line of a traceback, or that its process is gone."""
    found = Path(trial.error_file or "")
    lines = found.read_text(encoding="utf-8", errors="replace").splitlines() if found.is_file() else []
    errors = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t"))]
    died = [line for line in errors if "actor died" in line.lower()]
    return "its process died" if died else errors[-1] if errors else "it ended without a word"

"""Sweeps on Ray Tune. A trial is a normal run in its normal run directory, so that finished work is never repeated."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from traceback import print_exc
from typing import Any, Protocol

from manyview.scale.cluster import check_resources
from manyview.scale.ray_runtime import import_ray_module
from manyview.scale.search import Range, Search, Values, format_directory_name
from manyview.scale.shared_fs import check_marker, create_marker, enter_directory, retry_while_locked
from manyview.scale.sweep import PlannedRun, Sweep, compute_mean_return, get_log_path
from manyview.training import RunDir
from manyview.training.resume import RunFinishedError
from manyview.training.runner import Runner
from manyview.utils.atomic_io import remove
from manyview.utils.files import open_no_follow
from manyview.utils.optional_imports import import_optional

MAX_DUPLICATE_SUGGESTIONS = 100
"""Repeated suggestions of Optuna in a row after which all values count as tried."""


class SweepCallback(Protocol):
    """Receiver of the events of a sweep."""

    def on_start(self, planned: PlannedRun) -> None:
        """Handle the start or resume of a run."""

    def on_finish(self, planned: PlannedRun) -> None:
        """Handle the end of a finished run."""

    def on_failure(self, planned: PlannedRun, reason: str, *, attempts: int, given_up: bool) -> None:
        """Handle the crash of a run, which is resumed unless it is given up."""

    def on_tick(self) -> None:
        """Handle the passing of time, for periodic output."""


def run_sweep(
    sweep: Sweep, runs: Sequence[PlannedRun], callback: SweepCallback, *, accept_changes: bool = False
) -> bool:
    """Train all unfinished runs, in parallel as far as the cluster allows; return whether all have finished."""
    remaining = [planned for planned in runs if not RunDir(planned.run_dir).is_finished]
    if not remaining:
        return True
    indices = import_ray_module("tune").grid_search(list(range(len(remaining))))
    trial = make_run_trial(remaining, accept_changes=accept_changes)
    _fit(sweep, trial, lambda choice: remaining[choice["number"]], callback, param_space={"number": indices})
    return all(RunDir(planned.run_dir).is_finished for planned in runs)


def run_search(sweep: Sweep, search: Search, callback: SweepCallback, *, accept_changes: bool = False) -> bool:
    """Train with suggested values until `search.trials` trials are done; return whether no trial was given up.

    Earlier trials are found by their directories: finished ones inform the suggestions, unfinished ones are resumed
    first.
    """
    tried = sweep.find_tried()
    returns = {format_directory_name(values): compute_mean_return(sweep.plan_trial(values)) for values in tried}
    waiting = [values for values in tried if returns[format_directory_name(values)] is None]
    num_remaining = search.trials - len(tried) + len(waiting)
    if num_remaining <= 0:
        return True
    searcher = make_optuna_searcher(search, tried, returns, waiting)
    return _fit(
        sweep,
        make_search_trial(sweep, search, accept_changes=accept_changes),
        lambda choice: _find_current_run(sweep.plan_trial(search.round_values(choice))),
        callback,
        tune_config=import_ray_module("tune").TuneConfig(
            metric="return", mode="max", search_alg=searcher, num_samples=num_remaining
        ),
    )


def make_optuna_searcher(
    search: Search, tried: Sequence[Values], returns: Mapping[str, float | None], waiting: Sequence[Values]
) -> Any:
    """Return a Tune searcher that suggests values by Optuna, never twice, until none are left.

    `returns` holds the mean return of `tried` trials by directory name; those in `waiting` are suggested first.
    """
    optuna = import_optional("optuna", extra="scale")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions, base = _build_distributions(search), import_ray_module("tune.search").Searcher
    # The seed depends on the progress: a resumed search must not repeat its first suggestions.
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=len(tried)))
    for values in tried:
        value = returns.get(format_directory_name(values))
        if value is not None:
            study.add_trial(optuna.create_trial(params=dict(values), distributions=distributions, value=value))
    for values in waiting:
        study.enqueue_trial(dict(values))

    class OptunaSearcher(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__(metric="return", mode="max")
            self._known = {format_directory_name(values) for values in tried if values not in waiting}
            self._pending: dict[str, Any] = {}

        def suggest(self, trial_id: str) -> dict[str, Any] | str:
            for _ in range(MAX_DUPLICATE_SUGGESTIONS):
                trial = study.ask(distributions)
                values = search.round_values(trial.params)
                if format_directory_name(values) not in self._known:
                    self._known.add(format_directory_name(values))
                    self._pending[trial_id] = trial
                    return values
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return str(base.FINISHED)

        def on_trial_complete(
            self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
        ) -> None:
            mean_return = None if error or result is None else result.get("return")
            fail = optuna.trial.TrialState.FAIL
            study.tell(self._pending.pop(trial_id), mean_return, state=fail if mean_return is None else None)

        def save(self, checkpoint_path: str) -> None:
            """Do nothing: the run directories hold the state."""

        def restore(self, checkpoint_path: str) -> None:
            """Do nothing: the run directories hold the state."""

    return OptunaSearcher()


def _find_current_run(runs: Sequence[PlannedRun]) -> PlannedRun:
    """Return the first unfinished run of a trial, or its last run."""
    return next((planned for planned in runs if not RunDir(planned.run_dir).is_finished), runs[-1])


def _fit(
    sweep: Sweep,
    trial: Callable[[Mapping[str, Any]], None],
    get_run: Callable[[Mapping[str, Any]], PlannedRun],
    callback: SweepCallback,
    **tuner_options: Any,
) -> bool:
    """Run the trials on Tune; return whether none was given up."""
    tune, working_dir = import_ray_module("tune"), Path.cwd()
    resources = {"cpu": sweep.cpus, "gpu": sweep.gpus, "memory": sweep.memory_gb * 1e9}
    check_resources("a run", cpus=sweep.cpus, gpus=sweep.gpus, memory_gb=sweep.memory_gb)
    storage_dir = Path(sweep.out).absolute() / f".tune-{token_hex(4)}"  # on the shared file system
    with create_marker(Path(sweep.out).absolute()) as marker:

        def run_trial(choice: Mapping[str, Any]) -> None:
            check_marker(marker)
            enter_directory(working_dir)
            trial(choice)

        tuner = tune.Tuner(
            tune.with_resources(run_trial, resources),
            run_config=tune.RunConfig(
                storage_path=str(storage_dir),
                failure_config=tune.FailureConfig(max_failures=sweep.retries),
                callbacks=[_make_callback(get_run, callback)],
                verbose=0,
            ),
            **tuner_options,
        )
        try:
            return not tuner.fit().num_errors
        finally:
            remove(storage_dir)  # the run directories have everything that a resume needs


def _build_distributions(search: Search) -> dict[str, Any]:
    optuna = import_optional("optuna", extra="scale").distributions
    kinds = {True: optuna.IntDistribution, False: optuna.FloatDistribution}
    return {
        name: kinds[field.is_integer](field.low, field.high, log=field.log)
        if isinstance(field, Range)
        else optuna.CategoricalDistribution(field)
        for name, field in search.fields.items()
    }


def make_search_trial(sweep: Sweep, search: Search, *, accept_changes: bool) -> Callable[[Values], None]:
    """Return the function that Tune calls with suggested values: it trains all runs of a trial."""
    absolute = replace(sweep, out=str(Path(sweep.out).absolute()))

    def trial(choice: Values) -> None:
        runs = absolute.plan_trial(search.round_values(choice))
        for planned in runs:
            train_run(planned, accept_changes=accept_changes)
        mean_return = compute_mean_return(runs)
        if mean_return is None:
            raise RuntimeError(
                "the trial has no mean return: expected finished runs whose last evaluation return is a number"
            )
        import_ray_module("tune").report({"return": mean_return})

    return trial


def make_run_trial(runs: Sequence[PlannedRun], *, accept_changes: bool) -> Callable[[Mapping[str, Any]], None]:
    """Return the function that Tune calls with the number of a run, in a separate process."""
    absolute = [planned._replace(run_dir=planned.run_dir.absolute()) for planned in runs]

    def trial(choice: Mapping[str, Any]) -> None:
        train_run(absolute[choice["number"]], accept_changes=accept_changes)

    return trial


def train_run(run: PlannedRun, *, accept_changes: bool) -> None:
    """Train or resume a run to its end, with its output in its log file."""
    get_log_path(run).parent.mkdir(parents=True, exist_ok=True)
    with open(get_log_path(run), "a", opener=open_no_follow) as log, redirect_stdout(log), redirect_stderr(log):
        try:
            _train_or_resume(run, accept_changes=accept_changes)
        except BaseException:
            print_exc()
            raise


def _train_or_resume(planned_run: PlannedRun, *, accept_changes: bool) -> None:
    run_dir = RunDir(planned_run.run_dir)
    if run_dir.has_run:
        retry_while_locked(run_dir.lock).close()  # waits until a killed trial is gone
    with suppress(RunFinishedError), Runner(planned_run.config, run_dir, accept_changes=accept_changes) as runner:
        runner.run()


def _make_callback(get_run: Callable[[Mapping[str, Any]], PlannedRun], callback: SweepCallback) -> Any:
    # Derived from this class, otherwise Tune adds its own, which prints a line per trial.
    class TuneCallback(import_ray_module("tune.progress_reporter").TrialProgressCallback):  # type: ignore[misc]
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            """Do nothing: runs write their own records."""

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            callback.on_start(get_run(trial.config))

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            callback.on_finish(get_run(trial.config))

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            self._report_failure(trial, given_up=False)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            self._report_failure(trial, given_up=True)

        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:  # noqa: ARG002
            callback.on_tick()

        def _report_failure(self, trial: Any, *, given_up: bool) -> None:
            callback.on_failure(
                get_run(trial.config), _format_failure(trial), attempts=trial.num_failures, given_up=given_up
            )

    return TuneCallback()


def _format_failure(trial: Any) -> str:
    """Return the cause of a failure from the error file of a trial: the last line of a traceback, or a dead process."""
    error_file = Path(trial.error_file or "")
    lines = error_file.read_text(encoding="utf-8", errors="replace").splitlines() if error_file.is_file() else []
    errors = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t"))]
    died = [line for line in errors if "actor died" in line.lower()]
    return "its process died" if died else errors[-1] if errors else "it ended without an error message"

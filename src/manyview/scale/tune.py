"""A sweep on Ray Tune. A trial is an ordinary run in its ordinary folder, so what is done once is never done again."""

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
from manyview.train import RunDir
from manyview.train.resume import RunFinishedError
from manyview.train.runner import Runner
from manyview.utils.atomic_io import remove
from manyview.utils.files import open_no_follow
from manyview.utils.optional_imports import import_optional

MAX_DUPLICATE_SUGGESTIONS = 100
"""How often Optuna may choose what was chosen before, until all is taken to be tried."""


class SweepCallback(Protocol):
    """Is told what becomes of runs."""

    def on_start(self, planned: PlannedRun) -> None:
        """A run begins, or goes on."""

    def on_finish(self, planned: PlannedRun) -> None:
        """It has finished."""

    def on_failure(self, planned: PlannedRun, reason: str, *, attempts: int, given_up: bool) -> None:
        """It crashed; it is tried again unless it is given up."""

    def on_tick(self) -> None:
        """Some time has passed."""


def run_sweep(
    sweep: Sweep, runs: Sequence[PlannedRun], callback: SweepCallback, *, accept_changes: bool = False
) -> bool:
    """Train every run that has not finished, as many at once as the cluster holds; whether all have."""
    remaining = [one for one in runs if not RunDir(one.run_dir).is_finished]
    if not remaining:
        return True
    indices = import_ray_module("tune").grid_search(list(range(len(remaining))))
    trial = make_run_trial(remaining, accept_changes=accept_changes)
    _fit(sweep, trial, lambda choice: remaining[choice["number"]], callback, param_space={"number": indices})
    return all(RunDir(one.run_dir).is_finished for one in runs)


def run_search(sweep: Sweep, search: Search, callback: SweepCallback, *, accept_changes: bool = False) -> bool:
    """Choose values and train with them, until so many choices are tried; whether none was given up.

    What was tried before is known by its folders: what has finished guides the choice, and what has not, for whatever
    reason, goes on first.
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
    """Optuna as Tune asks for it. Nothing is chosen twice, and when nothing is left to choose it says so."""
    optuna = import_optional("optuna", extra="scale")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions, base = _build_distributions(search), import_ray_module("tune.search").Searcher
    # Whoever goes on must not begin with what was chosen first.
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
            self._asked: dict[str, Any] = {}

        def suggest(self, trial_id: str) -> dict[str, Any] | str:
            for _ in range(MAX_DUPLICATE_SUGGESTIONS):
                trial = study.ask(distributions)
                values = search.round_values(trial.params)
                if format_directory_name(values) not in self._known:
                    self._known.add(format_directory_name(values))
                    self._asked[trial_id] = trial
                    return values
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return str(base.FINISHED)

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

    return OptunaSearcher()


def _find_current_run(runs: Sequence[PlannedRun]) -> PlannedRun:
    """That of a trial which trains now, or the last."""
    return next((one for one in runs if not RunDir(one.run_dir).is_finished), runs[-1])


def _fit(
    sweep: Sweep,
    trial: Callable[[Mapping[str, Any]], None],
    get_run: Callable[[Mapping[str, Any]], PlannedRun],
    callback: SweepCallback,
    **tuner_options: Any,
) -> bool:
    """Whether no trial was given up."""
    tune, working_dir = import_ray_module("tune"), Path.cwd()
    resources = {"cpu": sweep.cpus, "gpu": sweep.gpus, "memory": sweep.memory_gb * 1e9}
    check_resources("a run", cpus=sweep.cpus, gpus=sweep.gpus, memory_gb=sweep.memory_gb)
    storage_dir = Path(sweep.out).absolute() / f".tune-{token_hex(4)}"  # where all machines see it
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
            remove(storage_dir)  # runs have all that is needed again


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
    """What Tune calls with the values that were chosen."""
    absolute = replace(sweep, out=str(Path(sweep.out).absolute()))

    def trial(choice: Values) -> None:
        runs = absolute.plan_trial(search.round_values(choice))
        for one in runs:
            train_run(one, accept_changes=accept_changes)
        mean_return = compute_mean_return(runs)
        if mean_return is None:
            raise RuntimeError("no return to choose by: a run of this trial has not finished, or its last is no number")
        import_ray_module("tune").report({"return": mean_return})

    return trial


def make_run_trial(runs: Sequence[PlannedRun], *, accept_changes: bool) -> Callable[[Mapping[str, Any]], None]:
    """What Tune calls with the number of a run, in a process of its own."""
    absolute = [PlannedRun(one.config, one.run_dir.absolute()) for one in runs]

    def trial(choice: Mapping[str, Any]) -> None:
        train_run(absolute[choice["number"]], accept_changes=accept_changes)

    return trial


def train_run(run: PlannedRun, *, accept_changes: bool) -> None:
    """A run to its end, with what it prints in its log."""
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
        retry_while_locked(run_dir.lock).close()  # that a trial which was killed is really gone
    with suppress(RunFinishedError), Runner(planned_run.config, run_dir, accept_changes=accept_changes) as runner:
        runner.run()


def _make_callback(get_run: Callable[[Mapping[str, Any]], PlannedRun], callback: SweepCallback) -> Any:
    # Of this kind, or Tune would put one of its own beside it that prints a line for every trial.
    class TuneCallback(import_ray_module("tune.progress_reporter").TrialProgressCallback):  # type: ignore[misc]
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            """Nothing: a run writes its own records."""

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            callback.on_start(get_run(trial.config))

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            callback.on_finish(get_run(trial.config))

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            self._failed(trial, given_up=False)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            self._failed(trial, given_up=True)

        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:  # noqa: ARG002
            callback.on_tick()

        def _failed(self, trial: Any, *, given_up: bool) -> None:
            callback.on_failure(
                get_run(trial.config), _format_failure(trial), attempts=trial.num_failures, given_up=given_up
            )

    return TuneCallback()


def _format_failure(trial: Any) -> str:
    """Tune keeps the error of a trial in a file: the last line of a traceback, or that its process is gone."""
    error_file = Path(trial.error_file or "")
    lines = error_file.read_text(encoding="utf-8", errors="replace").splitlines() if error_file.is_file() else []
    errors = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t"))]
    died = [line for line in errors if "actor died" in line.lower()]
    return "its process died" if died else errors[-1] if errors else "it ended without a word"

"""Training in Python: `manyview.train`, `manyview.resume` and the runs that they return."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyview.config.overrides import nest_overrides
from manyview.config.resolve import resolve_config
from manyview.deploy.policy import load
from manyview.envs import Fault
from manyview.envs.suite import Levels
from manyview.report.curves import Curve, read_curve
from manyview.report.display import make_display
from manyview.report.material import read_material
from manyview.report.page import write_page
from manyview.report.policy_rollout import RunPlayer
from manyview.report.runs import RunSummary, summarize_run
from manyview.runtime.policy import Policy
from manyview.session import TrainingSession
from manyview.training import RunConfig, RunDir
from manyview.training.callbacks import CallbackLogger, RecordCallback
from manyview.training.evaluation import Evaluation
from manyview.training.loggers import Logger
from manyview.training.resume import RunFinishedError, extend_run
from manyview.training.run_dir import default_run_path
from manyview.training.saved_agent import check_trusted_task
from manyview.utils.text import print_line


class Run:
    """A run directory: its settings, state and returns, and the policy that it has trained.

    Args:
        path: Run directory, of a run that is active, stopped or finished.
        own_task: `module:function` of a run on your own environment, to confirm that its code may be executed.

    Raises:
        FileNotFoundError: The directory holds no run.
        ValueError: Its config is invalid.

    """

    def __init__(self, path: str | os.PathLike[str], *, own_task: str | None = None) -> None:
        self.path, self._own_task = Path(path), own_task
        self.config  # noqa: B018 - a directory without a run is refused here

    @property
    def config(self) -> RunConfig:
        """All settings of the run."""
        return RunDir(self.path).read_config()

    @property
    def summary(self) -> RunSummary:
        """State, frames so far and last return."""
        return summarize_run(self.path)

    @property
    def is_finished(self) -> bool:
        """True once the run has trained to its last frame."""
        return RunDir(self.path).is_finished

    def read_curve(self) -> Curve:
        """Read the returns of the evaluations during training: `curve.returns` over the frames `curve.x`."""
        return read_curve(self.path, "frames")

    def evaluate(
        self,
        episodes: int = 10,
        *,
        cameras: Sequence[str] | None = None,
        faults: Sequence[Fault] = (),
        seed: int | None = None,
        levels: Levels | None = None,
    ) -> Evaluation:
        """Play episodes with the newest checkpoint, without exploration noise.

        Args:
            episodes: Number of episodes.
            cameras: Cameras to keep; the others are masked. None keeps all.
            faults: Faults of the cameras.
            seed: Seed of the initial states; None for those of the run's own evaluations.
            levels: Procgen levels, `train` or `test`.

        """
        with RunPlayer(self.path, trusted_task=self._own_task, levels=levels) as player:
            return player.play(episodes=episodes, cameras=cameras, faults=faults, seed=seed).evaluation

    def policy(self, *, checkpoint: str = "last", num_robots: int = 1, device: str = "cpu") -> Policy:
        """Load the trained policy, as `manyview.load` does."""
        return load(self.path, checkpoint=checkpoint, num_robots=num_robots, device=device, own_task=self._own_task)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a report on the run as one HTML page, as `manyview report` does."""
        write_page(Path(path), [read_material(self.path, name=self.path.name)])

    def __repr__(self) -> str:
        summary = self.summary
        frames = "" if summary.frames is None else f" at {summary.frames:,} of {summary.total_frames:,} frames"
        last = "" if summary.last_return is None else f", return {summary.last_return:.1f}"
        return f"Run({str(self.path)!r}: {summary.state}{frames}{last})"


def train(
    task: str | None = None,
    *,
    method: str | None = None,
    agent: str | None = None,
    representation: str | None = None,
    bonus: str | None = None,
    preset: str | None = None,
    seed: int | None = None,
    frames: int | None = None,
    views: Sequence[str] | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | RunConfig | None = None,
    out: str | os.PathLike[str] | None = None,
    on_record: RecordCallback | None = None,
    on_evaluation: RecordCallback | None = None,
    progress: bool = True,
    address: str | None = None,
    fresh: bool = False,
    accept_changes: bool = False,
) -> Run:
    """Train an agent, or resume the run in the directory `out`; a finished run is returned as it is.

    Ctrl-C saves the run before `KeyboardInterrupt`, SIGTERM and SIGHUP save it and end the process. The same call then
    resumes the run bit for bit.

    Example::

        run = manyview.train("toy/hidden_goal_continuous", method="sac+mem", preset="minute", out="runs/first")
        print(run.evaluate(episodes=10).mean_return)
        policy = run.policy()

    Args:
        task: Task, such as `dmc/pendulum_swingup` or `my_robot:make_env`; `manyview tasks` lists them.
        method: Agent, representation and bonus, such as `sac+mem` or `drqv2+pixel+re3`.
        agent: Agent, if not that of `method`.
        representation: Representation, if not that of `method`.
        bonus: Bonus, if not that of `method`.
        preset: Preset, such as `cpu`; None chooses one by task, method and machine.
        seed: Seed of everything random.
        frames: Length of the run in simulator frames.
        views: Views of the agent.
        device: Device of the networks: `auto`, `cpu` or `cuda`.
        settings: Other settings by dotted name, such as `{"replay.batch_size": 512}`.
        config: File with all settings, or a `RunConfig`, instead of a preset.
        out: Run directory; None for `runs/TASK/METHOD/seedN`.
        on_record: Receives every record of `metrics.jsonl`; the run is saved and stops if it returns True.
        on_evaluation: Receives every record of an evaluation, and stops the run in the same way.
        progress: Show the progress in the terminal.
        address: Address of a Ray cluster, for a run with `scale.actors`.
        fresh: Start again; an earlier run in the directory is renamed.
        accept_changes: Resume although versions, threads or the machine have changed.

    Raises:
        ValueError: A setting is invalid, or the directory holds a run with other settings.

    """
    run_config = (
        _check_alone(
            config,
            task=task,
            method=method,
            agent=agent,
            representation=representation,
            bonus=bonus,
            preset=preset,
            seed=seed,
            frames=frames,
            views=views,
            device=device,
            settings=settings,
        )
        if isinstance(config, RunConfig)
        else resolve_config(
            task,
            method=method,
            agent=agent,
            representation=representation,
            bonus=bonus,
            preset=preset,
            seed=seed,
            file=None if config is None else Path(config),
            frames=frames,
            views=views,
            device=device,
            overrides=nest_overrides((settings or {}).items()),
        )
    )
    run_dir = RunDir(Path(out) if out is not None else default_run_path(run_config))
    callbacks = CallbackLogger(on_record, on_evaluation)
    return _train(run_config, run_dir, callbacks, progress, address=address, fresh=fresh, accept_changes=accept_changes)


def resume(
    path: str | os.PathLike[str],
    *,
    frames: int | None = None,
    on_record: RecordCallback | None = None,
    on_evaluation: RecordCallback | None = None,
    progress: bool = True,
    own_task: str | None = None,
    address: str | None = None,
    accept_changes: bool = False,
) -> Run:
    """Train a run on from its newest checkpoint with its own settings; a finished run is returned as it is.

    Args:
        path: Run directory.
        frames: New length of the run, those so far included, as `manyview extend`. None keeps its length.
        own_task: `module:function` of a run on your own environment, to confirm that its code may be executed.
        on_record: As in `train`.
        on_evaluation: As in `train`.
        progress: Show the progress in the terminal.
        address: Address of a Ray cluster, for a run with `scale.actors`.
        accept_changes: Resume although versions, threads or the machine have changed.

    Raises:
        FileNotFoundError: The directory holds no run.
        ValueError: It cannot be resumed or extended.

    """
    run_dir = RunDir(Path(path))
    config = run_dir.read_config()
    check_trusted_task(config.task, own_task)
    if frames is not None and frames != config.schedule.frames:
        config = extend_run(run_dir, frames)
    callbacks = CallbackLogger(on_record, on_evaluation)
    return _train(config, run_dir, callbacks, progress, address=address, fresh=False, accept_changes=accept_changes)


def _train(
    config: RunConfig,
    run_dir: RunDir,
    callbacks: CallbackLogger,
    progress: bool,
    *,
    address: str | None,
    fresh: bool,
    accept_changes: bool,
) -> Run:
    if callbacks.is_needed and config.scale.learners > 1:
        raise ValueError(
            f"callbacks need one learner, which runs in this process: expected scale.learners=1, got "
            f"{config.scale.learners}"
        )
    loggers: list[Logger] = [callbacks, *([make_display(config, run_dir)] if progress else [])]
    try:
        with TrainingSession(
            config, run_dir, loggers=loggers, address=address, fresh=fresh, accept_changes=accept_changes
        ) as session:
            session.run()
    except RunFinishedError as finished:
        if progress:
            print_line(finished)
        return Run(run_dir.path, own_task=config.task)
    if session.stop_signal == signal.SIGINT:
        raise KeyboardInterrupt
    if session.stop_signal is not None:
        raise SystemExit(0)
    if callbacks.error is not None:
        raise callbacks.error
    return Run(run_dir.path, own_task=config.task)


def _check_alone(config: RunConfig, **others: object) -> RunConfig:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ValueError(f"config holds every setting: expected no other arguments, got {', '.join(given)}")
    return config

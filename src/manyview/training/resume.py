"""Resume a run from its newest valid checkpoint and report the rejected ones."""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from manyview.config.overrides import PlainMapping, to_plain
from manyview.config.schema import RunConfig
from manyview.data.segment_format import SegmentError
from manyview.data.segment_log import ReplayLog, SegmentRef
from manyview.training import checkpoint, factory
from manyview.training.checkpoint import Checkpoint, CheckpointError, RunnerState
from manyview.training.compute import resolve_compute
from manyview.training.run_dir import RunDir
from manyview.training.trainer import EngineError, Trainer
from manyview.utils.atomic_io import remove
from manyview.utils.text import sanitize_text

STRICT, FRESH_EPISODE, CHANGED, ASYNC = "strict", "fresh episode", "changed", "async"
RESUME_MODES = {
    STRICT: "as if it had never stopped, bit for bit",
    FRESH_EPISODE: "with a fresh episode, since this environment cannot be restored in mid-episode",
    ASYNC: "with fresh actors; no saved step is lost or repeated, and the replay ratio is kept",
    CHANGED: "on other versions or another machine than before, so not bit for bit",
}
"""Guarantee of each resume mode, as text after "resumed"."""
COMPARED_FIELDS = (
    "python",
    "versions",
    "cpu",
    "device",
    "threads",
    "dtype",
    "numerics",
    "renderer",
    "environment",
    "demonstrations",
)
"""Manifest fields that can change the last bit of a result; a field that an older version lacks counts as changed."""
MACHINE_SETTINGS = ("compute.device", "compute.threads", "compute.precision")
"""Settings that may change with `accept_changes`, since manifest fields record them too."""

IDENTITY_SETTINGS = ("task", "seed", "agent.name", "representation.name", "bonus.name")
"""Settings that are named first where two runs differ."""


class RunFinishedError(RuntimeError):
    """The run in the directory has finished, so there is nothing to resume."""


class MachineChangedError(ValueError):
    """Versions, threads or precision differ from those of the run so far."""


@dataclass(frozen=True)
class ResumeInfo:
    """Checkpoint that a run resumed from, with mode and warnings."""

    checkpoint_dir: Path
    runner_state: RunnerState
    resume_mode: str
    rejected: list[str]
    """Newer checkpoints that could not be used, with the reasons."""
    changes: list[str]
    """Differences between the software and machine of the checkpoint and the current ones."""


def determine_resume_mode(state: PlainMapping) -> str:
    """Return the resume mode of a checkpoint state on an unchanged machine."""
    if "shards" in state:
        return ASYNC
    return STRICT if state["env"] is not None else FRESH_EPISODE


def check_same_settings(before: PlainMapping, now: PlainMapping) -> None:
    """Raise `ValueError` if settings other than `MACHINE_SETTINGS` differ."""
    differences = [change for change in compare_leaves(before, now) if change[0] not in MACHINE_SETTINGS]
    changed_parts = [name.removesuffix("name") for name, _, _ in differences if name.endswith(".name")]
    # Settings of another agent, representation or bonus follow from its name.
    differences = [
        change
        for change in differences
        if change[0].endswith(".name") or not change[0].startswith(tuple(changed_parts))
    ]
    differences.sort(key=lambda change: change[0] not in IDENTITY_SETTINGS)
    if differences:
        listing = "; ".join(f"{name} was {was!r}, now {is_!r}" for name, was, is_ in differences)
        name, was, is_ = differences[0]
        longer = len(differences) == 1 and name == "schedule.frames" and is_ > was
        remedy = "Train on with `manyview extend`" if longer else "Resume with the same settings"
        raise ValueError(
            f"the directory holds a run with other settings: {listing}. {remedy}, or start again with --fresh or in "
            "another directory with --out"
        )


def check_run_dir(config: RunConfig, run_dir: RunDir, *, fresh: bool) -> None:
    """Check that a run with `config` can start or resume in a directory.

    Of a finished run without `logging.keep_replay`, it removes the replay log that a kill at its end has left.

    Raises:
        ValueError: the directory has links, a shared run, or a run with other settings.
        OSError: a file is where the directory should be.
        RunFinishedError: its run has finished.

    """
    run_dir.check_path()
    run_dir.check_no_links()
    if fresh or not run_dir.has_run:
        if config.schedule.initial_run is not None:
            _check_initial_run(Path(config.schedule.initial_run))
        return
    run_dir.check_not_shared()
    now = replace(config, compute=resolve_compute(config.compute))
    check_same_settings(to_plain(run_dir.read_config()), to_plain(now))
    if run_dir.is_finished:
        if not config.logging.keep_replay:
            remove(run_dir.replay_dir)  # the run's own settings, checked above, ask for it
        path, frames = quote(str(run_dir.path)), config.schedule.frames
        raise RunFinishedError(
            f"the run in {run_dir.path} has finished at {frames:,} frames. Train on with `manyview extend {path} "
            f"--frames {2 * frames}`, or start again with `manyview train ... --fresh`"
        )


def extend_run(run_dir: RunDir, frames: int) -> RunConfig:
    """Set the length of a finished or stopped run to `frames` in all, and return its new config; then resume it.

    Raises:
        ValueError: It has that many frames already, its replay buffer is gone, or it is a shared run.
        FileExistsError: Another process trains in the directory.

    """
    run_dir.check_no_links()
    run_dir.check_not_shared()
    config, path = run_dir.read_config(), run_dir.path
    if frames <= config.schedule.frames:
        raise ValueError(
            f"{path} has a length of {config.schedule.frames:,} frames: expected a new total above that, got {frames:,}"
        )
    if run_dir.is_finished and not (config.logging.keep_replay or config.is_on_policy):
        raise ValueError(
            f"{path} has finished and removed its replay buffer: expected logging.keep_replay=true, got false. Start a "
            f"new run from its weights with `manyview train {quote(config.task)} --from {quote(str(path))}`"
        )
    extended = replace(config, schedule=replace(config.schedule, frames=frames))
    with closing(run_dir.lock()):
        manifest = run_dir.read_manifest()
        manifest.pop("finished", None)
        run_dir.write_manifest(manifest)  # first: with the old length, an unfinished run finishes at once
        run_dir.write_config(extended)
    return extended


def check_run(config: RunConfig, run_dir: RunDir, *, fresh: bool) -> None:
    """Check settings, task and directory before other processes are started for a run."""
    check_run_dir(config, run_dir, fresh=fresh)
    env = factory.make_env(config)
    factory.infer_shapes(config, env)
    env.close()


def list_changes(manifest: PlainMapping, now: PlainMapping) -> list[str]:
    """Return the `COMPARED_FIELDS` that differ, as texts with both values."""
    before_all, now_all = ({name: source.get(name) for name in COMPARED_FIELDS} for source in (manifest, now))
    return [f"{name} was {was}, is {is_}" for name, was, is_ in compare_leaves(before_all, now_all)]


def restore_trainer(
    trainer: Trainer,
    segment_log: ReplayLog,
    checkpoints_dir: Path,
    process_manifest: PlainMapping,
    *,
    accept_changes: bool,
) -> ResumeInfo | None:
    """Restore a trainer and its segment log from the newest valid checkpoint; return None without checkpoints.

    Raises:
        CheckpointError: None of the checkpoints is valid.
        MachineChangedError: Versions or machine have changed, and `accept_changes` is false.

    """
    rejected: list[str] = []
    for directory, loaded in checkpoint.iter_checkpoints(checkpoints_dir):
        try:
            if isinstance(loaded, CheckpointError):
                raise loaded
            resumed = _resume_from(
                trainer, segment_log, directory, loaded, process_manifest, accept_changes=accept_changes
            )
            return replace(resumed, rejected=rejected)
        except CheckpointError as error:
            rejected.append(f"checkpoint {directory.name} is not used: {sanitize_text(str(error))}")
    if rejected:
        raise CheckpointError(f"no valid checkpoint is left: {'; '.join(rejected)}. Start again with --fresh")
    if (initial_run := trainer.config.schedule.initial_run) is not None:
        load_initial_agent(trainer, Path(initial_run))
    return None


def load_initial_agent(trainer: Trainer, run_path: Path) -> None:
    """Load the agent of another run's newest checkpoint; ValueError if it does not fit."""
    _check_initial_run(run_path)
    directory, loaded = checkpoint.load_newest_checkpoint(RunDir(run_path).checkpoints_dir)
    try:
        trainer.load_agent(loaded.state["agent"])
    except Exception as error:  # another method, task or version, or an untrusted source wrote it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"schedule.initial_run: {directory} does not fit this run: {sanitize_text(reason)}. Use the views, the "
            f"method and the network sizes in {run_path / 'config.json'}"
        ) from error


def _check_initial_run(run_path: Path) -> None:
    if not RunDir(run_path).has_run:
        raise ValueError(f"schedule.initial_run: {run_path} holds no run: expected config.json in it, got none")


def _resume_from(
    trainer: Trainer,
    segment_log: ReplayLog,
    directory: Path,
    loaded: Checkpoint,
    process_manifest: PlainMapping,
    *,
    accept_changes: bool,
) -> ResumeInfo:
    with convert_load_errors():
        resume_mode = determine_resume_mode(loaded.state)
        accepted = accept_changes or resume_mode == ASYNC  # never bit for bit, so changes do not matter
        changes = list_changes(loaded.manifest, process_manifest)
        _check_changes(changes, accepted=accepted)
        runner_state, segments = _load_checkpoint(trainer, segment_log, directory, loaded)
        view_changes = [f"view {name} renders differently" for name in trainer.changed_views]
        _check_changes(view_changes, accepted=accepted)
        changes += view_changes
    _remove_newer(directory, segment_log, segments)
    warnings = [
        sanitize_text(change) for change in (*changes, *_list_commit_changes(loaded.manifest, process_manifest))
    ]
    return ResumeInfo(
        directory, runner_state, CHANGED if changes and resume_mode != ASYNC else resume_mode, [], warnings
    )


def _check_changes(changes: list[str], *, accepted: bool) -> None:
    if changes and not accepted:
        raise MachineChangedError(
            f"resume would not be bit for bit: {sanitize_text('; '.join(changes))}. Restore the versions and machine "
            "of the run so far, or resume anyway with --accept-changes"
        )


def _list_commit_changes(manifest: PlainMapping, now: PlainMapping) -> list[str]:
    """Return a warning if the commit differs: the change may be in the docs only, or in an algorithm.

    An unknown commit is no change: git may be missing, or too slow on a busy machine.
    """
    before, now_commit = manifest.get("commit"), now.get("commit")
    return [] if before == now_commit or None in (before, now_commit) else [f"commit was {before}, is {now_commit}"]


def parse_segments(manifest: PlainMapping) -> list[SegmentRef]:
    """Return the segments that the manifest of a checkpoint names."""
    return [SegmentRef.from_plain(plain) for plain in manifest["segments"]]


def collect_segments(directories: Iterable[Path]) -> list[SegmentRef]:
    """Return the segments that these checkpoints name; one with an unreadable manifest is moved aside."""
    segments: list[SegmentRef] = []
    for directory in directories:
        try:
            segments += parse_segments(checkpoint.read_checkpoint_manifest(directory))
        except (KeyError, ValueError, TypeError):
            checkpoint.move_checkpoint_aside(directory)
    return segments


def _load_checkpoint(
    trainer: Trainer, segment_log: ReplayLog, directory: Path, loaded: Checkpoint
) -> tuple[RunnerState, list[SegmentRef]]:
    if loaded.manifest.get("format") != checkpoint.FORMAT:
        raise ValueError(
            f"unsupported checkpoint format: expected {checkpoint.FORMAT}, got {loaded.manifest.get('format')!r}. Use "
            "the version of manyview that wrote it"
        )
    runner_state, segments = RunnerState.from_plain(loaded.state["runner"]), parse_segments(loaded.manifest)
    trainer.load_state(loaded.state, lambda: segment_log.load(segments))
    if directory.name.removesuffix(".stop") != checkpoint.format_checkpoint_name(trainer.counters.frames):
        raise ValueError(f"wrong frames: expected those of the name {directory.name}, got {trainer.counters.frames}")
    return runner_state, segments


@contextmanager
def convert_load_errors() -> Iterator[None]:
    """Raise `CheckpointError` for any error of loading: a complete checkpoint may be incompatible or hostile."""
    try:
        yield
    except (CheckpointError, MachineChangedError, EngineError):  # a failed engine does not invalidate a checkpoint
        raise
    except SegmentError as error:
        raise CheckpointError(str(error)) from None
    except Exception as error:
        raise CheckpointError(f"it does not fit this run: {type(error).__name__}: {error}") from error


def _remove_newer(directory: Path, segment_log: ReplayLog, segments: list[SegmentRef]) -> None:
    newest_first = checkpoint.list_checkpoints(directory.parent)
    index = newest_first.index(directory)
    for newer in newest_first[:index]:
        checkpoint.move_checkpoint_aside(newer)
    segment_log.truncate(keep=[*segments, *collect_segments(newest_first[index + 1 :])])


def _flatten(tree: PlainMapping, path: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves.update(_flatten(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value})
    return leaves


def compare_leaves(before: PlainMapping, now: PlainMapping) -> list[tuple[str, Any, Any]]:
    """Return name, old value and new value of every leaf that differs."""
    leaves_before, leaves_now = _flatten(before), _flatten(now)
    names = sorted(leaves_before.keys() | leaves_now.keys())
    return [
        (name, leaves_before.get(name), leaves_now.get(name))
        for name in names
        if leaves_before.get(name) != leaves_now.get(name)
    ]

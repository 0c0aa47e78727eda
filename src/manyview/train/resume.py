"""Going on from the newest checkpoint that is whole, and saying what became of the others."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyview.data.log import Entry, Log
from manyview.data.segments import SegmentError
from manyview.train import checkpoint
from manyview.train.checkpoint import Checkpoint, CheckpointError
from manyview.train.diary import Diary
from manyview.train.trainer import EngineError, Trainer
from manyview.train.tree import Changes
from manyview.utils.text import printable

STRICT, FRESH_EPISODE, CHANGED, ASYNC = "strict", "fresh episode", "changed", "async"
PROMISES = {
    STRICT: "as if it had never stopped, bit for bit",
    FRESH_EPISODE: "with a fresh episode, since this environment cannot be restored in mid-episode",
    ASYNC: "with fresh actors; no step that was saved is lost or seen twice, and updates keep to their ratio",
    CHANGED: "on other versions or another machine than before, so not bit for bit",
}
COMPARED = (
    "python",
    "versions",
    "cpu",
    "device",
    "threads",
    "dtype",
    "numerics",
    "renderer",
    "environment",
)
"""What results depend on to the last bit; a manifest has them. One that an older version left out is a change too."""
SETTINGS_COMPARED = ("machine.device", "machine.threads", "machine.precision")
"""Settings that a manifest has too: they may change if somebody accepts it."""


class ChangedError(ValueError):
    """The run went so far with other versions, threads or number types."""


@dataclass(frozen=True)
class Resumed:
    folder: Path
    diary: Diary
    promise: str
    refused: list[str]
    """Newer checkpoints that could not be used, and why."""
    changes: list[str]
    """What is not as it was."""


def promise_of(tree: Changes) -> str:
    """What holds for a run that goes on from this state, on the machine it was on."""
    if "shards" in tree:
        return ASYNC
    return STRICT if tree["env"] is not None else FRESH_EPISODE


def refuse_other_settings(before: Changes, now: Changes) -> None:
    """A run goes on with the settings it began with."""
    different = [change for change in _different(before, now) if change[0] not in SETTINGS_COMPARED]
    if different:
        shown = "; ".join(f"{name} was {was!r}, now {is_!r}" for name, was, is_ in different)
        raise ValueError(
            f"the folder holds a run with other settings: {shown}. Go on with the same ones, or begin again with "
            "--fresh or in another folder with --out"
        )


def changes_since(manifest: Changes, now: Changes) -> list[str]:
    """What bit-identical results depend on and is not as it was."""
    before_all, now_all = ({name: of.get(name) for name in COMPARED} for of in (manifest, now))
    return [f"{name} was {was}, is {is_}" for name, was, is_ in _different(before_all, now_all)]


def resume(trainer: Trainer, log: Log, checkpoints: Path, machine: Changes, *, accept_changes: bool) -> Resumed | None:
    """Bring a trainer and its log to the newest checkpoint that is whole; None if there never was one."""
    refused: list[str] = []
    for folder, found in checkpoint.whole(checkpoints):
        try:
            if isinstance(found, CheckpointError):
                raise found
            resumed = _resumed(trainer, log, folder, found, machine, accept_changes=accept_changes)
            return replace(resumed, refused=refused)
        except CheckpointError as error:
            refused.append(f"checkpoint {folder.name} is not used: {printable(str(error))}")
    if refused:
        raise CheckpointError(f"{'; '.join(refused)}. Nothing is left to go on from; --fresh begins again")
    return None


def _resumed(
    trainer: Trainer,
    log: Log,
    folder: Path,
    found: Checkpoint,
    machine: Changes,
    *,
    accept_changes: bool,
) -> Resumed:
    with misfits_refused():
        exact = promise_of(found.tree)
        accepted = accept_changes or exact == ASYNC  # which is never bit for bit
        changes = changes_since(found.manifest, machine)
        _refuse_changes(changes, accepted=accepted)
        diary, entries = _load(trainer, log, folder, found)
        drawn = [f"view {name} is not drawn as before" for name in trainer.changed_views]
        _refuse_changes(drawn, accepted=accepted)
        changes += drawn
    _forget_what_came_after(folder, log, entries)
    said = [printable(change) for change in (*changes, *_other_sources(found.manifest, machine))]
    return Resumed(folder, diary, CHANGED if changes and exact != ASYNC else exact, [], said)


def _refuse_changes(changes: list[str], *, accepted: bool) -> None:
    if changes and not accepted:
        raise ChangedError(
            f"{printable('; '.join(changes))}: the run would not go on as if it had never stopped. Use what it "
            "began with, or go on regardless with --accept-changes"
        )


def _other_sources(manifest: Changes, now: Changes) -> list[str]:
    """Of one version, but not of the same commit: that may be a word in the docs or another algorithm."""
    before, here = manifest.get("commit"), now.get("commit")
    return [] if before == here else [f"the sources were of commit {before}, and are of {here}"]


def entries_of(manifest: Changes) -> list[Entry]:
    """The segments that a checkpoint names."""
    return [Entry.of(plain) for plain in manifest["segments"]]


def segments_of(folders: Iterable[Path]) -> list[Entry]:
    """Those that these checkpoints name; one that cannot even say which is of no use, and set aside."""
    found: list[Entry] = []
    for folder in folders:
        try:
            found += entries_of(checkpoint.manifest_of(folder))
        except (KeyError, ValueError, TypeError):
            checkpoint.set_aside(folder)
    return found


def _load(trainer: Trainer, log: Log, folder: Path, found: Checkpoint) -> tuple[Diary, list[Entry]]:
    if found.manifest.get("format") != checkpoint.FORMAT:
        raise ValueError(f"its format is {found.manifest.get('format')!r}, this version reads {checkpoint.FORMAT}")
    diary, entries = Diary.of(found.tree["session"]), entries_of(found.manifest)
    trainer.load_state(found.tree, lambda: log.read(entries))
    if folder.name.removesuffix(".stop") != checkpoint.name_of(trainer.clock.frames):
        raise ValueError(f"it is of frame {trainer.clock.frames}, which is not its name")
    return diary, entries


@contextmanager
def misfits_refused() -> Iterator[None]:
    """What is whole, but of another build or of somebody else's making, may break anything."""
    try:
        yield
    except (CheckpointError, ChangedError, EngineError):  # an engine that failed says nothing about a checkpoint
        raise
    except SegmentError as error:
        raise CheckpointError(str(error)) from None
    except Exception as error:
        raise CheckpointError(f"it does not fit this run: {type(error).__name__}: {error}") from error


def _forget_what_came_after(folder: Path, log: Log, entries: list[Entry]) -> None:
    newest_first = checkpoint.every(folder.parent)
    place = newest_first.index(folder)
    for newer in newest_first[:place]:
        checkpoint.set_aside(newer)
    log.forget(but=[*entries, *segments_of(newest_first[place + 1 :])])


def _leaves(tree: Changes, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found.update(_leaves(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value})
    return found


def _different(before: Changes, now: Changes) -> list[tuple[str, Any, Any]]:
    """Name, value before and value now of every leaf in which they differ."""
    were, are = _leaves(before), _leaves(now)
    names = sorted(were.keys() | are.keys())
    return [(name, were.get(name), are.get(name)) for name in names if were.get(name) != are.get(name)]

"""Going on from the newest checkpoint that is whole, and saying what became of the others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyview.data.durable import remove
from manyview.data.log import Entry, SegmentLog
from manyview.data.segments import SegmentError
from manyview.train import checkpoint
from manyview.train.checkpoint import Checkpoint, CheckpointError
from manyview.train.trainer import Trainer
from manyview.train.tree import Changes

STRICT, FRESH_EPISODE, CHANGED = "strict", "fresh episode", "changed"
PROMISES = {
    STRICT: "as if it had never stopped, bit for bit",
    FRESH_EPISODE: "with a fresh episode, since this environment cannot be restored in mid-episode",
    CHANGED: "on other versions or another machine than before, so not bit for bit",
}
COMPARED = ("python", "versions", "device", "threads", "dtype")
"""What results depend on to the last bit; a manifest has them."""


class ChangedError(ValueError):
    """The run went so far with other versions, threads or number types."""


@dataclass(frozen=True)
class Resumed:
    folder: Path
    session: dict[str, Any]
    """What the session kept of itself."""
    promise: str
    refused: list[str]
    """Newer checkpoints that could not be used, and why."""


def refuse_other_settings(before: Changes, now: Changes) -> None:
    """A run goes on with the settings it began with."""
    different = [name for name in _leaves(before).keys() | _leaves(now).keys() if _at(before, name) != _at(now, name)]
    if different:
        shown = "; ".join(f"{name} was {_at(before, name)!r}, now {_at(now, name)!r}" for name in sorted(different))
        raise ValueError(
            f"the folder holds a run with other settings: {shown}. Go on with the same ones, or begin again with "
            "--fresh or in another folder with --out"
        )


def changes_since(manifest: Changes, now: Changes) -> list[str]:
    """What bit-identical results depend on and is not as it was."""
    before_all, now_all = ({name: of.get(name) for name in COMPARED} for of in (manifest, now))
    names = sorted(_leaves(before_all).keys() | _leaves(now_all).keys())
    return [
        f"{name} was {_at(before_all, name)}, is {_at(now_all, name)}"
        for name in names
        if _at(before_all, name) != _at(now_all, name)
    ]


def resume(
    trainer: Trainer, log: SegmentLog, checkpoints: Path, machine: Changes, *, accept_changes: bool
) -> Resumed | None:
    """Bring a trainer and its log to the newest checkpoint that is whole; None if there never was one."""
    refused: list[str] = []
    for folder, found in checkpoint.whole(checkpoints):
        if isinstance(found, Checkpoint):
            changes = changes_since(found.manifest, machine)
            if changes and not accept_changes:
                raise ChangedError(
                    f"{'; '.join(changes)}: the run would not go on as if it had never stopped. Use what it began "
                    "with, or go on regardless with --accept-changes"
                )
            try:
                entries = _load(trainer, log, found)
            except CheckpointError as error:
                found = error
            else:
                _forget_what_came_after(folder, checkpoints, log, entries)
                exact = STRICT if found.tree["env"] is not None else FRESH_EPISODE
                return Resumed(folder, found.tree["session"], CHANGED if changes else exact, refused)
        refused.append(f"checkpoint {folder.name} is not used: {found}")
    if refused:
        raise CheckpointError(f"{'; '.join(refused)}. Nothing is left to go on from; --fresh begins again")
    return None


def entries_of(manifest: Changes) -> list[Entry]:
    """The segments that a checkpoint names."""
    return [Entry.of(plain) for plain in manifest["segments"]]


def _load(trainer: Trainer, log: SegmentLog, found: Checkpoint) -> list[Entry]:
    try:
        entries = entries_of(found.manifest)
        trainer.load_state(found.tree, lambda: log.read(entries))
    except SegmentError as error:
        raise CheckpointError(str(error)) from None
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        # Whole, but of another build or of somebody else's making.
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(f"it does not fit this run: {type(error).__name__}: {reason}") from error
    return entries


def _forget_what_came_after(folder: Path, checkpoints: Path, log: SegmentLog, entries: list[Entry]) -> None:
    kept = list(entries)
    newest_first = checkpoint.every(checkpoints)
    for newer in newest_first[: newest_first.index(folder)]:
        remove(newer)
    for older in newest_first[newest_first.index(folder) + 1 :]:
        try:
            kept += entries_of(checkpoint.manifest_of(older))
        except (CheckpointError, KeyError, ValueError, TypeError):
            remove(older)
    log.forget(but=kept)


def _leaves(tree: Changes, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found.update(_leaves(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value})
    return found


def _at(tree: Changes, name: str) -> Any:
    return _leaves(tree).get(name)

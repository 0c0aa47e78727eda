"""Checkpoints of a trainer without a session around it."""

from pathlib import Path

from manyview.data import AsyncWriter, SegmentLog
from manyview.training import RunConfig, checkpoint
from manyview.training.checkpoint import RunnerState
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.resume import restore_trainer


def save_moment(trainer: OffPolicyTrainer, log: SegmentLog, scribe: AsyncWriter, checkpoints: Path) -> None:
    """A checkpoint of this moment, as a session makes it."""
    log.flush()
    scribe.wait()
    segments = [entry.to_plain() for entry in log.list_segments(inserted=trainer.replay.inserted)]
    name = checkpoint.format_checkpoint_name(trainer.counters.frames)
    tree = {**trainer.get_state(), "runner": RunnerState(pending_jobs=(), last_good=name).to_plain()}
    checkpoint.save_checkpoint(checkpoints / name, tree, {"format": checkpoint.FORMAT, "segments": segments})


def twins(config: RunConfig, folder: Path, *, after: int) -> tuple[OffPolicyTrainer, OffPolicyTrainer]:
    """A trainer after so many steps, and another one that has resumed from its checkpoint."""
    trainer, twin, scribe = OffPolicyTrainer(config), OffPolicyTrainer(config), AsyncWriter()
    for _ in range(after):
        trainer.advance()
    save_moment(trainer, SegmentLog(folder / "replay", trainer.replay, scribe), scribe, folder / "checkpoints")
    log = SegmentLog(folder / "replay", twin.replay, scribe)
    assert restore_trainer(twin, log, folder / "checkpoints", {}, accept_changes=False) is not None
    scribe.close()
    return trainer, twin

"""Checkpoints of a trainer without a session around it."""

from pathlib import Path

from manyview.data import Scribe, SegmentLog
from manyview.train import RunConfig, checkpoint
from manyview.train.diary import Diary
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.resume import resume


def save_moment(trainer: OffPolicyTrainer, log: SegmentLog, scribe: Scribe, checkpoints: Path) -> None:
    """A checkpoint of this moment, as a session makes it."""
    log.cut()
    scribe.wait()
    segments = [entry.plain() for entry in log.entries(inserted=trainer.replay.inserted)]
    name = checkpoint.name_of(trainer.clock.frames)
    tree = {**trainer.state(), "session": Diary(due=(), good=name).plain()}
    checkpoint.save(checkpoints / name, tree, {"format": checkpoint.FORMAT, "segments": segments})


def twins(config: RunConfig, folder: Path, *, after: int) -> tuple[OffPolicyTrainer, OffPolicyTrainer]:
    """A trainer after so many steps, and another one that has resumed from its checkpoint."""
    trainer, twin, scribe = OffPolicyTrainer(config), OffPolicyTrainer(config), Scribe()
    for _ in range(after):
        trainer.advance()
    save_moment(trainer, SegmentLog(folder / "replay", trainer.replay, scribe), scribe, folder / "checkpoints")
    log = SegmentLog(folder / "replay", twin.replay, scribe)
    assert resume(twin, log, folder / "checkpoints", {}, accept_changes=False) is not None
    scribe.close()
    return trainer, twin

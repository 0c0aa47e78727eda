"""Checkpoints of a trainer without a runner."""

from pathlib import Path

from manyview.data import AsyncWriter, SegmentLog
from manyview.training import RunConfig, checkpoint
from manyview.training.checkpoint import RunnerState
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.resume import restore_trainer


def save_trainer(trainer: OffPolicyTrainer, log: SegmentLog, writer: AsyncWriter, checkpoints_dir: Path) -> None:
    """Save a checkpoint as the runner does."""
    log.flush()
    writer.wait()
    segments = [segment.to_plain() for segment in log.list_segments(inserted=trainer.replay.inserted)]
    name = checkpoint.format_checkpoint_name(trainer.counters.frames)
    state = {**trainer.get_state(), "runner": RunnerState(pending_jobs=(), last_good=name).to_plain()}
    checkpoint.save_checkpoint(checkpoints_dir / name, state, {"format": checkpoint.FORMAT, "segments": segments})


def train_and_resume(config: RunConfig, directory: Path, *, steps: int) -> tuple[OffPolicyTrainer, OffPolicyTrainer]:
    """Return a trainer after `steps` advances, and one resumed from its checkpoint."""
    trainer, resumed, writer = OffPolicyTrainer(config), OffPolicyTrainer(config), AsyncWriter()
    for _ in range(steps):
        trainer.advance()
    save_trainer(trainer, SegmentLog(directory / "replay", trainer.replay, writer), writer, directory / "checkpoints")
    log = SegmentLog(directory / "replay", resumed.replay, writer)
    assert restore_trainer(resumed, log, directory / "checkpoints", {}, accept_changes=False) is not None
    writer.close()
    return trainer, resumed

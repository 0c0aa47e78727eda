"""A killed run with two checkpoints and their segments; tests corrupt its copies."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from manyview.data import AsyncWriter, SegmentLog
from manyview.training import RunConfig, RunDir, checkpoint
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.resume import ResumeInfo, restore_trainer
from tests.support.checkpoints import save_trainer
from tests.support.runs import make_short_config

CHECKPOINT_STEPS = (25, 45)
"""Agent steps of the checkpoints."""


def make_config() -> RunConfig:
    return make_short_config("drqv2+none", schedule={"frames": 50, "random_steps": 15, "seed_frames": 20})


def make_run(run_dir: RunDir) -> None:
    """Train to the last of `CHECKPOINT_STEPS`, without an end record."""
    trainer, writer = OffPolicyTrainer(make_config()), AsyncWriter()
    run_dir.initialize(trainer.config, {"id": "0", "started": "long ago"})
    run_dir.metrics_file.touch()
    log = SegmentLog(run_dir.replay_dir, trainer.replay, writer)
    while trainer.counters.steps < CHECKPOINT_STEPS[-1]:
        trainer.advance()
        if trainer.counters.steps in CHECKPOINT_STEPS:
            save_trainer(trainer, log, writer, run_dir.checkpoints_dir)
    writer.close()
    trainer.close()


@dataclass(frozen=True)
class CorruptedRun:
    """Copy of the run, to be corrupted by a test."""

    run_dir: RunDir
    trainer: OffPolicyTrainer
    """Trainer that `resume` restores."""

    @property
    def newest_checkpoint(self) -> Path:
        return checkpoint.list_checkpoints(self.run_dir.checkpoints_dir)[0]

    @property
    def previous_checkpoint(self) -> Path:
        return checkpoint.list_checkpoints(self.run_dir.checkpoints_dir)[1]

    @property
    def segment_files(self) -> list[Path]:
        return sorted(self.run_dir.replay_dir.iterdir())

    def copy_to(self, path: Path) -> "CorruptedRun":
        shutil.copytree(self.run_dir.path, path)
        return CorruptedRun(RunDir(path), self.trainer)

    def open_log(self) -> SegmentLog:
        return SegmentLog(self.run_dir.replay_dir, self.trainer.replay, AsyncWriter())

    def resume(self) -> ResumeInfo | None:
        return restore_trainer(self.trainer, self.open_log(), self.run_dir.checkpoints_dir, {}, accept_changes=False)

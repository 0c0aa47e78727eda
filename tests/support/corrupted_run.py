"""A small run as a kill leaves it: two checkpoints and the segments of both. Tests harm copies of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from manyview.data import AsyncWriter, SegmentLog
from manyview.training import RunConfig, RunDir, checkpoint
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.resume import ResumeInfo, restore_trainer
from tests.support.checkpoints import save_moment
from tests.support.runs import short_run

MOMENTS = (25, 45)
"""The steps after which there is a checkpoint."""


def config() -> RunConfig:
    return short_run("drqv2+none", schedule={"frames": 50, "random_steps": 15, "seed_frames": 20})


def make_run(folder: RunDir) -> None:
    trainer, scribe = OffPolicyTrainer(config()), AsyncWriter()
    folder.initialize(trainer.config, {"id": "0", "started": "long ago"})
    folder.metrics_file.touch()
    log = SegmentLog(folder.replay_dir, trainer.replay, scribe)
    while trainer.counters.steps < MOMENTS[-1]:
        trainer.advance()
        if trainer.counters.steps in MOMENTS:
            save_moment(trainer, log, scribe, folder.checkpoints_dir)
    scribe.close()
    trainer.close()


@dataclass(frozen=True)
class Victim:
    folder: RunDir
    trainer: OffPolicyTrainer
    """Goes on from whatever is left."""

    @property
    def newest(self) -> Path:
        return checkpoint.list_checkpoints(self.folder.checkpoints_dir)[0]

    @property
    def older(self) -> Path:
        return checkpoint.list_checkpoints(self.folder.checkpoints_dir)[1]

    @property
    def segments(self) -> list[Path]:
        return sorted(self.folder.replay_dir.iterdir())

    def copy(self, path: Path) -> "Victim":
        shutil.copytree(self.folder.path, path)
        return Victim(RunDir(path), self.trainer)

    def log(self) -> SegmentLog:
        return SegmentLog(self.folder.replay_dir, self.trainer.replay, AsyncWriter())

    def resume(self) -> ResumeInfo | None:
        return restore_trainer(self.trainer, self.log(), self.folder.checkpoints_dir, {}, accept_changes=False)

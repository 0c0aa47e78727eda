"""A small run as a kill leaves it: two checkpoints and the segments of both. Tests harm copies of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from manyview.data import Scribe, SegmentLog
from manyview.train import RunConfig, RunFolder, checkpoint
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.resume import Resumed, resume
from tests.train.checkpoints import save_moment
from tests.train.runs import short_run

MOMENTS = (25, 45)
"""The steps after which there is a checkpoint."""


def config() -> RunConfig:
    return short_run("drqv2+none", schedule={"frames": 50, "random_steps": 15, "seed_frames": 20})


def make_run(folder: RunFolder) -> None:
    trainer, scribe = OffPolicyTrainer(config()), Scribe()
    folder.begin(trainer.config, {"id": "0", "began": "long ago"})
    folder.metrics_file.touch()
    log = SegmentLog(folder.replay, trainer.replay, scribe)
    while trainer.clock.steps < MOMENTS[-1]:
        trainer.advance()
        if trainer.clock.steps in MOMENTS:
            save_moment(trainer, log, scribe, folder.checkpoints)
    scribe.close()
    trainer.close()


@dataclass(frozen=True)
class Victim:
    folder: RunFolder
    trainer: OffPolicyTrainer
    """Goes on from whatever is left."""

    @property
    def newest(self) -> Path:
        return checkpoint.every(self.folder.checkpoints)[0]

    @property
    def older(self) -> Path:
        return checkpoint.every(self.folder.checkpoints)[1]

    @property
    def segments(self) -> list[Path]:
        return sorted(self.folder.replay.iterdir())

    def copy(self, path: Path) -> "Victim":
        shutil.copytree(self.folder.path, path)
        return Victim(RunFolder(path), self.trainer)

    def log(self) -> SegmentLog:
        return SegmentLog(self.folder.replay, self.trainer.replay, Scribe())

    def resume(self) -> Resumed | None:
        return resume(self.trainer, self.log(), self.folder.checkpoints, {}, accept_changes=False)

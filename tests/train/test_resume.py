"""Stopped and resumed is as never stopped: the whole state, to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyview.data import Scribe, SegmentLog
from manyview.train import RunConfig, checkpoint
from manyview.train.diary import Diary
from manyview.train.resume import resume
from manyview.train.trainer import Trainer
from tests.train.runs import short_run


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two trees of values are not the same to the bit."""
    if type(one) is not type(other):
        return [path]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [path]
        return [found for name in one for found in differences(one[name], other[name], f"{path}/{name}")]
    if isinstance(one, list | tuple):
        pairs = enumerate(zip(one, other, strict=True)) if len(one) == len(other) else None
        return [path] if pairs is None else [f for i, pair in pairs for f in differences(*pair, f"{path}/{i}")]
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) and one.dtype == other.dtype else [path]
    if isinstance(one, np.ndarray):
        return [] if np.array_equal(one, other) and one.dtype == other.dtype else [path]
    return [] if one == other else [path]


def saved(trainer: Trainer, folder: Path) -> None:
    """A checkpoint of this moment, as a session makes it."""
    scribe = Scribe()
    log = SegmentLog(folder / "replay", trainer.replay, scribe)
    log.cut()
    scribe.wait()
    segments = [entry.plain() for entry in log.entries(inserted=trainer.replay.inserted)]
    tree = {**trainer.state(), "session": Diary().plain()}
    name = checkpoint.name_of(trainer.clock.frames)
    checkpoint.save(folder / "checkpoints" / name, tree, {"format": checkpoint.FORMAT, "segments": segments})
    scribe.close()


def loaded(config: RunConfig, folder: Path) -> Trainer:
    trainer, scribe = Trainer(config), Scribe()
    log = SegmentLog(folder / "replay", trainer.replay, scribe)
    assert resume(trainer, log, folder / "checkpoints", {}, accept_changes=False) is not None
    scribe.close()
    return trainer


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("method", ["drqv2+mem", "sac+mem", "drqv2+curl+re3"])
def test_a_trainer_goes_on_from_its_checkpoint_to_the_bit(tmp_path: Path, method: str, prefetch: bool) -> None:
    """In mid-episode, with a replay that has wrapped."""
    config = short_run(method, replay={"capacity": 40, "prefetch": prefetch})
    trainer = Trainer(config)
    for _ in range(57):
        trainer.advance()
    saved(trainer, tmp_path)
    other = loaded(config, tmp_path)
    for _ in range(30):
        trainer.advance()
        other.advance()
    assert differences(trainer.state(), other.state()) == []
    assert trainer.replay.steps.tobytes() == other.replay.steps.tobytes()
    assert all(map(np.array_equal, trainer.replay.frames, other.replay.frames))
    for each in (trainer, other):
        each.close()

"""Runs: Algorithms 1 and 2, with their evaluations, records, videos and checkpoints."""

from manyview.train.config import RunConfig
from manyview.train.folder import RunFolder
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.on_policy import OnPolicyTrainer
from manyview.train.opening import run, trainer_for
from manyview.train.presets import PRESETS, preset_config
from manyview.train.trainer import Trainer
from manyview.train.tree import changed

__all__ = [
    "PRESETS",
    "OffPolicyTrainer",
    "OnPolicyTrainer",
    "RunConfig",
    "RunFolder",
    "Trainer",
    "changed",
    "preset_config",
    "run",
    "trainer_for",
]

"""Runs: Algorithms 1 and 2, with their evaluations, records, videos and checkpoints."""

from manyview.train.config import RunConfig
from manyview.train.folder import RunDir
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.on_policy import OnPolicyTrainer
from manyview.train.opening import make_trainer, run
from manyview.train.presets import PRESETS, load_preset
from manyview.train.trainer import Trainer
from manyview.train.tree import apply_overrides

__all__ = [
    "PRESETS",
    "OffPolicyTrainer",
    "OnPolicyTrainer",
    "RunConfig",
    "RunDir",
    "Trainer",
    "apply_overrides",
    "load_preset",
    "make_trainer",
    "run",
]

"""Runs: Algorithm 1, with its evaluations, records, videos and checkpoints."""

from manyview.train.config import RunConfig
from manyview.train.folder import RunFolder
from manyview.train.opening import run
from manyview.train.presets import PRESETS, preset_config
from manyview.train.trainer import Trainer
from manyview.train.tree import changed

__all__ = ["PRESETS", "RunConfig", "RunFolder", "Trainer", "changed", "preset_config", "run"]

"""Training: Algorithms 1 and 2 with evaluations, records, videos and checkpoints."""

from manyview.config.overrides import apply_overrides
from manyview.config.presets import load_preset, make_config
from manyview.config.schema import RunConfig
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.on_policy import OnPolicyTrainer
from manyview.train.run_dir import RunDir
from manyview.train.runner import make_trainer, run
from manyview.train.trainer import Trainer

__all__ = [
    "OffPolicyTrainer",
    "OnPolicyTrainer",
    "RunConfig",
    "RunDir",
    "Trainer",
    "apply_overrides",
    "load_preset",
    "make_config",
    "make_trainer",
    "run",
]

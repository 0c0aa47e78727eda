"""Training: Algorithms 1 and 2 with evaluations, records, videos and checkpoints."""

from manyview.config.overrides import apply_overrides
from manyview.config.presets import load_preset, make_config
from manyview.config.schema import RunConfig
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.on_policy import OnPolicyTrainer
from manyview.training.run_dir import RunDir
from manyview.training.runner import make_trainer, run
from manyview.training.trainer import Trainer

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

"""The estimated memory of a run against the measured one."""

import subprocess
import sys

import pytest

from manyview.training.memory_estimate import reset_peak_memory
from quality.plugin import Figure

REPLAY_SETTINGS = """
from tests.support.runs import make_short_config as make_config

changes = {
    "env": {"frame_stack": 3},
    "replay": {"capacity": 1_500, "batch_size": 64, "augmentation_pixels": 4},
    "schedule": {"random_steps": 1_600, "seed_frames": 1_600, "update_every_steps": 1},
    "agent": {"hidden": 1024},
    "representation": {"trunk": "paper", "latent_dim": 64},
}
method, advances = "drqv2+mem", 1_602
"""
ROLLOUT_SETTINGS = """
from tests.support.runs import make_short_rollout_config as make_config

changes = {
    "rollout": {"envs": 16, "steps": 120},
    "agent": {"hidden": 256, "batch_size": 32, "epochs": 1},
    "representation": {"trunk": "tiny", "latent_dim": 512},
}
method, advances = "ppo+mem", 121
"""
BONUS_SETTINGS = f"""{ROLLOUT_SETTINGS}
method = "ppo+ride"
changes["representation"] = {{"trunk": "nature", "latent_dim": 8}}
changes["bonus"] = {{"trunk": "nature", "latent_dim": 1024, "hidden": 16}}
"""
CONFIG_CODE = """
from manyview.config.overrides import apply_overrides

config = apply_overrides(make_config(method, task="tests.support.large_envs:make_large_image_env"), changes)
"""
ESTIMATE_CODE = """
from manyview.training.runner import make_trainer

trainer = make_trainer(config)
print(trainer.data_bytes + trainer.update_bytes)
"""
MEASURE_CODE = """
from manyview.utils.resources import keep_freed_memory
from manyview.training.runner import make_trainer
from manyview.training.memory_estimate import read_resident_bytes, reset_peak_memory

before = read_resident_bytes("VmRSS")
trainer = make_trainer(config)
keep_freed_memory()
reset_peak_memory()
for _ in range(advances):
    trainer.advance()
assert trainer.counters.updates
print(read_resident_bytes("VmHWM") - before)
"""


@pytest.mark.quality("E4")
@pytest.mark.slow
@pytest.mark.skipif(not reset_peak_memory(), reason="the system does not tell its peak")
@pytest.mark.parametrize(
    "settings_code",
    [
        pytest.param(REPLAY_SETTINGS, id="replay"),
        pytest.param(ROLLOUT_SETTINGS, id="rollouts", marks=pytest.mark.long),
        pytest.param(BONUS_SETTINGS, id="features of a bonus", marks=pytest.mark.long),
    ],
)
def test_a_run_takes_the_estimated_memory(figure: Figure, settings_code: str) -> None:
    predicted, measured = (
        int(
            subprocess.run(
                [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
            ).stdout
        )
        for script in (settings_code + CONFIG_CODE + ESTIMATE_CODE, settings_code + CONFIG_CODE + MEASURE_CODE)
    )
    print(f"predicted {predicted / 1e6:.0f} MB, taken {measured / 1e6:.0f}")
    figure(abs(predicted - measured) / measured, "with the networks")

"""How much memory a run will take, against what it takes."""

import subprocess
import sys

import pytest

from manyview.train.rehearsal import forget_peak
from quality.plugin import Figure

REPLAY = """
from tests.train.runs import short_run as short

changes = {
    "env": {"frame_stack": 3},
    "replay": {"capacity": 1_500, "batch_size": 64},
    "schedule": {"random_steps": 1_600, "seed_frames": 1_600, "update_every_steps": 1},
    "drqv2": {"hidden": 1024, "shift_pixels": 4},
    "mem": {"trunk": "paper", "latent_dim": 64},
}
method, advances = "drqv2+mem", 1_602
"""
ROLLOUTS = """
from tests.train.runs import short_rollouts as short

changes = {
    "rollout": {"envs": 16, "steps": 120},
    "ppo": {"hidden": 256, "batch_size": 32, "epochs": 1},
    "mem": {"trunk": "tiny", "latent_dim": 512},
}
method, advances = "ppo+mem", 121
"""
CONFIG = """
from manyview.train.tree import changed

config = changed(short(method, task="tests.train.large:cameras"), changes)
"""
PREDICT = """
from manyview.train.opening import trainer_for

trainer = trainer_for(config)
print(trainer.data_bytes + trainer.update_bytes)
"""
MEASURE = """
from manyview.train.memory import keep_freed_memory
from manyview.train.opening import trainer_for
from manyview.train.rehearsal import forget_peak, resident_bytes

before = resident_bytes("VmRSS")
trainer = trainer_for(config)
keep_freed_memory()
forget_peak()
for _ in range(advances):
    trainer.advance()
assert trainer.clock.updates
print(resident_bytes("VmHWM") - before)
"""


@pytest.mark.quality("E4")
@pytest.mark.slow
@pytest.mark.skipif(not forget_peak(), reason="the system does not tell its peak")
@pytest.mark.parametrize("run", [REPLAY, ROLLOUTS], ids=["replay", "rollouts"])
def test_a_run_takes_the_memory_that_was_predicted(figure: Figure, run: str) -> None:
    predicted, taken = (
        int(
            subprocess.run(
                [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
            ).stdout
        )
        for script in (run + CONFIG + PREDICT, run + CONFIG + MEASURE)
    )
    print(f"predicted {predicted / 1e6:.0f} MB, taken {taken / 1e6:.0f}")
    figure(abs(predicted - taken) / taken, "with the networks")

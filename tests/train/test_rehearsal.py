"""How much memory a run will take, against what it takes."""

import subprocess
import sys

import pytest

from manyview.train.rehearsal import forget_peak
from quality.plugin import Figure

RUN = """
from manyview.train import build
from manyview.train.memory import keep_freed_memory
from manyview.train.rehearsal import forget_peak, resident_bytes, update_bytes
from manyview.train.off_policy import OffPolicyTrainer
from manyview.train.tree import changed
from tests.train.runs import short_run

config = changed(
    short_run("drqv2+mem", task="tests.train.large:cameras"),
    {
        "env": {"frame_stack": 3},
        "replay": {"capacity": 1_500, "batch_size": 64},
        "schedule": {"random_steps": 10**6, "seed_frames": 10**6},
        "drqv2": {"hidden": 1024, "shift_pixels": 4},
        "mem": {"trunk": "paper", "latent_dim": 64},
    },
)
"""
PREDICT = """
env = build.environment(config)
shapes = build.shapes_of(config, env)
env.close()
print(build.replay_bytes(config, shapes) + update_bytes(build.agent(config, shapes), config, shapes))
"""
MEASURE = """
before = resident_bytes("VmRSS")
trainer = OffPolicyTrainer(config)
keep_freed_memory()
forget_peak()
for _ in range(1_600):
    trainer.advance()
for _ in range(2):
    trainer.update()
print(resident_bytes("VmHWM") - before)
"""


ROLLOUTS = """
from manyview.train import OnPolicyTrainer, build
from manyview.train.memory import keep_freed_memory
from manyview.train.rehearsal import forget_peak, resident_bytes, update_bytes
from tests.train.runs import short_rollouts

config = short_rollouts(
    "ppo+mem",
    task="tests.train.large:cameras",
    rollout={"envs": 16, "steps": 120},
    ppo={"hidden": 256, "batch_size": 32, "epochs": 1},
    mem={"trunk": "tiny", "latent_dim": 512},
)
"""
PREDICT_ROLLOUTS = """
env = build.environments(config)
shapes = build.shapes_of(config, env)
env.close()
print(build.rollout_bytes(config, shapes) + update_bytes(build.agent(config, shapes), config, shapes))
"""
MEASURE_ROLLOUTS = """
before = resident_bytes("VmRSS")
trainer = OnPolicyTrainer(config)
keep_freed_memory()
forget_peak()
while not trainer.clock.rollouts:
    trainer.advance()
print(resident_bytes("VmHWM") - before)
"""


@pytest.mark.quality("E4")
@pytest.mark.slow
@pytest.mark.skipif(not forget_peak(), reason="the system does not tell its peak")
@pytest.mark.parametrize(
    ("run", "predict", "measure"),
    [(RUN, PREDICT, MEASURE), (ROLLOUTS, PREDICT_ROLLOUTS, MEASURE_ROLLOUTS)],
    ids=["replay", "rollouts"],
)
def test_a_run_takes_the_memory_that_was_predicted(figure: Figure, run: str, predict: str, measure: str) -> None:
    predicted, taken = (
        int(subprocess.run([sys.executable, "-c", run + rest], capture_output=True, text=True, check=True).stdout)
        for rest in (predict, measure)
    )
    print(f"predicted {predicted / 1e6:.0f} MB, taken {taken / 1e6:.0f}")
    figure(abs(predicted - taken) / taken, "with the networks")

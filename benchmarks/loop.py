"""Compare the training loop with the sum of its bare parts (quality row P10).

    python -m benchmarks.loop [--task dmc/cartpole_swingup] [--preset cpu]

The bare parts are the minimum: the environment's step, the policy's forward pass for acting, a batch from the replay
buffer, and the agent's update. The loop is all of `Runner`, with records and diagnostics. Evaluations and videos count
on neither side. Both sides alternate on one thread.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import torch

from manyview.config.overrides import apply_overrides
from manyview.training import OffPolicyTrainer, RunConfig, RunDir, load_preset
from manyview.training.runner import Runner
from manyview.utils.resources import keep_freed_memory

STEPS = 40


def make_loop_config(task: str, preset: str) -> RunConfig:
    """Return the config of a run without random steps, evaluations and checkpoints."""
    never = 10**9
    return apply_overrides(
        load_preset(preset, task=task, method="drqv2+mem", seed=1),
        {
            "schedule": {"frames": never, "random_steps": 0, "seed_frames": 100},
            "replay": {"capacity": 2_000},
            "evaluation": {"every_frames": never, "video": False},
            "logging": {"checkpoint_every_frames": never, "tensorboard": False},
            "compute": {"threads": 1},
        },
    )


class Bare:
    """Parts of the loop, called directly."""

    def __init__(self, trainer: OffPolicyTrainer) -> None:
        self.trainer = trainer
        self._steps = 0

    def __call__(self) -> None:
        trainer, every = self.trainer, self.trainer.config.schedule.update_every_steps
        for _ in range(STEPS):
            views, mask = (torch.from_numpy(part) for part in trainer.replay.get_observation())
            action = trainer.agent.act(views, mask, step=1000, explore=True)[0].numpy()
            _, _, terminated, truncated, _ = trainer.env.step(action)
            if terminated or truncated:
                trainer.env.reset()
            self._steps += 1
            if self._steps % every == 0:
                trainer.agent.update(trainer.sampler.sample(), 1000)


def make_loop_block(runner: Runner) -> Callable[[], None]:
    def work() -> None:
        for _ in range(STEPS):
            runner.advance()

    return work


def measure_ratio(config: RunConfig, *, rounds: int) -> float:
    """Return the CPU time of the loop divided by that of its parts, as the median of alternating rounds."""
    keep_freed_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        runner = Runner(config, RunDir(Path(directory)))
        bare_trainer = OffPolicyTrainer(config)
        loop, bare = make_loop_block(runner), Bare(bare_trainer)
        for trainer in (runner.trainer, bare_trainer):
            while trainer.counters.updates < 5:
                trainer.advance()
        ratios = [_time(loop) / _time(bare) for _ in range(rounds)]
        runner.close()
        bare_trainer.close()
    return median(ratios)


def _time(work: Callable[[], None]) -> float:
    start_s = process_time()
    work()
    return process_time() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="dmc/cartpole_swingup")
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    ratio = measure_ratio(make_loop_config(arguments.task, arguments.preset), rounds=arguments.rounds)
    print(f"{arguments.task}, preset {arguments.preset}: the loop takes {ratio:.3f} times its bare parts")


if __name__ == "__main__":
    main()

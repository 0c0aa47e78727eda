"""P10: the whole training loop against the sum of its bare parts.

    python -m benchmarks.loop [--task dmc/cartpole_swingup] [--preset cpu]

The bare parts are what nobody can leave out: the environment's step, the policy's forward for acting, a batch of the
replay, and the agent's update. The loop is all of `Session`, with records and health; evaluations and videos are not
counted on either side. Both take turns, on one thread.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import torch

from manyview.config.overrides import apply_overrides
from manyview.train import OffPolicyTrainer, RunConfig, RunDir, load_preset
from manyview.train.runner import Runner
from manyview.utils.resources import keep_freed_memory

STEPS = 40


def make_loop_config(task: str, preset: str) -> RunConfig:
    """A run that is past its begin, and does not come to an evaluation."""
    never = 10**9
    return apply_overrides(
        load_preset(preset, task=task, method="drqv2+mem", seed=1),
        {
            "schedule": {"frames": never, "random_steps": 0, "seed_frames": 100},
            "replay": {"capacity": 2_000},
            "evaluation": {"every_frames": never, "video": False},
            "log": {"checkpoint_every_frames": never, "tensorboard": False},
            "machine": {"threads": 1},
        },
    )


class Bare:
    """The parts of a loop, called by hand."""

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


def make_loop_block(session: Runner) -> Callable[[], None]:
    def work() -> None:
        for _ in range(STEPS):
            session.advance()

    return work


def measure_ratio(config: RunConfig, *, rounds: int) -> float:
    """CPU time of the loop over that of its parts: the median of rounds in turns."""
    keep_freed_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        session = Runner(config, RunDir(Path(place)))
        one, other = session.trainer, OffPolicyTrainer(config)
        looped, bare = make_loop_block(session), Bare(other)
        for trainer in (one, other):
            while trainer.counters.updates < 5:
                trainer.advance()
        ratios = []
        for _ in range(rounds):
            seconds = [_time(looped), _time(bare)]
            ratios.append(seconds[0] / seconds[1])
        session.close()
        other.close()
    return median(ratios)


def _time(work: Callable[[], None]) -> float:
    begin = process_time()
    work()
    return process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="dmc/cartpole_swingup")
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    found = measure_ratio(make_loop_config(arguments.task, arguments.preset), rounds=arguments.rounds)
    print(f"{arguments.task}, preset {arguments.preset}: the loop takes {found:.3f} times its bare parts")


if __name__ == "__main__":
    main()

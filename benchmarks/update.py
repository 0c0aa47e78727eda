"""Count FLOPs and time of a DrQ-v2 update with and without MEM, and compare it with the bare networks.

    python -m benchmarks.update                   # counts, ratios, and the time of each part
    python -m benchmarks.update --batch 64        # faster; the fixed parts weigh more

Times are CPU seconds of one thread, medians of alternating sides.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import get_args

import torch
from torch.utils.flop_counter import FlopCounterMode

from manyview.agents import DrQv2, DrQv2Config
from manyview.data.batch_augmentation import random_shift
from manyview.methods import PixelEncoder, PixelEncoderConfig
from manyview.methods.bonuses.mem import RewardFrames
from manyview.nn.soft_update import soft_update
from manyview.training.update_benchmark import (
    ACTIONS,
    CHANNELS,
    SIZE,
    BareNetworks,
    MEMUpdate,
    make_random_batch,
    time_alternating,
    time_rounds,
)
from manyview.utils.resources import keep_freed_memory


class PlainUpdate:
    """Update of `drqv2+none`; with one view it equals DrQ-v2."""

    def __init__(self, *, views: int, batch: int, latent_dim: int = 64) -> None:
        torch.manual_seed(0)
        representation = PixelEncoder(views, (CHANNELS, SIZE, SIZE), PixelEncoderConfig(latent_dim=latent_dim))
        self.agent = DrQv2(representation, ACTIONS, DrQv2Config())
        self.representation, self.batch = representation, make_random_batch(views=views, batch=batch)

    def __call__(self) -> None:
        self.agent.update(self.batch, 0)


def make_parts(update: MEMUpdate) -> dict[str, Callable[[], object]]:
    """Return the parts of an update that `BareNetworks` leaves out, by name."""
    agent, mem, batch = update.agent, update.mem, update.batch
    with torch.no_grad():
        encoded, later = mem.encode(batch.views, batch.mask), mem.encode(batch.next_views, batch.next_mask)
    leaf = encoded._replace(shared=encoded.shared.requires_grad_(), specific=encoded.specific.requires_grad_())

    def encode_clean() -> None:
        with torch.no_grad():
            mem.encode(batch.views, batch.mask)

    return {
        "clean frames through the encoder": encode_clean,
        "random shifts": lambda: [
            random_shift(pixels, 4, agent.generator) for pixels in (batch.views, batch.next_views)
        ],
        "MEM's losses and backward": lambda: mem.compute_loss(leaf, later)[0].backward(),
        "reward and k-NN": lambda: update.bonus.entropy.compute_reward(encoded, indices=batch.indices),
        "discriminator": lambda: mem.update_discriminator(encoded),
        "Adam, critic and encoder": agent.critic_optimizer.step,
        "Adam, actor": agent.actor_optimizer.step,
        "soft update": lambda: soft_update(agent.critic, agent.target_critic, 0.01),
    }


def count_gigaflops(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops()) / 1e9


def measure_ratio(work: Callable[[], object], baseline: Callable[[], object], *, rounds: int) -> float:
    """Return the median over rounds of the CPU time of `work` divided by that of `baseline`, run right after it.

    Use one thread: other load adds to wall time, but affects CPU time only through cache and clock rate.
    """
    times = time_rounds(work, baseline, rounds=rounds, clock=time.process_time)
    ratios: list[float] = [a / b for a, b in zip(*times, strict=True)]
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    clean = count_and_time(batch=args.batch, rounds=args.rounds)
    pieces: dict[str, Callable[[], object]] = {"a whole update on clean frames": clean, **make_parts(clean)}
    seconds = time_alternating(*pieces.values(), rounds=args.rounds, clock=time.process_time)
    for name, taken in zip(pieces, seconds, strict=True):
        print(f"{name:34} {taken * 1e3:8.1f} ms {100 * taken / seconds[0]:6.1f} %")


def count_and_time(*, batch: int, rounds: int) -> MEMUpdate:
    """Print P1, P2 and P4 for both values of `reward_frames`; return the last update with 3 views."""
    plain = PlainUpdate(views=1, batch=batch)
    print(f"batch {batch}, one thread; GFLOPs of plain DrQ-v2 with one view: {count_gigaflops(plain):.1f}")
    for frames in get_args(RewardFrames):
        three, one = (MEMUpdate(views=views, batch=batch, reward_frames=frames) for views in (3, 1))
        print(
            f"{frames:9} GFLOPs {count_gigaflops(three):.1f} with 3 views, {count_gigaflops(one):.1f} with one; "
            f"3 views against bare {measure_ratio(three, BareNetworks(three), rounds=rounds):.3f}, "
            f"one view against plain DrQ-v2 {measure_ratio(one, plain, rounds=rounds):.3f}",
            flush=True,
        )
    return three


if __name__ == "__main__":
    main()

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
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from manyview.agents import DrQv2, DrQv2Config
from manyview.data import Batch
from manyview.data.batch_augmentation import random_shift
from manyview.mem import MEMRepresentation, MEMRepresentationConfig
from manyview.methods import MEMBonus, MEMBonusConfig, PixelEncoder, PixelEncoderConfig
from manyview.methods.bonuses.mem import RewardFrames
from manyview.nn.optim import freeze
from manyview.nn.soft_update import soft_update
from manyview.utils.resources import keep_freed_memory

ACTIONS, CHANNELS, SIZE = 6, 9, 84


def random_batch(*, views: int, batch: int) -> Batch:
    pixels = [torch.randint(256, (batch, views, CHANNELS, SIZE, SIZE), dtype=torch.uint8) for _ in range(2)]
    mask = torch.ones(batch, views, dtype=torch.bool)
    return Batch(
        views=pixels[0],
        mask=mask,
        action=torch.rand(batch, ACTIONS) * 2 - 1,
        reward_ext=torch.rand(batch),
        discount=torch.full((batch,), 0.99**3),
        next_views=pixels[1],
        next_mask=mask,
        indices=torch.arange(batch),
        next_indices=torch.arange(batch) + 3,
    )


class MEMUpdate:
    """Update of `drqv2+mem`; every call is one update on the same random batch."""

    def __init__(self, *, views: int, batch: int, reward_frames: RewardFrames = "augmented") -> None:
        torch.manual_seed(0)
        names = [f"camera {i}" for i in range(views)]
        self.mem = MEMRepresentation(names, (CHANNELS, SIZE, SIZE), MEMRepresentationConfig())
        self.bonus = MEMBonus(self.mem, MEMBonusConfig(reward_frames=reward_frames))
        self.agent = DrQv2(self.mem, ACTIONS, DrQv2Config(), bonus=self.bonus, beta=self.bonus.config)
        self.batch = random_batch(views=views, batch=batch)

    def __call__(self) -> None:
        self.agent.update(self.batch, 0)


class PlainUpdate:
    """Update of `drqv2+none`; with one view it equals DrQ-v2."""

    def __init__(self, *, views: int, batch: int, latent_dim: int = 64) -> None:
        torch.manual_seed(0)
        representation = PixelEncoder(views, (CHANNELS, SIZE, SIZE), PixelEncoderConfig(latent_dim=latent_dim))
        self.agent = DrQv2(representation, ACTIONS, DrQv2Config())
        self.representation, self.batch = representation, random_batch(views=views, batch=batch)

    def __call__(self) -> None:
        self.agent.update(self.batch, 0)


class Bare:
    """Only the convolutions and linear layers of an update with MEM.

    Forward pass of s and of s' (without gradient) through the same modules, from float pixels; actor and target critics
    on s', critics on s; backward pass of critics and encoder; actor and critics on s and the actor's backward pass.
    No shift, no conversion, no normalization, no loss or reward of MEM, no discriminator, no optimizer step, no soft
    update, no metrics.
    """

    def __init__(self, update: MEMUpdate) -> None:
        self.encoder, self.agent, self.action = update.mem.encoder, update.agent, update.batch.action
        self.views, self.next_views = (
            pixels.flatten(0, 1).float().mul_(1 / 255).sub_(0.5)
            for pixels in (update.batch.views, update.batch.next_views)
        )

    def __call__(self) -> None:
        agent = self.agent
        state = self._state(self.views)
        with torch.no_grad():
            later = self._state(self.next_views)
            target = agent.target_critic(later, agent.actor(later)).amin(0)
        agent.critic_optimizer.zero_grad(set_to_none=True)
        (agent.critic(state, self.action) - target).pow(2).mean().backward()
        state = state.detach()
        agent.actor_optimizer.zero_grad(set_to_none=True)
        with freeze(agent.critic):
            agent.critic(state, agent.actor(state)).amin(0).mean().backward()

    def _state(self, pixels: Tensor) -> Tensor:
        """Return a state as wide as MEM's: the outputs of the heads of all views, cut to that width."""
        features: Tensor = self.encoder.heads(self.encoder.trunk(pixels))
        return features.reshape(len(self.action), -1)[:, : self.encoder.state_dim]


def make_parts(update: MEMUpdate) -> dict[str, Callable[[], object]]:
    """Return the parts of an update that `Bare` leaves out, by name."""
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


def time_alternating(
    *works: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the median seconds of each, in alternation so that other load slows all alike."""
    return [statistics.median(taken) for taken in time_rounds(*works, rounds=rounds, clock=clock)]


def measure_ratio(work: Callable[[], object], baseline: Callable[[], object], *, rounds: int) -> float:
    """Return the median over rounds of the CPU time of `work` divided by that of `baseline`, run right after it.

    Use one thread: other load adds to wall time, but affects CPU time only through cache and clock rate.
    """
    times = time_rounds(work, baseline, rounds=rounds, clock=time.process_time)
    ratios: list[float] = [a / b for a, b in zip(*times, strict=True)]
    return statistics.median(ratios)


def time_rounds(*works: Callable[[], object], rounds: int, clock: Callable[[], float]) -> list[list[float]]:
    """Return the seconds of each in every round, after an untimed warm-up round."""
    for work in works:
        work()
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, taken in zip(works, seconds, strict=True):
            start = clock()
            work()
            taken.append(clock() - start)
    return seconds


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
            f"3 views against bare {measure_ratio(three, Bare(three), rounds=rounds):.3f}, "
            f"one view against plain DrQ-v2 {measure_ratio(one, plain, rounds=rounds):.3f}",
            flush=True,
        )
    return three


if __name__ == "__main__":
    main()

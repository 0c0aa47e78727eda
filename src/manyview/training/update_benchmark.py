"""An update with MEM at the paper's size and its bare networks, to time one against the other."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from manyview.agents import DrQv2, DrQv2Config
from manyview.data import Batch
from manyview.mem import MEMRepresentation, MEMRepresentationConfig
from manyview.methods import MEMBonus, MEMBonusConfig
from manyview.methods.bonuses.mem import RewardFrames
from manyview.nn.optim import freeze

ACTIONS, CHANNELS, SIZE = 6, 9, 84
CPU = torch.device("cpu")


def make_random_batch(*, views: int, batch: int, device: torch.device = CPU) -> Batch:
    """Return a batch of random images and actions, equal on every device."""
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
    ).to(device)


class MEMUpdate:
    """Update of `drqv2+mem`; every call is one update on the same random batch.

    Weights and batch are equal on every device and in every precision.
    """

    def __init__(
        self,
        *,
        views: int,
        batch: int,
        reward_frames: RewardFrames = "augmented",
        device: torch.device = CPU,
        bfloat16: bool = False,
        compiled: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.device, self.bfloat16 = device, bfloat16
        names = [f"camera {i}" for i in range(views)]
        self.mem = MEMRepresentation(names, (CHANNELS, SIZE, SIZE), MEMRepresentationConfig())
        self.bonus = MEMBonus(self.mem, MEMBonusConfig(reward_frames=reward_frames))
        self.agent = DrQv2(self.mem, ACTIONS, DrQv2Config(), bonus=self.bonus, beta=self.bonus.config).to(device)
        self.batch = make_random_batch(views=views, batch=batch, device=device)
        if compiled:
            self.mem.encoder.forward = torch.compile(self.mem.encoder.forward, dynamic=False)  # type: ignore[method-assign]

    def __call__(self) -> None:
        with self.autocast():
            self.agent.update(self.batch, 0)
        synchronize(self.device)

    def autocast(self) -> torch.autocast:
        """Return the context of the update's precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16)

    @torch.no_grad()
    def compute_outputs(self) -> dict[str, Tensor]:
        """Return the policy's state [B, S], the loss of the representation and r̂ [B], without changing weights."""
        with self.autocast():
            features = self.mem.encode(self.batch.views, self.batch.mask)
            loss, _ = self.mem.compute_loss(features, self.mem.encode(self.batch.next_views, self.batch.next_mask))
            reward = self.bonus.entropy.compute_reward(features, indices=self.batch.indices)
        return {"state": features.state, "loss": loss, "reward_int": reward}


class BareNetworks:
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
        synchronize(self.action.device)

    def _state(self, pixels: Tensor) -> Tensor:
        """Return a state as wide as MEM's: the outputs of the heads of all views, cut to that width."""
        features: Tensor = self.encoder.heads(self.encoder.trunk(pixels))
        return features.reshape(len(self.action), -1)[:, : self.encoder.state_dim]


def synchronize(device: torch.device) -> None:
    """Wait for the work that was queued on an accelerator."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def time_alternating(
    *works: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the median seconds of each, in alternation so that other load slows all alike."""
    return [statistics.median(taken) for taken in time_rounds(*works, rounds=rounds, clock=clock)]


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

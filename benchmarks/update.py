"""One whole off-policy update around MEM in the shape of DrQ-v2's, to count and to time.

Twin critics and an actor of three linear layers, hidden 1024; a joint backward for critics and representation.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from manyview.mem import MEM, BetaSchedule, MEMConfig, total_reward

ACTIONS, HIDDEN = 6, 1024


def head(inputs: int, outputs: int) -> nn.Sequential:
    hidden = (nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(HIDDEN, outputs))


class Update:
    """Build once, call as often as wanted; every call is one update on the same random batch."""

    def __init__(self, *, views: int, batch: int, size: int = 84, config: MEMConfig | None = None) -> None:
        torch.manual_seed(0)
        self.mem = MEM([f"camera {i}" for i in range(views)], (9, size, size), config)
        self.critics = nn.ModuleList(head(self.mem.state_dim + ACTIONS, 1) for _ in range(2))
        self.targets = nn.ModuleList(head(self.mem.state_dim + ACTIONS, 1) for _ in range(2))
        self.actor = head(self.mem.state_dim, ACTIONS)
        self.learn_values = torch.optim.Adam([*self.mem.parameters(), *self.critics.parameters()], lr=1e-4)
        self.learn_actions = torch.optim.Adam(self.actor.parameters(), lr=1e-4)
        self.beta = BetaSchedule()
        self.views, self.next_views = torch.randint(256, (2, batch, views, 9, size, size), dtype=torch.uint8)
        self.action, self.reward_ext = torch.rand(batch, ACTIONS), torch.rand(batch)

    def __call__(self) -> None:
        features = self.mem.encode(self.views)
        with torch.no_grad():
            later = self.mem.encode(self.next_views)
            reward = total_reward(self.reward_ext, self.mem.reward(features), self.beta(0))
            target = reward + 0.99 * self._least(self.targets, later.state, self.actor(later.state).tanh())
        critic_loss = torch.stack([(q - target).pow(2).mean() for q in self._values(features.state, self.action)]).sum()
        mem_loss, _ = self.mem.loss(features, later)
        self.learn_values.zero_grad(set_to_none=True)
        (critic_loss + mem_loss).backward()
        self.learn_values.step()
        self.mem.update_discriminator(features)

        state = features.state.detach()
        actor_loss = -self._least(self.critics, state, self.actor(state).tanh()).mean()
        self.learn_actions.zero_grad(set_to_none=True)
        actor_loss.backward()
        self.learn_actions.step()

    def _values(self, state: Tensor, action: Tensor) -> list[Tensor]:
        return [critic(torch.cat([state, action], 1)).squeeze(1) for critic in self.critics]

    @staticmethod
    def _least(critics: nn.ModuleList, state: Tensor, action: Tensor) -> Tensor:
        return torch.stack([critic(torch.cat([state, action], 1)).squeeze(1) for critic in critics]).amin(0)


def gigaflops(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops()) / 1e9


def side_by_side(*works: Callable[[], object], rounds: int) -> list[float]:
    """Median seconds of each, taken in turns so that a busy machine slows all alike."""
    for work in works:
        work()
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, taken in zip(works, seconds, strict=True):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]

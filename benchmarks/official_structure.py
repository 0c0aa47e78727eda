"""Compare an update in the structure of the official DrQ-v2 code with `drqv2+none`: one view, 84x84, 3 frames.

    python -m benchmarks.official_structure                 # batch 256
    python -m benchmarks.official_structure --batch 64      # a quick run

It is written from the paper and from facts about that code, and differs from ours in these points:

- images are converted to float32 first, and shifted by interpolation with `grid_sample` on a padded copy;
- scaling creates two new tensors, and convolutions and rectifiers never work in place;
- actor, critic and target critic have one trunk each (39,200 to 50, LayerNorm, tanh); ours has one, in the encoder;
- the actor's loss runs the critic's trunk again and computes unused gradients of the critic;
- encoder, critic and actor have one Adam each, not fused; the soft update handles one tensor at a time.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.sampling import drqv2_shift
from benchmarks.update import PlainUpdate
from manyview.data.batch_augmentation import random_shift
from manyview.nn.heads import TwinCritic, mlp
from manyview.nn.optim import freeze
from manyview.nn.soft_update import soft_update
from manyview.training.update_benchmark import ACTIONS, CHANNELS, SIZE, make_random_batch, time_alternating
from manyview.utils.resources import keep_freed_memory

HIDDEN, LATENT, SHIFT, LR, TAU, STD, STD_CLIP = 1024, 50, 4, 1e-4, 0.01, 1.0, 0.3

Work = Callable[[], object]


def make_convolutions() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(CHANNELS, 32, 3, stride=2), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(32, 32, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


def make_trunk(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, LATENT), nn.LayerNorm(LATENT), nn.Tanh())


class Actor(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.trunk, self.head = make_trunk(inputs), mlp(LATENT, HIDDEN, ACTIONS)

    def forward(self, encoded: Tensor) -> Tensor:
        mean: Tensor = self.head(self.trunk(encoded)).tanh()
        noise = (STD * torch.randn_like(mean)).clamp(-STD_CLIP, STD_CLIP)
        action = mean + noise
        return action + (action.clamp(-1 + 1e-6, 1 - 1e-6) - action).detach()


class Critic(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.trunk, self.heads = make_trunk(inputs), TwinCritic(LATENT, ACTIONS, HIDDEN)

    def forward(self, encoded: Tensor, action: Tensor) -> Tensor:
        values: Tensor = self.heads(self.trunk(encoded), action)
        return values


class OfficialUpdate:
    """Update in the official structure; every call is one update on the same random batch."""

    def __init__(self, *, batch: int) -> None:
        torch.manual_seed(0)
        self.encoder = make_convolutions()
        inputs = self.encoder(torch.zeros(1, CHANNELS, SIZE, SIZE)).shape[1]
        self.actor, self.critic = Actor(inputs), Critic(inputs)
        self.target = deepcopy(self.critic)
        self.optimizers = [
            torch.optim.Adam(part.parameters(), lr=LR) for part in (self.encoder, self.critic, self.actor)
        ]
        self.batch = make_random_batch(views=1, batch=batch)

    def __call__(self) -> None:
        batch = self.batch
        encoder_optimizer, critic_optimizer, actor_optimizer = self.optimizers
        encoded = self.encoder(self.scale(self.shift(batch.views)))
        with torch.no_grad():
            later = self.encoder(self.scale(self.shift(batch.next_views)))
            value = self.target(later, self.actor(later)).amin(0)
            target = batch.reward_ext + batch.discount * value
        q1, q2 = self.critic(encoded, batch.action)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        encoder_optimizer.zero_grad(set_to_none=True)
        critic_optimizer.zero_grad(set_to_none=True)
        critic_loss.backward()
        critic_optimizer.step()
        encoder_optimizer.step()

        encoded = encoded.detach()
        actor_loss = -self.critic(encoded, self.actor(encoded)).amin(0).mean()
        actor_optimizer.zero_grad(set_to_none=True)
        actor_loss.backward()
        actor_optimizer.step()
        self.update_target()

    def shift(self, views: Tensor) -> Tensor:
        images = views.flatten(0, 1).float()
        return drqv2_shift(images, torch.randint(2 * SHIFT + 1, (2, len(images))) - SHIFT, SHIFT)

    @staticmethod
    def scale(images: Tensor) -> Tensor:
        return images / 255.0 - 0.5

    @torch.no_grad()
    def update_target(self) -> None:
        for slow, fast in zip(self.target.parameters(), self.critic.parameters(), strict=True):
            slow.copy_(TAU * fast + (1 - TAU) * slow)

    def make_parts(self) -> dict[str, Work]:
        batch, encoder, actor, critic, target = self.batch, self.encoder, self.actor, self.critic, self.target
        images = [pixels.flatten(0, 1).float() for pixels in (batch.views, batch.next_views)]
        pixels = [self.scale(image) for image in images]
        with torch.no_grad():
            encoded, later = (encoder(image) for image in pixels)
            state = critic.trunk(encoded)
        wide = encoded.clone().requires_grad_()

        def trunks() -> None:
            with torch.no_grad():
                actor.trunk(later), target.trunk(later)
            critic.trunk(wide).sum().backward()
            critic.trunk(encoded).sum().backward()
            actor.trunk(encoded).sum().backward()

        def optimize() -> None:
            for optimizer in self.optimizers:
                optimizer.step()
            self.update_target()

        return {
            "augmentation, from uint8": lambda: [self.shift(views) for views in (batch.views, batch.next_views)],
            "conversion and scale": lambda: [self.scale(image) for image in images],
            "convolutions": lambda: run_forward_backward(encoder, pixels),
            "trunks": trunks,
            "actor and critics": lambda: run_heads(actor.head, critic.heads, target.heads, state, batch.action),
            "optimizers, soft update": optimize,
        }


def make_our_parts(update: PlainUpdate) -> dict[str, Work]:
    batch, agent, plain = update.batch, update.agent, update.representation
    both = (batch.views, batch.next_views)

    def convert() -> list[Tensor]:
        return [views.flatten(0, 1).float().mul_(1 / 255).sub_(0.5) for views in both]

    pixels = convert()
    with torch.no_grad():
        encoded, later = (plain.trunk(image) for image in pixels)
        state = plain.head(encoded)
    wide = encoded.clone().requires_grad_()

    def trunks() -> None:
        with torch.no_grad():
            plain.head(later)
        plain.head(wide).sum().backward()

    def heads_without_waste() -> None:
        run_heads(agent.actor, agent.critic, agent.target_critic, state, batch.action, frozen_for_actor=[agent.critic])

    def optimize() -> None:
        agent.critic_optimizer.step()
        agent.actor_optimizer.step()
        soft_update(agent.critic, agent.target_critic, TAU)

    return {
        "augmentation, from uint8": lambda: [random_shift(views, SHIFT, agent.generator) for views in both],
        "conversion and scale": convert,
        "convolutions": lambda: run_forward_backward(plain.trunk, pixels),
        "trunks": trunks,
        "actor and critics": heads_without_waste,
        "optimizers, soft update": optimize,
    }


def run_forward_backward(network: nn.Module, pixels: Sequence[Tensor]) -> None:
    """Run the forward pass of s and s' and the backward pass of s."""
    now, later = pixels
    with torch.no_grad():
        network(later)
    network(now).sum().backward()


def run_heads(
    actor: nn.Module,
    critic: nn.Module,
    target: nn.Module,
    state: Tensor,
    action: Tensor,
    *,
    frozen_for_actor: Sequence[nn.Module] = (),
) -> None:
    """Run the linear layers after the trunks for critic and actor."""
    with torch.no_grad():
        target(state, actor(state))
    critic(state.clone().requires_grad_(), action).sum().backward()
    with freeze(nn.ModuleList(frozen_for_actor)):
        critic(state, actor(state)).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    official, ours = OfficialUpdate(batch=args.batch), PlainUpdate(views=1, batch=args.batch, latent_dim=LATENT)
    theirs: dict[str, Work] = {**official.make_parts(), "whole update": official}
    our_parts: dict[str, Work] = {**make_our_parts(ours), "whole update": ours}
    works = [side[name] for name in theirs for side in (theirs, our_parts)]
    seconds = time_alternating(*works, rounds=args.rounds, clock=time.process_time)
    rows = dict(zip(theirs, zip(seconds[::2], seconds[1::2], strict=True), strict=True))
    total = rows.pop("whole update")
    parts_sum = [sum(column) for column in zip(*rows.values(), strict=True)]
    rows["rest, and noise if negative"] = total[0] - parts_sum[0], total[1] - parts_sum[1]
    rows["whole update"] = total
    print(f"one view, batch {args.batch}, one thread; CPU ms, medians of {args.rounds} alternating rounds")
    print(f"{'':28}{'official':>10}{'ours':>10}{'saved':>10}")
    for name, taken in rows.items():
        print(format_line(name, taken))
    print(f"ratio {total[0] / total[1]:.2f}")


def format_line(name: str, seconds: Sequence[float]) -> str:
    theirs, ours = (1e3 * taken for taken in seconds)
    return f"{name:28}{theirs:10.1f}{ours:10.1f}{theirs - ours:10.1f}"


if __name__ == "__main__":
    main()

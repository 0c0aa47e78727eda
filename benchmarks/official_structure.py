"""DrQ-v2 in the structure of its authors' code beside `drqv2+none`, on the same work: one view, 84x84, 3 frames.

    python -m benchmarks.official_structure                 # batch 256
    python -m benchmarks.official_structure --batch 64      # a quick run

Written from the paper and what is known of that code, in our own words; what makes it differ from ours:

- images become float32 first, and are shifted by interpolating them with `grid_sample` on a padded copy;
- scaling makes two new tensors, convolutions and rectifiers never work in place;
- actor, critic and target critic have a trunk each (39,200 to 50, LayerNorm, tanh), ours has one, in the encoder;
- for the actor's loss the critic's trunk runs again and gradients of the critic are computed that nobody uses;
- an Adam each for encoder, critic and actor, not fused; the soft update goes through the target one tensor at a time.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.sampling import drqv2_shift
from benchmarks.update import ACTIONS, CHANNELS, SIZE, PlainUpdate, random_batch, time_alternating
from manyview.data.augmentation import random_shift
from manyview.nn.heads import TwinCritic, mlp
from manyview.nn.optim import freeze
from manyview.nn.soft_update import soft_update
from manyview.utils.resources import keep_freed_memory

HIDDEN, LATENT, SHIFT, LR, TARGET_RATE, STD, STD_CLIP = 1024, 50, 4, 1e-4, 0.01, 1.0, 0.3

Piece = Callable[[], object]


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
    """Build once, call as often as wanted."""

    def __init__(self, *, batch: int) -> None:
        torch.manual_seed(0)
        self.encoder = make_convolutions()
        inputs = self.encoder(torch.zeros(1, CHANNELS, SIZE, SIZE)).shape[1]
        self.actor, self.critic = Actor(inputs), Critic(inputs)
        self.target = deepcopy(self.critic)
        self.optimizers = [
            torch.optim.Adam(part.parameters(), lr=LR) for part in (self.encoder, self.critic, self.actor)
        ]
        self.batch = random_batch(views=1, batch=batch)

    def __call__(self) -> None:
        batch = self.batch
        learn_encoder, learn_critic, learn_actor = self.optimizers
        encoded = self.encoder(self.scaled(self.shifted(batch.views)))
        with torch.no_grad():
            later = self.encoder(self.scaled(self.shifted(batch.next_views)))
            value = self.target(later, self.actor(later)).amin(0)
            wanted = batch.reward_ext + batch.discount * value
        one, other = self.critic(encoded, batch.action)
        critic_loss = F.mse_loss(one, wanted) + F.mse_loss(other, wanted)
        learn_encoder.zero_grad(set_to_none=True)
        learn_critic.zero_grad(set_to_none=True)
        critic_loss.backward()
        learn_critic.step()
        learn_encoder.step()

        encoded = encoded.detach()
        actor_loss = -self.critic(encoded, self.actor(encoded)).amin(0).mean()
        learn_actor.zero_grad(set_to_none=True)
        actor_loss.backward()
        learn_actor.step()
        self.follow()

    def shifted(self, views: Tensor) -> Tensor:
        images = views.flatten(0, 1).float()
        return drqv2_shift(images, torch.randint(2 * SHIFT + 1, (2, len(images))) - SHIFT, SHIFT)

    @staticmethod
    def scaled(images: Tensor) -> Tensor:
        return images / 255.0 - 0.5

    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.target.parameters(), self.critic.parameters(), strict=True):
            slow.copy_(TARGET_RATE * fast + (1 - TARGET_RATE) * slow)

    def pieces(self) -> dict[str, Piece]:
        batch, encoder, actor, critic, target = self.batch, self.encoder, self.actor, self.critic, self.target
        images = [pixels.flatten(0, 1).float() for pixels in (batch.views, batch.next_views)]
        pixels = [self.scaled(image) for image in images]
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

        def optimise() -> None:
            for optimizer in self.optimizers:
                optimizer.step()
            self.follow()

        return {
            "augmentation, from uint8": lambda: [self.shifted(views) for views in (batch.views, batch.next_views)],
            "conversion and scale": lambda: [self.scaled(image) for image in images],
            "convolutions": lambda: run_forward_backward(encoder, pixels),
            "trunks": trunks,
            "actor and critics": lambda: run_heads(actor.head, critic.heads, target.heads, state, batch.action),
            "optimisers, soft update": optimise,
        }


def make_our_parts(update: PlainUpdate) -> dict[str, Piece]:
    batch, agent, plain = update.batch, update.agent, update.representation
    both = (batch.views, batch.next_views)

    def converted() -> list[Tensor]:
        return [views.flatten(0, 1).float().mul_(1 / 255).sub_(0.5) for views in both]

    pixels = converted()
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

    def optimise() -> None:
        agent.critic_optimizer.step()
        agent.actor_optimizer.step()
        soft_update(agent.critic, agent.target_critic, TARGET_RATE)

    return {
        "augmentation, from uint8": lambda: [random_shift(views, SHIFT, agent.generator) for views in both],
        "conversion and scale": converted,
        "convolutions": lambda: run_forward_backward(plain.trunk, pixels),
        "trunks": trunks,
        "actor and critics": heads_without_waste,
        "optimisers, soft update": optimise,
    }


def run_forward_backward(network: nn.Module, pixels: Sequence[Tensor]) -> None:
    """Forward of s and s', backward of s."""
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
    """The linear layers after the trunks, for critic and actor."""
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
    theirs: dict[str, Piece] = {**official.pieces(), "whole update": official}
    own: dict[str, Piece] = {**make_our_parts(ours), "whole update": ours}
    works = [side[name] for name in theirs for side in (theirs, own)]
    seconds = time_alternating(*works, rounds=args.rounds, clock=time.process_time)
    rows = dict(zip(theirs, zip(seconds[::2], seconds[1::2], strict=True), strict=True))
    whole = rows.pop("whole update")
    named = [sum(column) for column in zip(*rows.values(), strict=True)]
    rows["rest, and noise if negative"] = whole[0] - named[0], whole[1] - named[1]
    rows["whole update"] = whole
    print(f"one view, batch {args.batch}, one thread; CPU ms, medians of {args.rounds} rounds in turns")
    print(f"{'':28}{'official':>10}{'ours':>10}{'saved':>10}")
    for name, taken in rows.items():
        print(format_line(name, taken))
    print(f"ratio {whole[0] / whole[1]:.2f}")


def format_line(name: str, seconds: Sequence[float]) -> str:
    theirs, ours = (1e3 * taken for taken in seconds)
    return f"{name:28}{theirs:10.1f}{ours:10.1f}{theirs - ours:10.1f}"


if __name__ == "__main__":
    main()

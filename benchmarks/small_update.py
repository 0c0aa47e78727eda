"""Time updates at small image sizes: of `sac+mem` against its bare networks (P13), and of all compositions.

    python -m benchmarks.small_update             # P13
    python -m benchmarks.small_update --table     # all representations and bonuses against `pixel` and `none`

Times are CPU seconds of one thread, medians of alternating sides.
"""

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.update import measure_ratio
from manyview.agents import SAC
from manyview.config.overrides import apply_overrides
from manyview.config.presets import load_preset
from manyview.config.schema import RunConfig
from manyview.data import Batch
from manyview.data.action_spec import ActionSpec
from manyview.data.batch import Minibatch
from manyview.envs import View
from manyview.methods import StoresFeatures
from manyview.nn.optim import freeze
from manyview.nn.soft_update import soft_update
from manyview.training.factory import Shapes, build_agent
from manyview.training.update_benchmark import time_alternating
from manyview.utils.resources import keep_freed_memory

TASK = "dmc/pendulum_swingup"
NUM_BATCHES = 10
OFF_POLICY: dict[str, tuple[str, dict[str, Any]]] = {
    "mem, mem": ("mem+mem", {}),
    "pixel, mem with its own encoder": ("pixel+mem", {}),
    "curl, none": ("curl+none", {}),
    "mad, none": ("mad+none", {}),
    "pixel, re3 in the buffer, search excluded": ("pixel+re3", {"bonus": {"search": "buffer"}}),
    "pixel, re3 in the batch": ("pixel+re3", {"bonus": {"search": "batch"}}),
    "pixel, rnd": ("pixel+rnd", {}),
    "pixel, icm": ("pixel+icm", {}),
    "pixel, apt": ("pixel+apt", {}),
    "pixel, vcse": ("pixel+vcse", {}),
}
SAC_ONLY: dict[str, tuple[str, dict[str, Any]]] = {"dribo, none": ("dribo+none", {})}
ON_POLICY: dict[str, tuple[str, dict[str, Any]]] = {
    "mem, mem": ("mem+mem", {}),
    "drac, none": ("drac+none", {}),
    "ucb_drac, none": ("ucb_drac+none", {}),
    "pixel, re3": ("pixel+re3", {}),
    "pixel, rnd": ("pixel+rnd", {}),
    "pixel, ride": ("pixel+ride", {}),
    "pixel, icm": ("pixel+icm", {}),
    "pixel, apt": ("pixel+apt", {}),
}
"""Compositions of the table: representation and bonus, and overrides. A rollout's r̂ is not part of a minibatch."""


def make_config(
    method: str, *, pixels: int, batch_size: int, trunk: str, overrides: dict[str, Any] | None = None
) -> RunConfig:
    """Return the `cpu` preset at this image size; `overrides` come last."""
    config = load_preset("cpu", task=TASK, method=method, seed=1)
    sizes: dict[str, Any] = {"env": {"image_size": pixels}, "replay": {"batch_size": batch_size}}
    for group in ("representation", "bonus"):
        settings = getattr(config, group)
        if hasattr(settings, "trunk"):
            sizes[group] = {"trunk": trunk}
        elif getattr(settings, "encoder", None) is not None:
            sizes[group] = {"encoder": {"trunk": trunk}}
    return apply_overrides(apply_overrides(config, sizes), overrides or {})


def make_shapes(config: RunConfig, *, views: int, actions: int = 1) -> Shapes:
    size = config.env.image_size or 84
    cameras = tuple(View(name=f"camera{i}", height=size, width=size, channels=3) for i in range(views))
    return Shapes(cameras, config.env.frame_stack or 1, ActionSpec(actions, discrete=False))


def make_images(latents: Tensor, views: int, image_shape: tuple[int, int, int]) -> Tensor:
    """Render latent states [N, L] to uint8 views [N, V, C, H, W]: a smooth picture per view that moves with the state.

    Random pixels would make all states equally far apart, which no environment does.
    """
    channels, height, width = image_shape
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(latents.shape[1], views * channels, 4, 4, generator=generator)
    basis = F.interpolate(coarse, size=(height, width), mode="bicubic")  # [L, V * C, H, W]
    pictures = torch.einsum("nl,lchw->nchw", latents, basis).mul_(50).add_(128)
    return pictures.clamp_(0, 255).byte().view(-1, views, *image_shape)


def make_batch(config: RunConfig, shapes: Shapes, bonus: Any, *, first: int = 0) -> Batch:
    """Return a batch of steps `first`, `first` + 1, ... of a random walk of smooth pictures.

    A recurrent representation gets them as sequences of its length.
    """
    rows, views = config.replay.batch_size, len(shapes.views)
    generator = torch.Generator().manual_seed(first)
    latents = torch.rand(rows, 4, generator=generator) * 2 - 1
    next_latents = latents + 0.05 * torch.randn(rows, 4, generator=generator)
    mask = torch.ones(rows, views, dtype=torch.bool)
    distances = None
    if isinstance(bonus, StoresFeatures) and bonus.neighbor_search is not None:
        distances = torch.rand(rows, *bonus.neighbor_search.distances_shape)
    positions = None
    if config.sequence_length is not None:
        time_in_sequence = torch.arange(rows) % config.sequence_length
        positions = torch.stack([time_in_sequence, time_in_sequence + 1], dim=1)
    return Batch(
        views=make_images(latents, views, shapes.image_shape),
        mask=mask,
        action=torch.rand(rows, shapes.actions.size) * 2 - 1,
        reward_ext=torch.rand(rows),
        discount=torch.full((rows,), 0.99),
        next_views=make_images(next_latents, views, shapes.image_shape),
        next_mask=mask.clone(),
        indices=first + torch.arange(rows),
        next_indices=first + torch.arange(rows) + 1,
        neighbor_distances=distances,
        positions=positions,
    )


def make_minibatch(agent: Any, batch: Batch) -> Minibatch:
    """Return the rows of `batch` as a minibatch of a rollout that `agent` collected."""
    action, log_prob, value, _ = agent.act_and_value(batch.views, batch.mask, step=0)
    next_features = None
    if agent.representation.uses_next_features:
        with torch.no_grad():
            next_features = agent.representation.encode(batch.next_views, batch.next_mask)
    return Minibatch(
        views=batch.views,
        mask=batch.mask,
        action=action,
        log_prob=log_prob,
        value=value,
        advantage=batch.reward_ext,
        returns=value + batch.reward_ext,
        next_features=next_features,
        next_views=batch.next_views,
        next_mask=batch.next_mask,
        has_next=torch.ones(len(value), dtype=torch.bool),
    )


class Update:
    """Update of an agent; the calls cycle through a few batches, which also fill the feature bank."""

    def __init__(
        self,
        method: str,
        *,
        pixels: int,
        batch_size: int,
        views: int,
        trunk: str,
        overrides: dict[str, Any] | None = None,
    ) -> None:
        config = make_config(method, pixels=pixels, batch_size=batch_size, trunk=trunk, overrides=overrides)
        shapes = make_shapes(config, views=views)
        self.agent = build_agent(config, shapes)
        self.batches: list[Any] = [
            make_batch(config, shapes, self.agent.bonus, first=i * batch_size) for i in range(NUM_BATCHES)
        ]
        self.arguments: tuple[int, ...] = (0,)  # agent step
        if config.is_on_policy:
            self.batches, self.arguments = [make_minibatch(self.agent, batch) for batch in self.batches], ()
        self.calls = 0
        for _ in range(NUM_BATCHES):
            self()

    @property
    def batch(self) -> Any:
        return self.batches[self.calls % NUM_BATCHES]

    def __call__(self) -> None:
        self.agent.update(self.batch, *self.arguments)
        self.calls += 1


class BareSAC:
    """Networks, optimizer steps and target updates of `sac+mem` alone.

    Forward pass of s, and of s' (without gradient) through encoder and target encoder, from uint8 pixels; actor and
    critics as in SAC; three Adam steps and the soft updates. No augmentation, no LayerNorm of the features, no loss,
    reward or discriminator of MEM, no metrics, no check for non-finite gradients.
    """

    def __init__(self, update: Update) -> None:
        self.agent: SAC = update.agent
        self.update = update

    def __call__(self) -> None:
        agent, batch = self.agent, self.update.batch
        state = self._encode(agent.representation, batch.views)
        with torch.no_grad():
            next_action = self._act(self._encode(agent.representation, batch.next_views))
            next_state = self._encode(agent.target_representation, batch.next_views)
            target = batch.reward_ext + agent.target_critic(next_state, next_action).amin(0)
        agent.critic_optimizer.zero_grad(set_to_none=True)
        (agent.critic(state, batch.action) - target).square().mean().backward()
        agent.critic_optimizer.step()
        state = state.detach()
        agent.actor_optimizer.zero_grad(set_to_none=True)
        with freeze(agent.critic):
            agent.critic(state, self._act(state)).amin(0).mean().backward()
        agent.actor_optimizer.step()
        agent.temperature_optimizer.step()
        if int(agent.updates) % agent.config.target_every_updates == 0:
            soft_update(agent.critic, agent.target_critic, agent.config.critic_tau)
            soft_update(agent.representation, agent.target_representation, agent.config.encoder_tau)
        agent.updates += 1

    def _act(self, state: Tensor) -> Tensor:
        mean, log_std = self.agent.actor(state).chunk(2, dim=1)
        action: Tensor = (mean + log_std.exp()).tanh()
        return action

    @staticmethod
    def _encode(representation: Any, views: Tensor) -> Tensor:
        encoder = representation.encoder
        pixels = views.flatten(0, 1).float().mul_(1 / 255).sub_(0.5)
        features: Tensor = encoder.heads(encoder.trunk(pixels))
        return features.reshape(len(views), -1)[:, : encoder.state_dim]


def print_table(sizes: dict[str, Any], *, rounds: int) -> None:
    """Print a Markdown table of update times against `pixel` and `none`, all of an agent in turns."""
    print("| agent | representation, bonus | ms | against pixel, none |\n|---|---|---|---|")
    for agent, compositions in {"sac": OFF_POLICY | SAC_ONLY, "drqv2": OFF_POLICY, "ppo": ON_POLICY}.items():
        names = {"pixel, none": ("pixel+none", {}), **compositions}
        updates = [Update(f"{agent}+{parts}", **sizes, overrides=overrides) for parts, overrides in names.values()]
        seconds = time_alternating(*updates, rounds=rounds, clock=time.process_time)
        for name, taken in zip(names, seconds, strict=True):
            print(f"| {agent} | {name} | {taken * 1e3:.1f} | {taken / seconds[0]:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pixels", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument("--trunk", default="area")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    sizes = {"pixels": args.pixels, "batch_size": args.batch_size, "views": args.views, "trunk": args.trunk}
    if args.table:
        print_table(sizes, rounds=args.rounds)
        return
    update = Update("sac+mem", **sizes)
    bare = BareSAC(update)
    seconds = time_alternating(update, bare, rounds=args.rounds, clock=time.process_time)
    ratio = measure_ratio(update, bare, rounds=args.rounds)
    print(f"sac+mem {seconds[0] * 1e3:.1f} ms, bare {seconds[1] * 1e3:.1f} ms, ratio of CPU time {ratio:.2f}")


if __name__ == "__main__":
    main()

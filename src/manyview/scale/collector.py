"""An actor: an environment, a copy of the policy, and parcels of what it did."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from manyview.data.pieces import cut_piece
from manyview.data.segments import MOST_STEPS
from manyview.scale.shard import Parcel
from manyview.train import RunConfig, build
from manyview.train.build import Shapes
from manyview.train.clock import Clock
from manyview.train.machine import prepare
from manyview.train.player import Player
from manyview.train.seeds import derived_seed

Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Collected:
    """What a call of `collect` did."""

    episodes: list[dict[str, Any]]
    """Of those that ended: return, steps and frames."""
    seconds: float
    waited_s: float = 0.0
    """After that, for a shard."""


def weights_of(agent: nn.Module) -> dict[str, NDArray[Any]]:
    """What acting needs: the parameters of the representation and of the actor."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in _acting(agent)}


def _acting(agent: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return (pair for pair in agent.named_parameters() if pair[0].startswith(("representation.", "actor.")))


class Collector:
    """Plays with whatever weights it is given. Each of its lives has random numbers of its own."""

    def __init__(self, config: RunConfig, shapes: Shapes, *, actor: int, life: int) -> None:
        config = replace(
            config.alone,
            seed=derived_seed(config.seed, "actor", actor, life),
            replay=replace(config.replay, capacity=MOST_STEPS, folder=None),
            machine=replace(config.machine, device="cpu", threads=1),
        )
        prepare(config.machine)
        self._actor, self._life, self._sent = actor, life, 0
        self._agent = build.agent(config, shapes)
        env, replay = build.environment(config), build.replay(config, shapes)
        self._player = Player(config, env, shapes, self._agent, replay, Clock())
        self._begun = 0
        """The number of the first step of the piece that is being made."""

    def collect(self, weights: Weights, *, step: int, steps: int) -> tuple[Parcel, Collected]:
        """Play so many agent steps, from the run's agent step `step` on: noise falls by it."""
        began_s, player = monotonic(), self._player
        self._take_over(weights)
        player.clock.steps, frames = step, player.clock.frames
        episodes: list[dict[str, Any]] = []
        done, full = 0, self._begun + MOST_STEPS - 2 * player.replay.frame_stack
        while done < steps and player.replay.inserted < full:  # short episodes take more room
            episodes += player.step()
            done += 1
        frames = player.clock.frames - frames
        parcel = Parcel(self._actor, self._life, self._sent, frames, cut_piece(player.replay, self._begun))
        self._sent += 1
        self._begun = player.replay.inserted
        player.replay.begin(player.observation)  # the next piece stands for itself
        return parcel, Collected(episodes, monotonic() - began_s)

    @torch.no_grad()
    def _take_over(self, weights: Weights) -> None:
        own = dict(_acting(self._agent))
        if own.keys() != weights.keys():
            raise ValueError(f"weights of another build: they differ in {sorted(own.keys() ^ weights.keys())[0]}")
        for name, parameter in own.items():
            parameter.copy_(torch.from_numpy(weights[name].copy()))

    def close(self) -> None:
        self._player.env.close()

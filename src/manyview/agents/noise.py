"""Exploration noise that is correlated over agent steps, as a function of counters: there is no state to save."""

import math
from typing import Literal

import torch
from torch import Tensor

from manyview.utils.counter_rng import derive_keys, normal

NoiseColor = Literal["white", "pink"]
NUM_OCTAVES = 10
"""Time scales of pink noise, from 1 to 512 agent steps: an episode of 1,000 frames at an action repeat of 2."""


def sample_pink_noise(seed: int, step: int, num_envs: int, action_dim: int) -> Tensor:
    """Return pink noise [num_envs, action_dim] of agent step `step`, standard normal at every step.

    Its power falls as 1/f (Eberhard et al., 2023, for exploration). It is the sum of one white noise per octave, where
    that of octave k changes every 2^k steps, no two above the first at the same step (Voss and McCartney).
    """
    octave = torch.arange(NUM_OCTAVES)  # [K]
    stream = torch.arange(num_envs * NUM_OCTAVES).view(num_envs, NUM_OCTAVES)  # [E, K]
    interval = ((step + (1 << octave >> 1)) >> octave).expand_as(stream)
    return normal(derive_keys(seed, stream, interval), action_dim).sum(1) / math.sqrt(NUM_OCTAVES)

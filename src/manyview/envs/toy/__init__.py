"""Toy tasks in pure numpy: thousands of steps per second and known optimal returns."""

from manyview.envs.toy.envs import Cue, DeepSea, HiddenGoal, Identity, ToldGoal

__all__ = ["Cue", "DeepSea", "HiddenGoal", "Identity", "ToldGoal"]

"""Toy tasks in pure numpy: thousands of steps per second and known optimal returns."""

from manyview.envs.toy.envs import DeepSea, HiddenGoal, Identity

__all__ = ["DeepSea", "HiddenGoal", "Identity"]

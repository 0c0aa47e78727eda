"""Tasks in numpy alone: thousands of steps a second, with answers that are known."""

from manyview.envs.toy.envs import DeepSea, HiddenGoal, Identity

__all__ = ["DeepSea", "HiddenGoal", "Identity"]

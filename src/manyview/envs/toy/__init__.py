"""Tasks in numpy alone: thousands of steps a second, with answers that are known."""

from manyview.envs.toy.deep_sea import DeepSea
from manyview.envs.toy.hidden_goal import HiddenGoal
from manyview.envs.toy.identity import Identity

__all__ = ["DeepSea", "HiddenGoal", "Identity"]

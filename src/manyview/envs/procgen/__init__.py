"""Procgen through EnvPool: one game, or many in one pool. EnvPool is imported when a task is made."""

from manyview.envs.procgen.game import Procgen
from manyview.envs.procgen.vector import ProcgenVector

__all__ = ["Procgen", "ProcgenVector"]

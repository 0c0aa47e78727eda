"""Procgen through EnvPool: one game, or many in one pool. EnvPool is imported when a task is made."""

from manyview.envs.procgen.env import Procgen, ProcgenVector

__all__ = ["Procgen", "ProcgenVector"]

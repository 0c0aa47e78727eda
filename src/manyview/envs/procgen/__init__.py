"""Procgen through EnvPool, which is imported when a task is made."""

from manyview.envs.procgen.env import Procgen, ProcgenVector

__all__ = ["Procgen", "ProcgenVector"]

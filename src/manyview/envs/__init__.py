"""Environments whose observation is a dict of named views. Nothing here imports torch, and no simulator before use."""

from manyview.envs.boundary import ContractError
from manyview.envs.make import make, make_vector, tasks, wrap
from manyview.envs.suite import Settings, Task
from manyview.envs.views import MASK, MultiViewEnv, NotRestorable, View, restore, snapshot, views_of

__all__ = [
    "MASK",
    "ContractError",
    "MultiViewEnv",
    "NotRestorable",
    "Settings",
    "Task",
    "View",
    "make",
    "make_vector",
    "restore",
    "snapshot",
    "tasks",
    "views_of",
    "wrap",
]

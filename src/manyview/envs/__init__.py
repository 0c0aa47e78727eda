"""Environments whose observation is a dict of named views. Nothing here imports torch, and no simulator before use."""

from manyview.envs.drawing import Orbit
from manyview.envs.layers.boundary import ContractError
from manyview.envs.layers.faults import Fault, Faults
from manyview.envs.layers.sanity import Sanity
from manyview.envs.make import make, make_vector, tasks, wrap
from manyview.envs.own.multiview import MultiView
from manyview.envs.own.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.suite import Settings, Task
from manyview.envs.views import MASK, MultiViewEnv, NotRestorable, View, ViewWarning, restore, snapshot, views_of

__all__ = [
    "MASK",
    "Camera",
    "ContractError",
    "Fault",
    "Faults",
    "FromObservation",
    "MujocoCamera",
    "MultiView",
    "MultiViewEnv",
    "NotRestorable",
    "Orbit",
    "Sanity",
    "Settings",
    "Task",
    "View",
    "ViewWarning",
    "make",
    "make_vector",
    "restore",
    "snapshot",
    "tasks",
    "views_of",
    "wrap",
]

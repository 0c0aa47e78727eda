"""Environments whose observation is a dict of named views. Nothing here imports torch, and no simulator before use."""

from manyview.envs.drawing import Orbit
from manyview.envs.layers.boundary import ContractError
from manyview.envs.layers.faults import Fault, FaultInjector
from manyview.envs.layers.sanity import SanityCheck
from manyview.envs.make import list_tasks, make, make_vector, wrap
from manyview.envs.own.multiview import MultiView
from manyview.envs.own.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.suite import Task, TaskSettings
from manyview.envs.views import MASK, MultiViewEnv, NotRestorable, View, ViewWarning, get_views, restore, snapshot

__all__ = [
    "MASK",
    "Camera",
    "ContractError",
    "Fault",
    "FaultInjector",
    "FromObservation",
    "MujocoCamera",
    "MultiView",
    "MultiViewEnv",
    "NotRestorable",
    "Orbit",
    "SanityCheck",
    "Task",
    "TaskSettings",
    "View",
    "ViewWarning",
    "get_views",
    "list_tasks",
    "make",
    "make_vector",
    "restore",
    "snapshot",
    "wrap",
]

"""Gymnasium environments whose observation is a dict of named views and state vectors.

This package never imports torch, and imports a simulator only when one of its tasks is made.
"""

from manyview.envs.cameras.multiview import MultiView
from manyview.envs.cameras.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.contract import ContractError
from manyview.envs.registration import list_tasks, make, make_vector, wrap
from manyview.envs.rendering.mujoco import Orbit
from manyview.envs.suite import Suite, Task, TaskSettings
from manyview.envs.views import (
    MASK,
    MultiViewEnv,
    NotRestorable,
    StateVector,
    View,
    ViewWarning,
    get_state_vectors,
    get_views,
    restore,
    snapshot,
)
from manyview.envs.wrappers.faults import Fault, FaultInjector
from manyview.envs.wrappers.sanity import SanityCheck

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
    "StateVector",
    "Suite",
    "Task",
    "TaskSettings",
    "View",
    "ViewWarning",
    "get_state_vectors",
    "get_views",
    "list_tasks",
    "make",
    "make_vector",
    "restore",
    "snapshot",
    "wrap",
]

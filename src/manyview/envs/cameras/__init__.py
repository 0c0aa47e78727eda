"""Named views for any Gymnasium environment: `MultiView` and the sources of its views."""

from manyview.envs.cameras.multiview import MultiView
from manyview.envs.cameras.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.rendering.mujoco import Orbit

__all__ = ["Camera", "FromObservation", "MujocoCamera", "MultiView", "Orbit"]

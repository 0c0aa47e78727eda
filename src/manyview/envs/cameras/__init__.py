"""Environments of one's own: `MultiView`, and what its views may come from."""

from manyview.envs.cameras.multiview import MultiView
from manyview.envs.cameras.sources import Camera, FromObservation, MujocoCamera
from manyview.envs.rendering.mujoco import Orbit

__all__ = ["Camera", "FromObservation", "MujocoCamera", "MultiView", "Orbit"]

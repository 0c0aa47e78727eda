"""Environments of one's own: `MultiView`, and what its views may come from."""

from manyview.envs.drawing import Orbit
from manyview.envs.own.multiview import MultiView
from manyview.envs.own.sources import Camera, FromObservation, MujocoCamera

__all__ = ["Camera", "FromObservation", "MujocoCamera", "MultiView", "Orbit"]

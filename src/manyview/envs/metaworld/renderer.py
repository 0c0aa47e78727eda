"""Draws the cameras of a simulation, in one of two qualities."""

from typing import Any

import mujoco
import numpy as np

from manyview.envs.suite import Quality
from manyview.envs.views import Image

UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4")
"""These cameras hang head down. Their pictures are turned by half a turn; a flip alone would mirror the scene."""


class Renderer:
    """One kept GL context and scene for all cameras.

    `standard` gives exactly the pixels of MuJoCo's own renderer. `fast` has no shadows, reflections and multisampling
    and rounds its bodies less finely.
    """

    def __init__(self, model: Any, data: Any, *, image_size: int, quality: Quality) -> None:
        self._data = data
        if quality == "fast":
            visual = model.vis
            visual.quality.offsamples = 0
            visual.quality.numslices, visual.quality.numstacks, visual.quality.numquads = 12, 8, 2
        self._renderer = mujoco.Renderer(model, image_size, image_size)
        if quality == "fast":
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._renderer.scene.flags[flag] = 0

    def draw(self, camera: str) -> Image:
        self._renderer.update_scene(self._data, camera)
        picture: Image = self._renderer.render()
        return np.ascontiguousarray(picture[::-1, ::-1]) if camera in UPSIDE_DOWN else picture

    def close(self) -> None:
        self._renderer.close()

"""Draws the cameras of a simulation, in one of two qualities."""

import atexit
from functools import cache
from typing import Any
from weakref import WeakSet

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
        _open.add(self)
        _close_open_ones_at_exit()

    def draw(self, camera: str) -> Image:
        self._renderer.update_scene(self._data, camera)
        picture: Image = self._renderer.render()
        return np.ascontiguousarray(picture[::-1, ::-1]) if camera in UPSIDE_DOWN else picture

    def close(self) -> None:
        self._renderer.close()


_open: WeakSet[Renderer] = WeakSet()


@cache
def _close_open_ones_at_exit() -> None:
    """Called once, with the first context: mujoco ends EGL when the process exits, and what is freed later complains.

    What is registered last goes first, and mujoco registers with its first context.
    """
    atexit.register(_close_open_ones)


def _close_open_ones() -> None:
    for renderer in list(_open):
        renderer.close()

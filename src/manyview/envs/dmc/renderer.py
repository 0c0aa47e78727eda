"""Draws the views of a dm_control physics, in one of two qualities."""

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from dm_control.mujoco.wrapper import MjvOption, MjvScene
from numpy.typing import NDArray

from manyview.envs.foreground import remove_background
from manyview.envs.gl import set_quality
from manyview.envs.simulated import Drawn
from manyview.envs.suite import Quality
from manyview.envs.views import Image, View

SHADOW, REFLECTION = mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION
SEGMENT, IDCOLOR = mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR


class Renderer:
    """The kept scene, buffers and GL context of one physics.

    `standard` gives exactly the pixels of dm_control's `physics.render`. `fast` has no shadows, reflections and
    multisampling and rounds its bodies less finely.
    """

    def __init__(self, physics: Any, views: Sequence[View], *, quality: Quality) -> None:
        self._views, self._physics = views, physics
        self._model, self._data = physics.model.ptr, physics.data.ptr
        size = max(max(view.height, view.width) for view in views)
        set_quality(physics.model.vis, quality, size)
        self._contexts = physics.contexts  # made here, with the settings above
        self._scene, self._option = MjvScene(model=physics.model), MjvOption()
        if quality == "fast":
            self._scene.flags[SHADOW] = self._scene.flags[REFLECTION] = 0
        self._perturb = mujoco.MjvPerturb()
        self._perturb.active = self._perturb.select = 0
        self._cameras = {view.name: self._camera(view) for view in views if view.foreground_of is None}
        self._planes: list[int] = []
        """Where in the scene the planes are."""

    def _camera(self, view: View) -> mujoco.MjvCamera:
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        camera.fixedcamid = self._physics.model.name2id(view.name, "camera")
        return camera

    def draw(self) -> Drawn:
        pictures: dict[str, Image | None] = dict.fromkeys(view.name for view in self._views)
        failures: dict[str, Exception] = {}
        for view in self._views:
            if view.foreground_of is None:
                try:
                    with self._contexts.gl.make_current() as gl:
                        pictures |= gl.call(self._draw_camera, view)
                except Exception as error:
                    failures[view.name] = error
        return Drawn(pictures, failures)

    def close(self) -> None:
        """Free the GL context; dm_control makes another when it is asked for one."""
        self._physics._free_rendering_contexts()

    def _draw_camera(self, view: View) -> dict[str, Image | None]:
        """The picture of a camera, and of the views derived from it."""
        camera, everything = self._cameras[view.name], mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, self._data, self._option, self._perturb, camera, everything, self._scene)
        picture = self._pixels(view)
        pictures: dict[str, Image | None] = {view.name: picture}
        for other in self._views:
            if other.foreground_of == view.name:
                pictures[other.name] = remove_background(picture, self._foreground(view), other.fill)
        return pictures

    def _pixels(self, view: View) -> Image:
        rect = mujoco.MjrRect(0, 0, view.width, view.height)
        pixels = np.empty(view.shape, np.uint8)
        mujoco.mjr_render(rect, self._scene, self._contexts.mujoco.ptr)
        mujoco.mjr_readPixels(pixels, None, rect, self._contexts.mujoco.ptr)
        return pixels[::-1]  # GL begins at the bottom

    def _foreground(self, view: View) -> NDArray[np.bool_]:
        """Everything but the planes (floors, walls and backdrops are planes) and what no object covers."""
        self._scene.flags[SEGMENT] = self._scene.flags[IDCOLOR] = 1
        try:
            pixels = self._pixels(view)
        finally:
            self._scene.flags[SEGMENT] = self._scene.flags[IDCOLOR] = 0
        # A pixel is the number of the object in the scene, counted from 1; 0 is nothing.
        shown = np.ones(self._scene.ngeom + 1, np.bool_)
        shown[0] = False
        geoms = self._scene.geoms
        for index in self._plane_places(geoms):
            shown[geoms[index].segid + 1] = False
        if len(shown) <= 256:
            return shown[pixels[..., 0]]
        return shown[pixels.astype(np.uint32) @ np.array([1, 2**8, 2**16], np.uint32)]

    def _plane_places(self, geoms: Any) -> list[int]:
        # Reading every geom of the scene costs as much as drawing it, and planes keep their places.
        if not self._planes or not all(i < len(geoms) and self._is_plane(geoms[i]) for i in self._planes):
            self._planes = [index for index, geom in enumerate(geoms) if self._is_plane(geom)]
        return self._planes

    @staticmethod
    def _is_plane(geom: Any) -> bool:
        return bool(geom.type == mujoco.mjtGeom.mjGEOM_PLANE)

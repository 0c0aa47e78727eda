"""Renderer of MuJoCo models that does not disturb other renderers in the process.

OpenGL renders into, and deletes from, the current context of a thread. Other users of MuJoCo rely on their context
staying current (dm_control), or delete from a foreign one (`mujoco.Renderer.close` releases its context first and then
deletes its objects from the current one). So `MujocoRenderer` makes its context current only while it renders and
restores the previous one afterwards. It can be used from any thread.
"""

import atexit
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.envs.foreground import remove_background
from manyview.envs.rendering.gl import (
    get_context_class,
    override_render_quality,
    preserve_current_context,
)
from manyview.envs.suite import DEFAULT_RENDER_SCALES, RenderQuality
from manyview.envs.views import Image, View

ImageShape = tuple[int, int, int]
"""Height, width and channels."""
ModelDataFn = Callable[[], tuple[Any, Any]]
"""Returns the current model and data, which some environments replace at a reset."""
MAX_GEOMS = 2_000
"""Maximum number of geoms in a scene."""


@dataclass(frozen=True)
class Orbit:
    """An additional camera that follows a body from a fixed direction. Angles are in degrees."""

    body: str
    distance: float
    """Distance to the body in the model's unit of length."""
    azimuth: float = 90.0
    """Direction around the body: 0 looks along the x axis, 90 along the y axis."""
    elevation: float = -20.0
    """Vertical angle; negative looks down."""


class RenderedViews(NamedTuple):
    """An image per view, None if its camera failed, and the exception of each failed camera."""

    images: dict[str, Image | None]
    failures: dict[str, Exception]


class MujocoRenderer:
    """Renders all cameras of an environment in one OpenGL context.

    Images have any size up to `max_size` pixels per side. They are rendered `scale` times larger and area-averaged, so
    that thin objects stay visible; None is the scale of the quality. After an error in the context, the next image is
    rendered in a new one. `added_cameras` are cameras by name that the model does not have.
    """

    def __init__(
        self,
        get_model_data: ModelDataFn,
        *,
        max_size: int,
        quality: RenderQuality,
        scale: int | None = None,
        rangefinders: bool = True,
        added_cameras: Mapping[str, Orbit] | None = None,
    ) -> None:
        self._get_model_data = get_model_data
        scale = scale or DEFAULT_RENDER_SCALES[quality]
        self._renderer = _GLRenderer(max_size, quality, scale, rangefinders, added_cameras or {})
        self._finalizer = weakref.finalize(self, self._renderer.free)
        try:
            self._renderer.prepare(get_model_data()[0])
        except Exception as error:
            self._finalizer()
            raise RuntimeError(
                f"MuJoCo cannot render here ({error}). Set MUJOCO_GL to egl or osmesa before Python starts, and "
                "install the driver (apt-get install libegl1 libgl1). `manyview doctor` prints details."
            ) from error
        # Must run before MuJoCo terminates EGL: exit handlers run in reverse, and MuJoCo's is registered.
        self._finalizer.atexit = False
        atexit.register(self._finalizer)

    def render(self, camera: str | int | Orbit, shape: ImageShape) -> Image:
        """Render one camera as an image of `shape`."""
        model, data = self._require_model_data()
        with preserve_current_context():
            return self._renderer.render(model, data, camera, shape)

    def render_views(self, views: Sequence[View]) -> RenderedViews:
        """Render every view with the camera of its name, and the views derived from it."""
        model, data = self._require_model_data()
        with preserve_current_context():
            return self._renderer.render_views(model, data, views)

    def _require_model_data(self) -> tuple[Any, Any]:
        if not self._finalizer.alive:
            raise RuntimeError("the renderer is closed: its environment was closed before this call")
        return self._get_model_data()

    @property
    def driver(self) -> str:
        """OpenGL's name of the renderer."""
        return self._renderer.get_driver()

    def close(self) -> None:
        """Free the OpenGL context."""
        self._finalizer()
        atexit.unregister(self._finalizer)


def resolve_camera(model: Any, camera: str | int | Orbit) -> Any:
    """Return MuJoCo's camera for a name, number or orbit.

    Raises `ValueError` if the model has no such camera or body.
    """
    import mujoco

    mjv_camera = mujoco.MjvCamera()
    if isinstance(camera, Orbit):
        body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, camera.body)
        if body == -1:
            raise ValueError(
                f"unknown body of an Orbit: expected one of {_list_names(model.body, model.nbody)}, got {camera.body!r}"
            )
        mjv_camera.type, mjv_camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, body
        mjv_camera.distance, mjv_camera.azimuth, mjv_camera.elevation = (
            camera.distance,
            camera.azimuth,
            camera.elevation,
        )
        mjv_camera.lookat[:] = model.body(body).pos
        return mjv_camera
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera) if isinstance(camera, str) else camera
    if not 0 <= number < model.ncam:
        raise ValueError(
            f"unknown camera: expected one of {_list_names(model.camera, model.ncam)}, got {camera!r}. "
            f"To add a camera use an Orbit around a body: MujocoCamera(Orbit({model.body(1).name!r}, distance=3))"
        )
    mjv_camera.type, mjv_camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, number
    return mjv_camera


class _GLRenderer:
    """OpenGL state of `MujocoRenderer`, without a reference back to it."""

    def __init__(
        self, max_size: int, quality: RenderQuality, scale: int, rangefinders: bool, added_cameras: Mapping[str, Orbit]
    ) -> None:
        self._quality, self._scale, self._rangefinders = quality, scale, rangefinders
        self._added_cameras = dict[str | int | Orbit, Orbit](added_cameras.items())
        self._max_size = max_size * scale
        self._model: Any = None
        self._gl_context: Any = None
        self._mjr_context: Any = None
        self._scene: Any = None
        self._option: Any = None
        self._cameras: dict[str | int | Orbit, Any] = {}
        self._terrain = b""
        self._plane_indices: list[int] = []
        """Indices of the planes in the scene."""

    def prepare(self, model: Any) -> None:
        import mujoco

        self.free()
        with preserve_current_context():
            self._gl_context = get_context_class()(self._max_size, self._max_size)
            self._gl_context.make_current()
            self._create_context(model, mujoco)

    def _create_context(self, model: Any, mujoco: Any) -> None:
        with override_render_quality(model.vis, self._quality, self._max_size):
            self._mjr_context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._mjr_context)
        self._scene, self._option = mujoco.MjvScene(model, MAX_GEOMS), mujoco.MjvOption()
        self._option.flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER] = self._rangefinders
        if self._quality != "standard":
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._model, self._plane_indices, self._cameras = model, [], {}
        self._terrain = b""

    def render_views(self, model: Any, data: Any, views: Sequence[View]) -> RenderedViews:
        images: dict[str, Image | None] = dict.fromkeys(view.name for view in views)
        failures: dict[str, Exception] = {}
        for view in views:
            if view.derived_from is None:
                try:
                    images |= self._render_with_derived(model, data, view, views)
                except Exception as error:  # drivers raise many types
                    failures[view.name] = error
        return RenderedViews(images, failures)

    def _render_with_derived(self, model: Any, data: Any, view: View, views: Sequence[View]) -> dict[str, Image]:
        """Return the image of a camera and those of the views derived from it."""
        image = self.render(model, data, view.name, view.shape)
        derived = [other for other in views if other.derived_from == view.name]
        derived_images = {
            other.name: remove_background(image, self._render_foreground_mask(view.shape), other.fill)
            for other in derived
        }
        return {view.name: image, **derived_images}

    def render(self, model: Any, data: Any, camera: str | int | Orbit, shape: ImageShape) -> Image:
        import mujoco

        if model is not self._model:
            self.prepare(model)
        try:
            self._gl_context.make_current()
            if model.nhfield:
                self._upload_terrain(model)
            if camera not in self._cameras:
                self._cameras[camera] = resolve_camera(model, self._added_cameras.get(camera, camera))
            mjv_camera, categories = self._cameras[camera], mujoco.mjtCatBit.mjCAT_ALL
            mujoco.mjv_updateScene(model, data, self._option, None, mjv_camera, categories, self._scene)
            return _average_blocks(self._read_pixels(shape), self._scale)
        except Exception:
            self._model = None  # render the next image in a new context
            raise

    def _upload_terrain(self, model: Any) -> None:
        """Upload changed height fields, which tasks may replace at a reset."""
        import mujoco

        terrain = model.hfield_data.tobytes()
        if terrain != self._terrain:
            for number in range(model.nhfield):
                mujoco.mjr_uploadHField(model, self._mjr_context, number)
            self._terrain = terrain

    def _read_pixels(self, shape: ImageShape) -> Image:
        """Render the scene, at `shape` times the scale."""
        import mujoco

        height, width, channels = shape
        height, width = height * self._scale, width * self._scale
        rectangle = mujoco.MjrRect(0, 0, width, height)
        pixels = np.empty((height, width, channels), np.uint8)
        mujoco.mjr_render(rectangle, self._scene, self._mjr_context)
        mujoco.mjr_readPixels(pixels, None, rectangle, self._mjr_context)
        return pixels[::-1]  # OpenGL starts at the bottom row

    def _render_foreground_mask(self, shape: ImageShape) -> NDArray[np.bool_]:
        """Return the foreground mask [H, W] of the current scene.

        The background is planes (floors, walls, backdrops) and pixels without an object. An image pixel is foreground
        if any of its rendered pixels is.
        """
        import mujoco

        flags = self._scene.flags
        segments = (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR)
        for flag in segments:
            flags[flag] = True
        try:
            pixels = self._read_pixels(shape)
        finally:
            for flag in segments:
                flags[flag] = False
        # A pixel holds the index of its object in the scene plus 1; 0 is no object.
        count = self._scene.ngeom
        is_foreground = np.ones(count + 1, np.bool_)
        is_foreground[0] = False
        geoms = self._scene.geoms
        for index in self._find_planes(geoms, count):
            is_foreground[geoms[index].segid + 1] = False
        if len(is_foreground) <= 256:
            mask = is_foreground[pixels[..., 0]]
        else:
            mask = is_foreground[pixels.astype(np.uint32) @ np.array([1, 2**8, 2**16], np.uint32)]
        return _reduce_blocks(mask, self._scale, np.logical_or)

    def _find_planes(self, geoms: Any, count: int) -> list[int]:
        import mujoco

        plane = mujoco.mjtGeom.mjGEOM_PLANE
        # Reading every geom of the scene costs as much as rendering it, and planes keep their indices.
        if not self._plane_indices or not all(
            index < count and geoms[index].type == plane for index in self._plane_indices
        ):
            self._plane_indices = [index for index in range(count) if geoms[index].type == plane]
        return self._plane_indices

    def get_driver(self) -> str:
        from OpenGL import GL

        with preserve_current_context():
            self._gl_context.make_current()
            return str(GL.glGetString(GL.GL_RENDERER).decode())

    def free(self) -> None:
        if self._gl_context is not None:
            with preserve_current_context():
                if self._mjr_context is not None:
                    with suppress(Exception):  # a lost context has nothing to free
                        self._gl_context.make_current()
                    self._mjr_context.free()
                self._gl_context.free()
        self._model = self._gl_context = self._mjr_context = None


def _list_names(get_element: Callable[[int], Any], count: int) -> str:
    return ", ".join(f"{number} {get_element(number).name!r}" for number in range(count)) or "none"


def _average_blocks(image: Image, scale: int) -> Image:
    if scale == 1:
        return image
    # Adding half of the divisor rounds to the nearest integer.
    total = _reduce_blocks(image.astype(np.uint16), scale, np.add)
    return np.asarray((total + scale**2 // 2) // scale**2, np.uint8)


def _reduce_blocks(pixels: NDArray[Any], scale: int, operation: Callable[..., Any]) -> NDArray[Any]:
    """Reduce each block of `scale` x `scale` pixels [H, W, ...] to one."""
    # Over strided slices: 10 to 20 times as fast as a sum over two axes of blocks.
    rows = reduce(operation, (pixels[start::scale] for start in range(scale)))
    columns: NDArray[Any] = reduce(operation, (rows[:, start::scale] for start in range(scale)))
    return columns

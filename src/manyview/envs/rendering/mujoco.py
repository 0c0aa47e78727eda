"""Draws a MuJoCo model through any of its cameras, without disturbing others who draw in this process.

OpenGL draws into, and deletes from, whatever context is current in a thread. Other users of MuJoCo rely on theirs still
being current (dm_control), or delete from somebody else's (`mujoco.Renderer.close` lets go of its context first, and
then deletes its objects from whichever is current). So a drawing takes its context while it draws, and afterwards gives
the thread back as it found it. It may be used from any thread.
"""

import atexit
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.envs.foreground import remove_background
from manyview.envs.rendering.gl import (
    get_context_class,
    override_render_quality,
    preserve_current_context,
)
from manyview.envs.suite import RenderQuality
from manyview.envs.views import Image, View

ImageShape = tuple[int, int, int]
"""Height, width and channels."""
ModelDataFn = Callable[[], tuple[Any, Any]]
"""The model and the data as they are now: some environments replace them at a reset."""
MAX_GEOMS = 2_000
SUPERSAMPLING = 2
"""How many times larger `smooth` pictures are drawn before they are averaged: thin things do not get lost."""


@dataclass(frozen=True)
class Orbit:
    """A camera that the model does not have: it follows a body from one direction. Angles are in degrees."""

    body: str
    distance: float
    """In the model's unit of length."""
    azimuth: float = 90.0
    """From where around the body: 0 looks along the x axis, 90 along the y axis."""
    elevation: float = -20.0
    """Negative looks down."""


class RenderedViews(NamedTuple):
    """A picture per view, None where its camera failed, and why each camera failed."""

    images: dict[str, Image | None]
    failures: dict[str, Exception]


class MujocoRenderer:
    """One context for all cameras of an environment, of whatever size.

    A context that has failed is replaced when the next picture is drawn.
    """

    def __init__(
        self, get_model_data: ModelDataFn, *, max_size: int, quality: RenderQuality, rangefinders: bool = True
    ) -> None:
        self._get_model_data = get_model_data
        self._renderer = _GLRenderer(max_size, quality, rangefinders)
        self._finalizer = weakref.finalize(self, self._renderer.free)
        try:
            self._renderer.prepare(get_model_data()[0])
        except Exception as error:
            self._finalizer()
            raise RuntimeError(
                f"MuJoCo cannot draw here ({error}): set MUJOCO_GL to egl or osmesa before Python starts, and install "
                "the driver (apt-get install libegl1 libgl1); `manyview doctor` says more"
            ) from error
        # Before MuJoCo's own farewell to EGL: the last to register goes first, and it has just registered.
        self._finalizer.atexit = False
        atexit.register(self._finalizer)

    def render(self, camera: str | int | Orbit, shape: ImageShape) -> Image:
        model, data = self._require_model_data()
        with preserve_current_context():
            return self._renderer.render(model, data, camera, shape)

    def render_views(self, views: Sequence[View]) -> RenderedViews:
        """Every view by the camera of its name, and what is derived from it, in one go."""
        model, data = self._require_model_data()
        with preserve_current_context():
            return self._renderer.render_views(model, data, views)

    def _require_model_data(self) -> tuple[Any, Any]:
        if not self._finalizer.alive:
            raise RuntimeError("the environment is closed, and draws no more")
        return self._get_model_data()

    @property
    def driver(self) -> str:
        """What OpenGL calls the thing that draws."""
        return self._renderer.get_driver()

    def close(self) -> None:
        self._finalizer()
        atexit.unregister(self._finalizer)


class _GLRenderer:
    """Everything of OpenGL."""

    def __init__(self, max_size: int, quality: RenderQuality, rangefinders: bool) -> None:
        self._quality, self._rangefinders = quality, rangefinders
        self._supersampling = SUPERSAMPLING if quality == "smooth" else 1
        self._max_size = max_size * self._supersampling
        self._model: Any = None
        self._gl_context: Any = None
        self._mjr_context: Any = None
        self._scene: Any = None
        self._option: Any = None
        self._cameras: dict[str | int | Orbit, Any] = {}
        self._terrain = b""
        self._plane_indices: list[int] = []
        """Where in the scene the planes are."""

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
                except Exception as error:  # whatever the driver makes of it
                    failures[view.name] = error
        return RenderedViews(images, failures)

    def _render_with_derived(self, model: Any, data: Any, view: View, views: Sequence[View]) -> dict[str, Image]:
        """The picture of a camera, and those of the views derived from it."""
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
                self._cameras[camera] = resolve_camera(model, camera)
            mjv_camera, categories = self._cameras[camera], mujoco.mjtCatBit.mjCAT_ALL
            mujoco.mjv_updateScene(model, data, self._option, None, mjv_camera, categories, self._scene)
            return _average_blocks(self._read_pixels(shape), self._supersampling)
        except Exception:
            self._model = None  # whatever is wrong with the context, the next picture gets another
            raise

    def _upload_terrain(self, model: Any) -> None:
        """A task may shape the ground anew at a reset; the context has only what it was when it was made."""
        import mujoco

        terrain = model.hfield_data.tobytes()
        if terrain != self._terrain:
            for number in range(model.nhfield):
                mujoco.mjr_uploadHField(model, self._mjr_context, number)
            self._terrain = terrain

    def _read_pixels(self, shape: ImageShape) -> Image:
        """As drawn, which is larger than `shape` if it has to be finer."""
        import mujoco

        height, width, channels = shape
        height, width = height * self._supersampling, width * self._supersampling
        rectangle = mujoco.MjrRect(0, 0, width, height)
        pixels = np.empty((height, width, channels), np.uint8)
        mujoco.mjr_render(rectangle, self._scene, self._mjr_context)
        mujoco.mjr_readPixels(pixels, None, rectangle, self._mjr_context)
        return pixels[::-1]  # GL begins at the bottom

    def _render_foreground_mask(self, shape: ImageShape) -> NDArray[np.bool_]:
        """Of the scene just painted: all but the planes (floors, walls, backdrops) and what no object covers."""
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
        # A pixel is the number of the object in the scene, counted from 1; 0 is nothing.
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
        return np.asarray(
            mask if self._supersampling == 1 else _split_blocks(mask, self._supersampling).any((1, 3)), np.bool_
        )

    def _find_planes(self, geoms: Any, count: int) -> list[int]:
        import mujoco

        plane = mujoco.mjtGeom.mjGEOM_PLANE
        # Reading every geom of the scene costs as much as drawing it, and planes keep their places.
        if not self._plane_indices or not all(
            place < count and geoms[place].type == plane for place in self._plane_indices
        ):
            self._plane_indices = [place for place in range(count) if geoms[place].type == plane]
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
                    with suppress(Exception):  # a context that is lost has nothing to free
                        self._gl_context.make_current()
                    self._mjr_context.free()
                self._gl_context.free()
        self._model = self._gl_context = self._mjr_context = None


def resolve_camera(model: Any, camera: str | int | Orbit) -> Any:
    """MuJoCo's camera of this name, number or orbit; `ValueError` with what there is otherwise."""
    import mujoco

    mjv_camera = mujoco.MjvCamera()
    if isinstance(camera, Orbit):
        body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, camera.body)
        if body == -1:
            raise ValueError(f"no body {camera.body!r} to follow; there are {_list_names(model.body, model.nbody)}")
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
            f"no camera {camera!r}; there are {_list_names(model.camera, model.ncam)}. "
            f"An Orbit around a body is one more: MujocoCamera(Orbit({model.body(1).name!r}, distance=3))"
        )
    mjv_camera.type, mjv_camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, number
    return mjv_camera


def _list_names(get_element: Callable[[int], Any], count: int) -> str:
    return ", ".join(f"{number} {get_element(number).name!r}" for number in range(count)) or "none"


def _average_blocks(image: Image, factor: int) -> Image:
    if factor == 1:
        return image
    # Half a unit before cutting off: rounded, as the mean of whole numbers.
    total = _split_blocks(image, factor).sum((1, 3), dtype=np.uint16)
    return np.asarray((total + factor**2 // 2) // factor**2, np.uint8)


def _split_blocks(image: NDArray[Any], factor: int) -> NDArray[Any]:
    """[H, finer, W, finer, ...]"""
    height, width = image.shape[:2]
    return image.reshape(height // factor, factor, width // factor, factor, *image.shape[2:])

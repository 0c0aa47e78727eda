"""Draws a MuJoCo model through any of its cameras, without disturbing others who draw in this process.

OpenGL draws into, and deletes from, whatever context is current in a thread. Other users of MuJoCo rely on theirs still
being current (dm_control), or delete from somebody else's (`mujoco.Renderer.close` lets go of its context first, and
then deletes its objects from whichever is current). So a drawing takes its context while it draws, and afterwards gives
the thread back as it found it. It may be used from any thread.
"""

import atexit
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyview.envs.foreground import remove_background
from manyview.envs.gl import prepare_headless_gl, temporary_quality
from manyview.envs.suite import Quality
from manyview.envs.views import Image, View

Shape = tuple[int, int, int]
"""Height, width and channels."""
World = Callable[[], tuple[Any, Any]]
"""The model and the data as they are now: some environments replace them at a reset."""
MAX_GEOMS = 2_000
SMOOTH = 2
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


class Drawn(NamedTuple):
    """A picture per view, None where its camera failed, and why each camera failed."""

    pictures: dict[str, Image | None]
    failures: dict[str, Exception]


class Drawing:
    """One context for all cameras of an environment, of whatever size.

    A context that has failed is replaced when the next picture is drawn.
    """

    def __init__(self, world: World, *, largest: int, quality: Quality, rangefinders: bool = True) -> None:
        self._world = world
        self._painter = _Painter(largest, quality, rangefinders)
        self._end = weakref.finalize(self, self._painter.free)
        try:
            self._painter.prepare(world()[0])
        except Exception as error:
            self._end()
            raise RuntimeError(
                f"MuJoCo cannot draw here ({error}): set MUJOCO_GL to egl or osmesa before Python starts, and install "
                "the driver (apt-get install libegl1 libgl1); `manyview doctor` says more"
            ) from error
        # Before MuJoCo's own farewell to EGL: the last to register goes first, and it has just registered.
        self._end.atexit = False
        atexit.register(self._end)

    def draw(self, camera: str | int | Orbit, shape: Shape) -> Image:
        model, data = self._open_world()
        with _thread_given_back():
            return self._painter.paint(model, data, camera, shape)

    def draw_views(self, views: Sequence[View]) -> Drawn:
        """Every view by the camera of its name, and what is derived from it, in one go."""
        model, data = self._open_world()
        with _thread_given_back():
            return self._painter.paint_views(model, data, views)

    def _open_world(self) -> tuple[Any, Any]:
        if not self._end.alive:
            raise RuntimeError("the environment is closed, and draws no more")
        return self._world()

    @property
    def driver(self) -> str:
        """What OpenGL calls the thing that draws."""
        return self._painter.driver()

    def close(self) -> None:
        self._end()
        atexit.unregister(self._end)


class _Painter:
    """Everything of OpenGL."""

    def __init__(self, largest: int, quality: Quality, rangefinders: bool) -> None:
        self._quality, self._rangefinders = quality, rangefinders
        self._finer = SMOOTH if quality == "smooth" else 1
        self._largest = largest * self._finer
        self._model: Any = None
        self._gl: Any = None
        self._context: Any = None
        self._scene: Any = None
        self._option: Any = None
        self._cameras: dict[str | int | Orbit, Any] = {}
        self._terrain = b""
        self._planes: list[int] = []
        """Where in the scene the planes are."""

    def prepare(self, model: Any) -> None:
        import mujoco

        self.free()
        with _thread_given_back():
            self._gl = _context_class()(self._largest, self._largest)
            self._gl.make_current()
            self._prepare(model, mujoco)

    def _prepare(self, model: Any, mujoco: Any) -> None:
        with temporary_quality(model.vis, self._quality, self._largest):
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene, self._option = mujoco.MjvScene(model, MAX_GEOMS), mujoco.MjvOption()
        self._option.flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER] = self._rangefinders
        if self._quality != "standard":
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._model, self._planes, self._cameras = model, [], {}
        self._terrain = b""

    def paint_views(self, model: Any, data: Any, views: Sequence[View]) -> Drawn:
        pictures: dict[str, Image | None] = dict.fromkeys(view.name for view in views)
        failures: dict[str, Exception] = {}
        for view in views:
            if view.derived_from is None:
                try:
                    pictures |= self._paint_family(model, data, view, views)
                except Exception as error:  # whatever the driver makes of it
                    failures[view.name] = error
        return Drawn(pictures, failures)

    def _paint_family(self, model: Any, data: Any, view: View, views: Sequence[View]) -> dict[str, Image]:
        """The picture of a camera, and those of the views derived from it."""
        picture = self.paint(model, data, view.name, view.shape)
        derived = [other for other in views if other.derived_from == view.name]
        cut = {other.name: remove_background(picture, self._foreground(view.shape), other.fill) for other in derived}
        return {view.name: picture, **cut}

    def paint(self, model: Any, data: Any, camera: str | int | Orbit, shape: Shape) -> Image:
        import mujoco

        if model is not self._model:
            self.prepare(model)
        try:
            self._gl.make_current()
            if model.nhfield:
                self._renew_terrain(model)
            if camera not in self._cameras:
                self._cameras[camera] = camera_of(model, camera)
            seen_by, everything = self._cameras[camera], mujoco.mjtCatBit.mjCAT_ALL
            mujoco.mjv_updateScene(model, data, self._option, None, seen_by, everything, self._scene)
            return _averaged(self._pixels(shape), self._finer)
        except Exception:
            self._model = None  # whatever is wrong with the context, the next picture gets another
            raise

    def _renew_terrain(self, model: Any) -> None:
        """A task may shape the ground anew at a reset; the context has only what it was when it was made."""
        import mujoco

        terrain = model.hfield_data.tobytes()
        if terrain != self._terrain:
            for number in range(model.nhfield):
                mujoco.mjr_uploadHField(model, self._context, number)
            self._terrain = terrain

    def _pixels(self, shape: Shape) -> Image:
        """As drawn, which is larger than `shape` if it has to be finer."""
        import mujoco

        height, width, channels = shape
        height, width = height * self._finer, width * self._finer
        rectangle = mujoco.MjrRect(0, 0, width, height)
        pixels = np.empty((height, width, channels), np.uint8)
        mujoco.mjr_render(rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, rectangle, self._context)
        return pixels[::-1]  # GL begins at the bottom

    def _foreground(self, shape: Shape) -> NDArray[np.bool_]:
        """Of the scene just painted: all but the planes (floors, walls, backdrops) and what no object covers."""
        import mujoco

        flags = self._scene.flags
        segments = (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR)
        for flag in segments:
            flags[flag] = True
        try:
            pixels = self._pixels(shape)
        finally:
            for flag in segments:
                flags[flag] = False
        # A pixel is the number of the object in the scene, counted from 1; 0 is nothing.
        count = self._scene.ngeom
        shown = np.ones(count + 1, np.bool_)
        shown[0] = False
        geoms = self._scene.geoms
        for place in self._plane_places(geoms, count):
            shown[geoms[place].segid + 1] = False
        if len(shown) <= 256:
            seen = shown[pixels[..., 0]]
        else:
            seen = shown[pixels.astype(np.uint32) @ np.array([1, 2**8, 2**16], np.uint32)]
        return np.asarray(seen if self._finer == 1 else _blocks(seen, self._finer).any((1, 3)), np.bool_)

    def _plane_places(self, geoms: Any, count: int) -> list[int]:
        import mujoco

        plane = mujoco.mjtGeom.mjGEOM_PLANE
        # Reading every geom of the scene costs as much as drawing it, and planes keep their places.
        if not self._planes or not all(place < count and geoms[place].type == plane for place in self._planes):
            self._planes = [place for place in range(count) if geoms[place].type == plane]
        return self._planes

    def driver(self) -> str:
        from OpenGL import GL

        with _thread_given_back():
            self._gl.make_current()
            return str(GL.glGetString(GL.GL_RENDERER).decode())

    def free(self) -> None:
        if self._gl is not None:
            with _thread_given_back():
                if self._context is not None:
                    with suppress(Exception):  # a context that is lost has nothing to free
                        self._gl.make_current()
                    self._context.free()
                self._gl.free()
        self._model = self._gl = self._context = None


@contextmanager
def _thread_given_back() -> Iterator[None]:
    """Whatever context is current in this thread is so again afterwards, or none if there was none."""
    if not _uses_egl():  # the window system and OSMesa have one user
        yield
        return
    from mujoco import egl
    from mujoco.egl import egl_ext as library

    before = library.eglGetCurrentContext()
    theirs = before and (
        library.eglGetCurrentDisplay(),
        library.eglGetCurrentSurface(library.EGL_DRAW),
        library.eglGetCurrentSurface(library.EGL_READ),
        before,
    )
    nobody = (library.EGL_NO_SURFACE, library.EGL_NO_SURFACE, library.EGL_NO_CONTEXT)
    try:
        yield
    finally:
        if theirs:
            library.eglMakeCurrent(*theirs)
        elif egl.EGL_DISPLAY is not None:
            library.eglMakeCurrent(egl.EGL_DISPLAY, *nobody)


def _uses_egl() -> bool:
    prepare_headless_gl()
    return os.environ.get("MUJOCO_GL") == "egl"


def _context_class() -> Any:
    if _uses_egl():
        # By name: whoever imported mujoco before may not have chosen, and got the window system.
        from mujoco.egl import GLContext

        return GLContext
    import mujoco

    return mujoco.GLContext


def camera_of(model: Any, camera: str | int | Orbit) -> Any:
    """MuJoCo's camera of this name, number or orbit; `ValueError` with what there is otherwise."""
    import mujoco

    found = mujoco.MjvCamera()
    if isinstance(camera, Orbit):
        body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, camera.body)
        if body == -1:
            raise ValueError(f"no body {camera.body!r} to follow; there are {_names(model.body, model.nbody)}")
        found.type, found.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, body
        found.distance, found.azimuth, found.elevation = camera.distance, camera.azimuth, camera.elevation
        found.lookat[:] = model.body(body).pos
        return found
    number = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera) if isinstance(camera, str) else camera
    if not 0 <= number < model.ncam:
        raise ValueError(
            f"no camera {camera!r}; there are {_names(model.camera, model.ncam)}. "
            f"An Orbit around a body is one more: MujocoCamera(Orbit({model.body(1).name!r}, distance=3))"
        )
    found.type, found.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, number
    return found


def _names(of: Callable[[int], Any], count: int) -> str:
    return ", ".join(f"{number} {of(number).name!r}" for number in range(count)) or "none"


def _averaged(picture: Image, finer: int) -> Image:
    if finer == 1:
        return picture
    # Half a unit before cutting off: rounded, as the mean of whole numbers.
    total = _blocks(picture, finer).sum((1, 3), dtype=np.uint16)
    return np.asarray((total + finer**2 // 2) // finer**2, np.uint8)


def _blocks(picture: NDArray[Any], finer: int) -> NDArray[Any]:
    """[H, finer, W, finer, ...]"""
    height, width = picture.shape[:2]
    return picture.reshape(height // finer, finer, width // finer, finer, *picture.shape[2:])

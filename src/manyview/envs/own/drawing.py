"""Draws a MuJoCo model through any of its cameras, without disturbing others who draw in this process.

OpenGL draws into, and deletes from, whatever context is current in a thread. Other users of MuJoCo rely on theirs still
being current (dm_control), or delete from somebody else's (`mujoco.Renderer.close` lets go of its context first, and
then deletes its objects from whichever is current). So each drawing has a context in a thread of its own, where nobody
else ever is.
"""

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from manyview.envs.gl import prepare_headless_gl, temporary_quality
from manyview.envs.own.sources import Orbit, Shape
from manyview.envs.suite import Quality
from manyview.envs.views import Image

T = TypeVar("T")
World = Callable[[], tuple[Any, Any]]
"""The model and the data as they are now: some environments replace them at a reset."""
MAX_GEOMS = 10_000


class Drawing:
    """One context for all cameras of an environment, of whatever size."""

    def __init__(self, world: World, *, largest: int, quality: Quality) -> None:
        self._world = world
        self._worker = _Worker()
        self._painter = _Painter(largest, quality)
        self._end = weakref.finalize(self, self._worker.end, self._painter.free)
        try:
            self._worker.call(lambda: self._painter.prepare(world()[0]))
        except Exception as error:
            self._end()
            raise RuntimeError(
                f"MuJoCo cannot draw here ({error}): set MUJOCO_GL to egl or osmesa before Python starts, and install "
                "the driver (apt-get install libegl1 libgl1)"
            ) from error
        # Before MuJoCo's own farewell to EGL: the last to register goes first, and it has just registered.
        self._end.atexit = False
        atexit.register(self._end)

    def draw(self, camera: str | int | Orbit, shape: Shape) -> Image:
        model, data = self._world()
        return self._worker.call(lambda: self._painter.paint(model, data, camera, shape))

    def close(self) -> None:
        self._end()
        atexit.unregister(self._end)


class _Worker:
    """A thread that calls what it is given, one after the other."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        result: Future[T] = Future()
        self._jobs.put((function, result))
        return result.result()

    def end(self, last: Callable[[], None]) -> None:
        self._jobs.put((last, Future()))
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:  # which may be where garbage is collected
            self._thread.join()


def _work(jobs: "queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]") -> None:
    while (job := jobs.get()) is not None:
        function, result = job
        try:
            result.set_result(function())
        except Exception as error:
            result.set_exception(error)
        del job, function, result  # what a picture refers to must not live until the next one


class _Painter:
    """Everything of OpenGL. All of it is called in the worker's thread."""

    def __init__(self, largest: int, quality: Quality) -> None:
        self._largest, self._quality = largest, quality
        self._model: Any = None
        self._gl: Any = None
        self._context: Any = None
        self._scene: Any = None
        self._option: Any = None

    def prepare(self, model: Any) -> None:
        import mujoco

        self.free()
        self._gl = _context_class()(self._largest, self._largest)
        self._gl.make_current()
        with temporary_quality(model.vis, self._quality, self._largest):
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene, self._option = mujoco.MjvScene(model, MAX_GEOMS), mujoco.MjvOption()
        if self._quality == "fast":
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._model = model

    def paint(self, model: Any, data: Any, camera: str | int | Orbit, shape: Shape) -> Image:
        import mujoco

        if model is not self._model:
            self.prepare(model)
        seen_by, everything = camera_of(model, camera), mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, data, self._option, None, seen_by, everything, self._scene)
        height, width, _ = shape
        rectangle = mujoco.MjrRect(0, 0, width, height)
        pixels = np.empty(shape, np.uint8)
        mujoco.mjr_render(rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, rectangle, self._context)
        return pixels[::-1]  # GL begins at the bottom

    def free(self) -> None:
        if self._context is not None:
            self._context.free()
        if self._gl is not None:
            self._gl.free()
        self._model = self._gl = self._context = None


def _context_class() -> Any:
    prepare_headless_gl()
    if os.environ.get("MUJOCO_GL") == "egl":
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

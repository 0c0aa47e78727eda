"""OpenGL contexts and render quality for MuJoCo, with or without a display."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manyview.envs.suite import RenderQuality


@contextmanager
def preserve_current_context() -> Iterator[None]:
    """Restore this thread's current OpenGL context, or its absence, on exit."""
    if not uses_egl():  # a window system or OSMesa context has one user
        yield
        return
    from mujoco import egl
    from mujoco.egl import egl_ext as library

    context = library.eglGetCurrentContext()
    previous = context and (
        library.eglGetCurrentDisplay(),
        library.eglGetCurrentSurface(library.EGL_DRAW),
        library.eglGetCurrentSurface(library.EGL_READ),
        context,
    )
    no_context = (library.EGL_NO_SURFACE, library.EGL_NO_SURFACE, library.EGL_NO_CONTEXT)
    try:
        yield
    finally:
        if previous:
            library.eglMakeCurrent(*previous)
        elif egl.EGL_DISPLAY is not None:
            library.eglMakeCurrent(egl.EGL_DISPLAY, *no_context)


def uses_egl() -> bool:
    """Return whether MuJoCo renders with EGL, after `configure_headless_gl`."""
    configure_headless_gl()
    return os.environ.get("MUJOCO_GL") == "egl"


def get_context_class() -> Any:
    """Return MuJoCo's OpenGL context class for the configured backend."""
    if uses_egl():
        # Not mujoco.GLContext: it is the window system's if mujoco was imported before MUJOCO_GL was set.
        from mujoco.egl import GLContext

        return GLContext
    import mujoco

    return mujoco.GLContext


def configure_headless_gl() -> None:
    """Configure OpenGL for rendering without a display; keep the user's settings.

    Selects EGL if there is no display, and no threads in the software renderer. By default MuJoCo uses the window
    system, and fails without a display. Threads of the software renderer do not speed up small images, and with several
    environment processes they compete for the cores.
    """
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("LP_NUM_THREADS", "0")


def set_render_quality(visual: Any, quality: RenderQuality, size: int) -> None:
    """Set the quality of a MuJoCo model's `vis`, for contexts made later.

    `size` is the maximum side of an image in pixels.
    """
    if quality != "standard":
        visual.quality.offsamples = 0
        visual.quality.numslices, visual.quality.numstacks, visual.quality.numquads = 12, 8, 2
        visual.global_.offwidth = visual.global_.offheight = size
    else:
        visual.global_.offwidth = max(visual.global_.offwidth, size)
        visual.global_.offheight = max(visual.global_.offheight, size)


@contextmanager
def override_render_quality(visual: Any, quality: RenderQuality, size: int) -> Iterator[None]:
    """Apply `set_render_quality` and undo it on exit.

    Other code may render the same model.
    """
    fields = [(visual.quality, name) for name in ("offsamples", "numslices", "numstacks", "numquads")]
    fields += [(visual.global_, name) for name in ("offwidth", "offheight")]
    saved = [(part, name, getattr(part, name)) for part, name in fields]
    set_render_quality(visual, quality, size)
    try:
        yield
    finally:
        for part, name, value in saved:
            setattr(part, name, value)

"""Draws a MuJoCo model through any of its cameras, without disturbing others who draw in this process.

OpenGL draws into, and deletes from, whatever context is current in a thread. Other users of MuJoCo rely on theirs still
being current (dm_control), or delete from somebody else's (`mujoco.Renderer.close` lets go of its context first, and
then deletes its objects from whichever is current). So a drawing takes its context while it draws, and afterwards gives
the thread back as it found it. It may be used from any thread.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manyview.envs.suite import RenderQuality


@contextmanager
def preserve_current_context() -> Iterator[None]:
    """Whatever context is current in this thread is so again afterwards, or none if there was none."""
    if not uses_egl():  # the window system and OSMesa have one user
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
    configure_headless_gl()
    return os.environ.get("MUJOCO_GL") == "egl"


def get_context_class() -> Any:
    if uses_egl():
        # By name: whoever imported mujoco before may not have chosen, and got the window system.
        from mujoco.egl import GLContext

        return GLContext
    import mujoco

    return mujoco.GLContext


def configure_headless_gl() -> None:
    """Choose EGL where no display is, and no threads in the software renderer; what the user set stays.

    Without a choice MuJoCo takes the window system and dies. Threads of the software renderer gain nothing on small
    images, and several environment processes would fight over the cores with them.
    """
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("LP_NUM_THREADS", "0")


def set_render_quality(visual: Any, quality: RenderQuality, size: int) -> None:
    """Set a MuJoCo model's `vis` for contexts made from now on, which draw images of up to `size` pixels a side."""
    if quality != "standard":
        visual.quality.offsamples = 0
        visual.quality.numslices, visual.quality.numstacks, visual.quality.numquads = 12, 8, 2
        visual.global_.offwidth = visual.global_.offheight = size
    else:
        visual.global_.offwidth = max(visual.global_.offwidth, size)
        visual.global_.offheight = max(visual.global_.offheight, size)


@contextmanager
def override_render_quality(visual: Any, quality: RenderQuality, size: int) -> Iterator[None]:
    """`set_render_quality` for the contexts made meanwhile: the model is somebody else's, who may draw it too."""
    fields = [(visual.quality, name) for name in ("offsamples", "numslices", "numstacks", "numquads")]
    fields += [(visual.global_, name) for name in ("offwidth", "offheight")]
    saved = [(part, name, getattr(part, name)) for part, name in fields]
    set_render_quality(visual, quality, size)
    try:
        yield
    finally:
        for part, name, value in saved:
            setattr(part, name, value)

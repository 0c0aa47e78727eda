"""Drawing without a screen: what has to be in the environment before a simulator is imported, and how fine it draws."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manyview.envs.suite import RenderQuality


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

"""Drawing without a screen: what has to be in the environment before a simulator is imported."""

import os


def prepare_headless_gl() -> None:
    """Choose EGL where no display is, and no threads in the software renderer; what the user set stays.

    Without a choice MuJoCo takes the window system and dies. Threads of the software renderer gain nothing on small
    images, and several environment processes would fight over the cores with them.
    """
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("LP_NUM_THREADS", "0")

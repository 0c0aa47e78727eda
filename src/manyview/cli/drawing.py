"""A simulated scene drawn on this machine, in a process of its own: a driver that crashes takes nothing with it.

`python -m manyview.cli.drawing` draws it and prints what it found as JSON.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from manyview.envs.suite import Quality
    from manyview.envs.views import Image

TIMEOUT_S = 60.0
"""Far more than it takes; a driver that hangs must not hang the doctor."""
SIZE = 84
DRAWS, STEPS = 9, 20
"""Pictures that are timed; steps of the physics between two states."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One camera at 84 x 84 pixels, in both qualities of `manyview.make`."""

    backend: str
    """What MUJOCO_GL was resolved to: egl, glfw or osmesa."""
    driver: str
    """What OpenGL calls its renderer, such as `llvmpipe (LLVM 15.0.6, 256 bits)`."""
    standard_ms: float
    fast_ms: float
    """Milliseconds for a view."""
    contrast: int
    """The brightest minus the darkest value of a picture, 0 to 255, in the quality where it is lower."""
    changed: float
    """The fraction of pixels that differ between two states, in the quality where it is lower."""


def draw_elsewhere(timeout_s: float = TIMEOUT_S) -> Drawing | str:
    """What a new process draws, or the error that it ended in."""
    command = [sys.executable, "-m", "manyview.cli.drawing"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"not finished after {timeout_s:g} s"
    return read(done.returncode, done.stdout, done.stderr)


def read(status: int, output: str, errors: str) -> Drawing | str:
    """The answer of the other process."""
    if status < 0:
        return f"crashed with {signal.Signals(-status).name}"
    if status > 0:
        return (errors.strip() or f"exit status {status}").splitlines()[-1]
    return Drawing(**json.loads(output.splitlines()[-1]))


def draw() -> Drawing:
    """Draw it in this process."""
    from manyview.envs.gl import prepare_headless_gl

    prepare_headless_gl()  # as making a task does
    standard, fast = _draw("standard"), _draw("fast")
    return Drawing(
        backend=os.environ.get("MUJOCO_GL") or "glfw",
        driver=standard.driver,
        standard_ms=standard.ms,
        fast_ms=fast.ms,
        contrast=min(standard.contrast, fast.contrast),
        changed=min(standard.changed, fast.changed),
    )


class _Drawn(NamedTuple):
    driver: str
    ms: float
    contrast: int
    changed: float


def _draw(quality: "Quality") -> _Drawn:
    """A cheetah before and after it fell over."""
    import numpy as np

    from manyview.envs.dmc.simulation import load
    from manyview.envs.drawing import Drawing as Scene

    env = load("cheetah_run", np.random.RandomState(0))
    env.reset()
    scene = Scene(lambda: (env.physics.model.ptr, env.physics.data.ptr), largest=SIZE, quality=quality)

    def picture() -> "Image":
        return scene.draw("side", (SIZE, SIZE, 3))

    before, took_s = picture(), []
    for _ in range(DRAWS):
        begin = perf_counter()
        picture()
        took_s.append(perf_counter() - begin)
    for _ in range(STEPS):
        env.step(env.action_spec().maximum)
    after = picture()
    driver = scene.driver
    scene.close()
    env.close()
    return _Drawn(
        driver=driver,
        ms=1000 * median(took_s),
        contrast=min(int(np.ptp(each)) for each in (before, after)),
        changed=float((before != after).any(-1).mean()),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(draw())))

"""Render test of a simulated scene, in a separate process because drivers can crash.

`python -m manyview.cli.doctor.render_test` renders the scene and prints the result as JSON.
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
    from manyview.envs.suite import RenderQuality
    from manyview.envs.views import Image

TIMEOUT_S = 60.0
"""Timeout of the test, far above its normal duration, so that a hanging driver does not block `manyview doctor`."""
IMAGE_SIZE = 84
"""Side of the rendered images, in pixels."""
TIMED_IMAGES, PHYSICS_STEPS = 9, 20
"""Number of timed images, and physics steps between the two rendered states."""


@dataclass(frozen=True, kw_only=True)
class RenderTest:
    """Result of rendering one camera at 84 x 84 pixels in the qualities `standard` and `fast`."""

    backend: str
    """Backend that MUJOCO_GL resolved to: egl, glfw or osmesa."""
    driver: str
    """Name of the OpenGL renderer, such as `llvmpipe (LLVM 15.0.6, 256 bits)`."""
    standard_ms: float
    """Milliseconds per view in `standard` quality."""
    fast_ms: float
    """Milliseconds per view in `fast` quality."""
    contrast: int
    """Maximum minus minimum pixel value of an image, 0 to 255; the lower of both qualities."""
    changed_fraction: float
    """Fraction of pixels that differ between two states; the lower of both qualities."""


def render_in_subprocess(timeout_s: float = TIMEOUT_S) -> RenderTest | str:
    """Run the render test in a new process; return its result or an error message."""
    command = [sys.executable, "-m", "manyview.cli.doctor.render_test"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"not finished after {timeout_s:g} s"
    return parse_render_output(process.returncode, process.stdout, process.stderr)


def parse_render_output(status: int, output: str, errors: str) -> RenderTest | str:
    """Parse exit status, stdout and stderr of the test process into its result or an error message."""
    if status < 0:
        return f"crashed with {signal.Signals(-status).name}"
    if status > 0:
        return (errors.strip() or f"exit status {status}").splitlines()[-1]
    return RenderTest(**json.loads(output.splitlines()[-1]))


def run_render_test() -> RenderTest:
    """Run the render test in this process."""
    from manyview.envs.rendering.gl import configure_headless_gl

    configure_headless_gl()  # as `manyview.make` does
    standard, fast = _render_quality("standard"), _render_quality("fast")
    return RenderTest(
        backend=os.environ.get("MUJOCO_GL") or "glfw",
        driver=standard.driver,
        standard_ms=standard.ms,
        fast_ms=fast.ms,
        contrast=min(standard.contrast, fast.contrast),
        changed_fraction=min(standard.changed_fraction, fast.changed_fraction),
    )


class _QualityResult(NamedTuple):
    driver: str
    ms: float
    contrast: int
    changed_fraction: float


def _render_quality(quality: "RenderQuality") -> _QualityResult:
    """Render dmc/cheetah_run before and after some physics steps."""
    import numpy as np

    from manyview.envs.dmc.env import load_dmc_env
    from manyview.envs.rendering.mujoco import MujocoRenderer

    env = load_dmc_env("cheetah_run", np.random.RandomState(0))
    env.reset()
    renderer = MujocoRenderer(
        lambda: (env.physics.model.ptr, env.physics.data.ptr), max_size=IMAGE_SIZE, quality=quality
    )

    def render() -> "Image":
        return renderer.render("side", (IMAGE_SIZE, IMAGE_SIZE, 3))

    before, durations_s = render(), []
    for _ in range(TIMED_IMAGES):
        start_s = perf_counter()
        render()
        durations_s.append(perf_counter() - start_s)
    for _ in range(PHYSICS_STEPS):
        env.step(env.action_spec().maximum)
    after = render()
    driver = renderer.driver
    renderer.close()
    env.close()
    return _QualityResult(
        driver=driver,
        ms=1000 * median(durations_s),
        contrast=min(int(np.ptp(image)) for image in (before, after)),
        changed_fraction=float((before != after).any(-1).mean()),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(run_render_test())))

"""Compare the speed of our DeepMind Control views with bare dm_control rendering the same pixels.

    python -m benchmarks.environments speed               # ours against bare, both qualities, every task of the paper
    python -m benchmarks.environments quality             # `fast` against `standard`: ms per view, pixel difference
    python -m benchmarks.environments picture             # write docs/images/qualities.png
    python -m benchmarks.environments workers             # two spawned workers against one
    python -m benchmarks.environments memory              # memory leaked by closed environments

Both sides alternate in short blocks in one process, and the best block of each counts: other statistics measure the
other load of the machine.
"""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np

from manyview.envs import get_views, make, make_vector
from manyview.envs.dmc.tasks import PAPER_TASKS
from manyview.envs.suite import RenderQuality
from manyview.envs.views import Image, Observation
from manyview.envs.visualization import Row, draw_grid, record_random_steps, save_image, stack_vertically

SIZE, ACTION_REPEAT = 84, 2
MEMORY = Path("/proc/self/statm")
Step = Callable[[], object]


def make_our_step(env: gym.Env[Observation, Any], action: Any) -> Step:
    env.reset(seed=0)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()

    return step


def make_bare_step(task: str, names: tuple[str, ...], quality: RenderQuality, action: Any) -> Step:
    """Return a step of bare dm_control with its own cameras and segmentation, frames stacked as in DrQ-v2."""
    from collections import deque

    from dm_control import mujoco as engine

    from manyview.envs.dmc.env import load_dmc_env

    env = load_dmc_env(task, np.random.RandomState(0))
    env.reset()
    physics = env.physics
    overrides = None
    if quality == "fast":
        visual = physics.model.vis
        visual.quality.offsamples = 0
        visual.quality.numslices, visual.quality.numstacks, visual.quality.numquads = 12, 8, 2
        visual.global_.offwidth = visual.global_.offheight = SIZE
        overrides = {"shadow": False, "reflection": False}
    cameras = [engine.Camera(physics, SIZE, SIZE, camera_id=name) for name in names]
    planes = np.append(physics.model.geom_type == 0, True)  # the last entry means no geom
    frames = [deque[Any](maxlen=3) for _ in range(3)]
    spec = env.action_spec()
    scaled = spec.minimum + (action + 1) / 2 * (spec.maximum - spec.minimum)

    def step() -> list[Any]:
        for _ in range(ACTION_REPEAT):
            env.step(scaled)
        images = [camera.render(render_flag_overrides=overrides).copy() for camera in cameras]
        segmented = cameras[0].render(segmentation=True)
        is_geom = segmented[..., 1] == 5
        background = np.where(is_geom, planes[segmented[..., 0]], segmented[..., 0] < 0)
        images.append(np.where(background[..., None], np.uint8(0), images[0]))
        for stack, image in zip(frames, images, strict=True):
            stack.append(image)
        return [np.concatenate(stack, axis=-1) for stack in frames]

    return step


def time_alternating(sides: list[Step], *, blocks: int, steps: int) -> list[float]:
    """Return the seconds per step of each side in its best block."""
    best = [float("inf")] * len(sides)
    for block in range(blocks + 1):
        for index, side in enumerate(sides):
            start = time.perf_counter()
            for _ in range(steps):
                side()
            if block:  # the first block is warm-up
                best[index] = min(best[index], (time.perf_counter() - start) / steps)
    return best


def measure_speed(task: str, quality: RenderQuality, *, blocks: int = 5, steps: int = 20) -> tuple[float, float]:
    """Return the milliseconds of an agent step with three views: ours, bare."""
    env = make(f"dmc/{task}", render_quality=quality)
    action = np.zeros(env.action_space.shape or (), np.float32)
    names = tuple(view.name for view in get_views(env) if view.derived_from is None)
    sides = [make_our_step(env, action), make_bare_step(task, names, quality, action)]
    ours, bare = time_alternating(sides, blocks=blocks, steps=steps)
    env.close()
    return 1e3 * ours, 1e3 * bare


def measure_qualities(steps: int = 10) -> Iterator[tuple[str, float, float, float]]:
    """Yield task, ms per view at `standard` and `fast`, and their mean pixel difference over the same states."""
    for task in PAPER_TASKS:
        images, costs = [], []
        for quality in ("standard", "fast"):
            env = make(f"dmc/{task}", render_quality=quality, frame_stack=1)
            env.reset(seed=0)
            env.action_space.seed(0)
            seen = [env.step(env.action_space.sample())[0] for _ in range(steps)]
            names = [view.name for view in get_views(env)]
            images.append(np.stack([[observation[name] for name in names] for observation in seen]).astype(float))
            simulated: Any = env.unwrapped
            costs.append(1e3 * time_alternating([simulated.render_views], blocks=3, steps=5)[0] / len(names))
            env.close()
        yield task, costs[0], costs[1], float(np.abs(images[0] - images[1]).mean())


def draw_qualities() -> None:
    """Draw the same state of each task at both qualities, and four times their difference."""
    shown: dict[str, list[Image]] = {"standard": [], "fast": []}
    for task in PAPER_TASKS:
        for quality, images in shown.items():
            env = make(f"dmc/{task}", render_quality=cast("RenderQuality", quality), frame_stack=1)
            image = record_random_steps(env, 10, seed=0)[-1].images[get_views(env)[1].name]
            assert image is not None
            images.append(image)
            env.close()
    shown["difference\ntimes 4"] = [
        np.minimum(4 * np.abs(standard.astype(int) - fast), 255).astype(np.uint8)
        for standard, fast in zip(shown["standard"], shown["fast"], strict=True)
    ]
    parts = [
        draw_grid([Row(name, images[half]) for name, images in shown.items()], column_labels=PAPER_TASKS[half])
        for half in (slice(6), slice(6, 12))
    ]
    save_image(stack_vertically(parts), Path(__file__).parents[1] / "docs" / "images" / "qualities.png")


def measure_worker_speedup() -> float:
    """Return the throughput of two workers relative to one, by the best of alternating short blocks."""
    vectors = [make_vector("dmc/cheetah_run", count, processes=True, render_quality="fast") for count in (1, 2)]
    for vector in vectors:
        vector.reset(seed=0)
    idle = [np.zeros(vector.action_space.shape or (), np.float32) for vector in vectors]
    one_s, two_s = time_alternating(
        [partial(vector.step, actions) for vector, actions in zip(vectors, idle, strict=True)], blocks=15, steps=20
    )
    for vector in vectors:
        vector.close()
    return 2 * one_s / two_s


def measure_resident_bytes() -> int:
    """Return the resident memory of this process after releasing free memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_leak_mb(task: str, *, warm_up: int = 10, count: int = 100) -> float:
    """Return the MB leaked per environment that is created, rendered and closed.

    The figure is the growth of the minimum from the first to the second half of `count` environments.
    """
    resident = []
    for number in range(warm_up + count):
        env = make(task, render_quality="fast")
        env.reset(seed=number)
        env.step(env.action_space.sample())
        env.close()
        del env
        resident.append(measure_resident_bytes())
    half = count // 2
    return max(0.0, (min(resident[-half:]) - min(resident[-count:-half])) / (half * 1e6))


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else "speed"
    if wanted == "speed":
        print("| task | quality | ours, ms | bare, ms | speed against bare |\n|---|---|---|---|---|")
        for task in PAPER_TASKS:
            for quality in ("standard", "fast"):
                ours, bare = measure_speed(task, quality, steps=4 if quality == "standard" else 20)
                print(f"| {task} | {quality} | {ours:.1f} | {bare:.1f} | {bare / ours:.2f} |", flush=True)
    elif wanted == "quality":
        print("| task | standard, ms per view | fast, ms per view | times faster | mean pixel difference |")
        print("|---|---|---|---|---|")
        for task, standard, fast, difference in measure_qualities():
            print(f"| {task} | {standard:.1f} | {fast:.2f} | {standard / fast:.0f} | {difference:.1f} |", flush=True)
    elif wanted == "picture":
        draw_qualities()
    elif wanted == "memory":
        print(f"{measure_leak_mb('dmc/cheetah_run'):.3f} MB each")
    else:
        print(f"two workers give {measure_worker_speedup():.2f} times one worker's steps")

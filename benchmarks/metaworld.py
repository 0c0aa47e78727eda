"""Time the views of Meta-World in both render qualities and draw them.

    python -m benchmarks.metaworld --sheet docs/images/metaworld.png

Needs the extra `metaworld`, installed in a separate Python environment.
"""

import argparse
import time
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw

from manyview.envs import get_views, make
from manyview.envs.suite import RenderQuality
from manyview.envs.views import Observation

Pair = dict[RenderQuality, gym.Env[Observation, Any]]

QUALITIES: tuple[RenderQuality, ...] = get_args(RenderQuality)
TASKS = ("drawer-open", "pick-place", "hammer", "door-open", "window-close")
SEED = 3
MARGIN_PIXELS, GAP_PIXELS = (84, 26), 3


def make_envs(task: str) -> Pair:
    return {quality: make(f"metaworld/{task}", render_quality=quality, frame_stack=1) for quality in QUALITIES}


def measure_ms_per_view(envs: Pair, repeats: int) -> dict[RenderQuality, float]:
    """Return the shortest of `repeats` alternating times: other load on the machine only adds to a time."""
    taken: dict[RenderQuality, list[float]] = {quality: [] for quality in envs}
    for _ in range(repeats):
        for quality, env in envs.items():
            base: Any = env.unwrapped
            start_s = time.perf_counter()
            base.render_views()
            taken[quality].append((time.perf_counter() - start_s) * 1e3 / len(base.views))
    return {quality: min(times) for quality, times in taken.items()}


def collect_images(envs: Pair) -> dict[str, Any]:
    """Return the first image of every view by column title."""
    shown: dict[str, Any] = {}
    for quality, env in envs.items():
        observation, _ = env.reset(seed=SEED)
        shown |= {f"{view.name}\n{quality}": observation[view.name] for view in get_views(env)}
    return shown


def draw_sheet(rows: dict[str, dict[str, Any]]) -> Image.Image:
    columns = list(next(iter(rows.values())))
    tile = len(next(iter(rows.values()))[columns[0]]) + GAP_PIXELS
    left, top = MARGIN_PIXELS
    sheet = Image.new("RGB", (left + tile * len(columns), top + tile * len(rows)), "white")
    draw = ImageDraw.Draw(sheet)
    for y, (task, shown) in enumerate(rows.items()):
        draw.text((2, top + tile * (y + 0.4)), task, fill="black")
        for x, column in enumerate(columns):
            draw.text((left + tile * x, 0), column, fill="black")
            sheet.paste(Image.fromarray(shown[column]), (left + tile * x, top + tile * y))
    # 128 colors suffice for viewing and take a third of the bytes.
    return sheet.quantize(128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sheet", type=Path, help="write the images to this file")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    rows = {}
    print("| task | standard, ms per view | fast, ms per view | mean difference of a pixel |\n|---|---|---|---|")
    for task in TASKS:
        envs = make_envs(task)
        rows[task] = collect_images(envs)
        standard, fast = np.split(np.array(list(rows[task].values()), float), len(envs))
        times = measure_ms_per_view(envs, arguments.repeats)
        print(
            f"| {task} | {times['standard']:.0f} | {times['fast']:.1f} | {np.abs(standard - fast).mean():.1f} |",
            flush=True,
        )
        for env in envs.values():
            env.close()
    if arguments.sheet:
        draw_sheet(rows).save(arguments.sheet, optimize=True)


if __name__ == "__main__":
    main()

"""Draw docs/images/own_cameras.png: three cameras around Gymnasium's ant, and every fault of one of them.

python -m tools.own_cameras_figure          # seconds
"""

import warnings
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np

from manyview.envs import MASK, Fault, FaultInjector, MujocoCamera, MultiView, Orbit, ViewWarning, get_views
from manyview.envs.views import Image
from manyview.envs.wrappers.faults import FaultKind

ROOT = Path(__file__).parents[1]
STEPS = (0, 8, 16, 24, 32, 40)
FAULT_AT = 12
VIEWS = {
    "side": MujocoCamera("track", quality="fast"),
    "corner": MujocoCamera(Orbit("torso", distance=3.5, azimuth=150.0, elevation=-30.0), quality="fast"),
    "top": MujocoCamera(Orbit("torso", distance=4.0, elevation=-90.0), quality="fast"),
}


def record_views(faults: list[Fault]) -> list[dict[str, Image | None]]:
    """Return the image of every view at `STEPS`, None where it is absent; actions are the same every time."""
    env: gym.Env[Any, Any] = MultiView(gym.make("Ant-v5"), views=VIEWS)
    if faults:
        env = FaultInjector(env, faults)
    env.action_space.seed(4)
    observation, _ = env.reset(seed=4)
    shown = []
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            mask = dict(zip((view.name for view in get_views(env)), observation[MASK], strict=True))
            shown.append({name: observation[name] if mask[name] else None for name in mask})
        observation, *_ = env.step(env.action_space.sample())
    env.close()
    return shown


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    warnings.simplefilter("ignore", ViewWarning)
    healthy = record_views([])
    rows: list[tuple[str, list[Image | None]]] = [(name, [shown[name] for shown in healthy]) for name in VIEWS]
    for kind in get_args(FaultKind):
        fault = Fault(view="side", kind=kind, lasts="episode", at_step=FAULT_AT, late_frames=12)
        rows.append((f"side, {kind}", [shown["side"] for shown in record_views([fault])]))
    figure, axes = plt.subplots(len(rows), len(STEPS), figsize=(7.2, 9.4), layout="constrained")
    for (label, images), line in zip(rows, axes, strict=True):
        for step, image, axis in zip(STEPS, images, line, strict=True):
            axis.set(xticks=[], yticks=[])
            if image is None:
                axis.imshow(np.full((84, 84, 3), 255, np.uint8))
                axis.text(0.5, 0.5, "absent", ha="center", va="center", transform=axis.transAxes, color="#c0392b")
            else:
                axis.imshow(image)
            failing = "," in label and step >= FAULT_AT
            for spine in axis.spines.values():
                spine.set(color="#c0392b" if failing else "#888888", linewidth=2 if failing else 0.8)
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10)
    for step, axis in zip(STEPS, axes[0], strict=True):
        axis.set_title(f"step {step}", fontsize=10)
    figure.savefig(ROOT / "docs" / "images" / "own_cameras.png", dpi=80)


if __name__ == "__main__":
    main()

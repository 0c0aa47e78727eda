"""Suite of the Meta-World tasks; imports no metaworld."""

from typing import Any

import gymnasium as gym

from manyview.envs.suite import Suite, Task, TaskSettings
from manyview.envs.views import Observation

CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
"""Cameras of every task, in the order of their numbers."""

# Both sides of the table, and the hand. `corner4` is the view of most published results from pixels, which obtained it
# by moving `corner2` closer. In `topview` the arm hides the hand, and `behindGripper` can be inside the arm.
DEFAULT_VIEWS = ("corner", "corner4", "gripperPOV")

STATE_NAMES = ("hand", "objects", "goal")
"""State vectors: position of the hand and opening of its gripper, positions and rotations of two objects, goal."""

TASK_NAMES = (
    "assembly",
    "basketball",
    "bin-picking",
    "box-close",
    "button-press",
    "button-press-topdown",
    "button-press-topdown-wall",
    "button-press-wall",
    "coffee-button",
    "coffee-pull",
    "coffee-push",
    "dial-turn",
    "disassemble",
    "door-close",
    "door-lock",
    "door-open",
    "door-unlock",
    "drawer-close",
    "drawer-open",
    "faucet-close",
    "faucet-open",
    "hammer",
    "hand-insert",
    "handle-press",
    "handle-press-side",
    "handle-pull",
    "handle-pull-side",
    "lever-pull",
    "peg-insert-side",
    "peg-unplug-side",
    "pick-out-of-hole",
    "pick-place",
    "pick-place-wall",
    "plate-slide",
    "plate-slide-back",
    "plate-slide-back-side",
    "plate-slide-side",
    "push",
    "push-back",
    "push-wall",
    "reach",
    "reach-wall",
    "shelf-place",
    "soccer",
    "stick-pull",
    "stick-push",
    "sweep",
    "sweep-into",
    "window-close",
    "window-open",
)

# The paper has no Meta-World experiments: these are its settings for DeepMind Control.
DEFAULT_SETTINGS = TaskSettings(
    views=DEFAULT_VIEWS, image_size=84, frame_stack=3, action_repeat=2, render_quality="standard", render_scale=1
)


def _make_env(task: Task, settings: TaskSettings) -> gym.Env[Observation, Any]:
    from manyview.envs.metaworld.env import MetaWorld

    return MetaWorld(task, settings)


SUITE = Suite(
    name="metaworld",
    title="Meta-World",
    tasks={
        f"metaworld/{name}": Task(id=f"metaworld/{name}", cameras=CAMERAS, settings=DEFAULT_SETTINGS, state=STATE_NAMES)
        for name in TASK_NAMES
    },
    make=_make_env,
    packages=("metaworld",),
    install='pip install ".[metaworld]" in a separate environment',
)

"""Suites of the Fetch and Adroit tasks; imports no gymnasium_robotics."""

from typing import Any

import gymnasium as gym

from manyview.envs.rendering.gl import configure_headless_gl
from manyview.envs.rendering.mujoco import Orbit
from manyview.envs.suite import Suite, Task, TaskSettings
from manyview.envs.views import Observation

ADDED_CAMERAS = {
    "table_side": Orbit("table0", distance=1.8, azimuth=90.0, elevation=-25.0),
    "table_top": Orbit("table0", distance=1.5, azimuth=180.0, elevation=-90.0),
}
"""Cameras that Fetch's models lack, of which only `external_camera_0` shows the table."""
FETCH_CAMERAS = ("head_camera_rgb", "gripper_camera_rgb", "lidar", "external_camera_0", *ADDED_CAMERAS)
ADROIT_CAMERAS = ("fixed", "vil_camera")
PEN_CAMERAS = (*ADROIT_CAMERAS, "view_1", "view_2", "view_3", "view_4", "view_5")
"""Cameras in the order of their numbers; a test compares them with the models."""

FETCH_TASKS = {"reach": "Reach", "push": "Push", "slide": "Slide", "pick_and_place": "PickAndPlace"}
ADROIT_TASKS = {"door": "Door", "hammer": "Hammer", "pen": "Pen", "relocate": "Relocate"}
ENV_IDS = {
    **{f"fetch/{name}": f"Fetch{title}-v4" for name, title in FETCH_TASKS.items()},
    **{f"fetch/{name}_dense": f"Fetch{title}Dense-v4" for name, title in FETCH_TASKS.items()},
    **{f"adroit/{name}": f"AdroitHand{title}Sparse-v1" for name, title in ADROIT_TASKS.items()},
    **{f"adroit/{name}_dense": f"AdroitHand{title}-v1" for name, title in ADROIT_TASKS.items()},
}
"""Ids of Gymnasium-Robotics; rewards are sparse without the suffix `_dense`."""


def _build_task(task_id: str) -> Task:
    is_fetch = task_id.startswith("fetch/")
    adroit_cameras = PEN_CAMERAS if task_id.startswith("adroit/pen") else ADROIT_CAMERAS
    # The paper has neither suite: these are its settings for DeepMind Control, except for Fetch's action repeat. A
    # frame of Fetch lasts 40 ms and an episode 50 frames.
    settings = TaskSettings(
        views=("external_camera_0", *ADDED_CAMERAS) if is_fetch else ADROIT_CAMERAS,
        image_size=84,
        frame_stack=3,
        action_repeat=1 if is_fetch else 2,
        render_quality="standard",
        render_scale=1,
    )
    is_reach = task_id.startswith("fetch/reach")
    state = (("gripper", "goal") if is_reach else ("gripper", "object", "goal")) if is_fetch else ("hand", "object")
    return Task(id=task_id, cameras=FETCH_CAMERAS if is_fetch else adroit_cameras, settings=settings, state=state)


def _make_env(task: Task, settings: TaskSettings) -> gym.Env[Observation, Any]:
    configure_headless_gl()  # before mujoco is imported
    from manyview.envs.robotics.env import GymnasiumRobotics

    return GymnasiumRobotics(task, settings, env_id=ENV_IDS[task.id], added_cameras=ADDED_CAMERAS)


def _build_suite(name: str, title: str) -> Suite:
    return Suite(
        name=name,
        title=title,
        tasks={task_id: _build_task(task_id) for task_id in ENV_IDS if task_id.startswith(f"{name}/")},
        make=_make_env,
        packages=("gymnasium_robotics", "mujoco"),
        install='pip install "manyview[robotics]"',
    )


FETCH = _build_suite("fetch", "Fetch (Gymnasium-Robotics)")
ADROIT = _build_suite("adroit", "Adroit hand (Gymnasium-Robotics)")

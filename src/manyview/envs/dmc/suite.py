"""Suite of the DeepMind Control tasks with the paper's settings; imports no dm_control."""

from typing import Any

import gymnasium as gym

from manyview.envs.dmc.tasks import CAMERA_PAIRS, CAMERAS, PAPER_TASKS, STATE_NAMES, TASK_NAMES
from manyview.envs.suite import FOREGROUND_SUFFIX, Suite, Task, TaskSettings
from manyview.envs.views import Observation


def _build_task(name: str, domain: str) -> Task:
    cameras = CAMERAS[domain]
    first, second = CAMERA_PAIRS.get(domain, cameras[:2])
    settings = TaskSettings(
        views=(first, second, first + FOREGROUND_SUFFIX),
        image_size=84,
        frame_stack=3,
        action_repeat=2,
        render_quality="standard",
        render_scale=1,
    )
    state = STATE_NAMES.get(name, STATE_NAMES[domain])
    return Task(id=f"dmc/{name}", cameras=cameras, settings=settings, in_paper=name in PAPER_TASKS, state=state)


def _build_tasks() -> dict[str, Task]:
    tasks = [_build_task(f"{domain}_{name}", domain) for domain, names in TASK_NAMES.items() for name in names]
    tasks.append(_build_task("reach_duplo", "reach_duplo"))
    # The paper's twelve tasks first, in the paper's order.
    tasks.sort(key=lambda task: PAPER_TASKS.index(task.id[4:]) if task.in_paper else len(PAPER_TASKS))
    return {task.id: task for task in tasks}


def _make_env(task: Task, settings: TaskSettings) -> gym.Env[Observation, Any]:
    from manyview.envs.dmc.env import DeepMindControl

    return DeepMindControl(task, settings)


SUITE = Suite(
    name="dmc",
    title="DeepMind Control",
    tasks=_build_tasks(),
    make=_make_env,
    packages=("dm_control", "mujoco"),
    install='pip install "manyview[dmc]"',
)

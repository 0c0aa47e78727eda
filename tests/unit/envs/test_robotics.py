"""Fetch and Adroit through the real simulator."""

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from manyview.envs import MASK, NotRestorable, get_views, list_tasks, make, restore, snapshot
from manyview.envs.rendering.gl import configure_headless_gl
from manyview.envs.robotics.suite import ADDED_CAMERAS, ADROIT, ENV_IDS, FETCH
from manyview.envs.testing import EnvironmentContract, are_equal
from manyview.envs.views import Observation, ViewWarning

pytestmark = pytest.mark.simulator
configure_headless_gl()  # before mujoco is imported
pytest.importorskip("gymnasium_robotics", reason='pip install "manyview[robotics]"')
pytest.importorskip("mujoco")

import mujoco  # noqa: E402

from manyview.envs.robotics.env import GymnasiumRobotics  # noqa: E402

Env = gym.Env[Observation, Any]
PHYSICS_SCRIPT = """
import warnings
import gymnasium, gymnasium_robotics, numpy
warnings.simplefilter("ignore")
env = gymnasium.make("FetchPickAndPlace-v4", disable_env_checker=True)
env.unwrapped.np_random = numpy.random.default_rng(3)
env.reset()
actions = numpy.random.default_rng(0).uniform(-1, 1, (10, 4)).astype("float32")
for action in actions:
    env.step(action)
print(env.unwrapped.data.qpos.tobytes().hex())
"""


class RoboticsContract(EnvironmentContract):
    """Contract with small images; the image content is tested below."""

    episode_end = "truncated"
    max_episode_steps = 100
    task: ClassVar[str]
    views: ClassVar[tuple[str, ...]]

    def make_env(self) -> Env:
        return make(self.task, render_quality="fast", image_size=16, action_repeat=4, views=self.views)


class TestFetchPush(RoboticsContract):
    task = "fetch/push"
    views = ("external_camera_0", "table_side")


class TestAdroitRelocate(RoboticsContract):
    task = "adroit/relocate"
    views = ("vil_camera",)


def make_small_env(task: str, **options: Any) -> Env:
    defaults = {"views": (list_tasks()[task].settings.views[0],), "image_size": 16, "frame_stack": 1}
    return make(task, render_quality="fast", **{**defaults, **options})


def get_robotics_env(env: Env) -> GymnasiumRobotics:
    base: Any = env.unwrapped
    assert isinstance(base, GymnasiumRobotics)
    return base


@pytest.mark.parametrize("task", ENV_IDS)
def test_every_task_has_its_cameras_and_the_seed_decides_the_scene(task: str) -> None:
    env = make(task, render_quality="fast", frame_stack=1)
    model, _ = get_robotics_env(env).get_model_data()
    model_cameras = tuple(model.camera(number).name for number in range(model.ncam))
    assert (*model_cameras, *(ADDED_CAMERAS if task.startswith("fetch/") else ())) == list_tasks()[task].cameras
    observation, info = env.reset(seed=0)
    assert info["success"] is False
    assert observation[MASK].all()
    images = [observation[view.name] for view in get_views(env)]
    assert all(image.std() > 20 for image in images), "a flat image"
    assert len({image.tobytes() for image in images}) == len(images)
    other_observation, _ = env.reset(seed=1)
    assert any(not np.array_equal(other_observation[view.name], observation[view.name]) for view in get_views(env))
    env.close()


@pytest.mark.parametrize("task", ENV_IDS)
def test_rewards_success_and_physics_are_those_of_gymnasium_robotics(task: str) -> None:
    env, reference_env = make_small_env(task, action_repeat=2), gym.make(ENV_IDS[task], disable_env_checker=True)
    env.reset(seed=3)
    reference_env.reset(seed=3)
    space: Any = reference_env.action_space
    assert env.action_space == space
    for action in np.random.default_rng(0).uniform(-1, 1, (5, *space.shape)).astype(np.float32):
        _, reward, *_, info = env.step(action)
        results = [reference_env.step(action) for _ in range(2)]
        assert reward == sum(float(result[1]) for result in results)
        assert info["success"] == any(max(result[4].values()) for result in results)
    assert np.array_equal(get_robotics_env(env).get_model_data()[1].qpos, reference_env.unwrapped.data.qpos)  # type: ignore[attr-defined]
    env.close()
    reference_env.close()


def test_physics_equal_the_unpatched_simulator_with_assertions_off() -> None:
    process = subprocess.run(
        [sys.executable, "-O", "-W", "ignore", "-c", PHYSICS_SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    env = make_small_env("fetch/pick_and_place")
    env.reset()
    base = get_robotics_env(env)
    base._simulator.reset(np.random.default_rng(3))
    for action in np.random.default_rng(0).uniform(-1, 1, (10, 4)).astype(np.float32):
        base._simulator.step(action)
    assert base.get_model_data()[1].qpos.tobytes().hex() == process.stdout.strip()
    env.close()


def compute_reach_action(env: Env) -> Any:
    """Return the action that moves straight to the goal."""
    base: Any = get_robotics_env(env)._simulator
    offset = base._base.goal - base.data.site("robot0:grip").xpos
    return np.array([*np.clip(10 * offset, -1, 1), 0], np.float32)


@pytest.mark.parametrize("task", ["fetch/reach", "fetch/reach_dense"])
def test_reaching_the_goal_is_a_success_and_the_episode_continues(task: str) -> None:
    env = make_small_env(task)
    env.reset(seed=0)
    rewards, successes, truncated = [], [], False
    while not truncated:
        _, reward, terminated, truncated, info = env.step(compute_reach_action(env))
        assert not terminated
        rewards.append(float(reward))
        successes.append(info["success"])
    assert len(rewards) == 50
    assert successes[-1] is True
    if task == "fetch/reach":
        assert rewards == [0.0 if success else -1.0 for success in successes]
    else:
        assert len(set(rewards)) > 40
    env.close()


def test_a_success_in_any_frame_of_a_repeated_action_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_small_env("fetch/reach", action_repeat=2)
    env.reset(seed=0)
    results = iter([(0.0, True, False), (-1.0, False, False)])
    monkeypatch.setattr(get_robotics_env(env)._simulator, "step", lambda _: next(results))
    _, reward, *_, info = env.step(np.zeros(4, np.float32))
    assert (reward, info["success"]) == (-1.0, True)
    env.close()


def test_a_repeated_action_ends_with_the_episode() -> None:
    env = make_small_env("fetch/reach", action_repeat=4)
    env.reset(seed=0)
    frames, truncated = [], False
    while not truncated:
        *_, truncated, info = env.step(np.zeros(4, np.float32))
        frames.append(info["frames"])
    assert frames == [4] * 12 + [2]
    env.close()


@pytest.mark.parametrize("task", ["fetch/reach", "fetch/slide", "adroit/pen", "adroit/door"])
def test_the_first_image_shows_the_current_state(task: str) -> None:
    env = make(task, render_quality="fast", frame_stack=1)
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        base: Any = get_robotics_env(env)
        mujoco.mj_forward(*base.get_model_data())
        images: dict[str, Any] = base.render_views().images
        assert all(np.array_equal(observation[name], image) for name, image in images.items())
        if task.startswith("fetch/"):
            assert np.allclose(base._simulator.data.site("target0").xpos, base._simulator._base.goal)
    env.close()


@pytest.mark.parametrize("task", ["fetch/push", "fetch/slide"])
def test_the_goal_is_visible_in_the_default_views(task: str) -> None:
    """Hiding the ball that marks the goal changes every view from above, at any goal."""
    env = make(task, render_quality="fast", frame_stack=1, views=("table_top",))
    base = get_robotics_env(env)
    model, _ = base.get_model_data()
    num_visible = 0
    for seed in range(6):
        observation, _ = env.reset(seed=seed)
        color = model.site("target0").rgba.copy()
        model.site("target0").rgba[3] = 0.0
        image_without_goal: Any = base.render_views().images["table_top"]
        model.site("target0").rgba[:] = color
        num_visible += not np.array_equal(observation["table_top"], image_without_goal)
    assert num_visible >= 4  # the arm can hide it
    env.close()


def test_a_flat_camera_is_named_at_the_first_reset() -> None:
    env = make("fetch/push", render_quality="fast", views=("external_camera_0", "gripper_camera_rgb"))
    with pytest.warns(ViewWarning, match=r"fetch/push: view 'gripper_camera_rgb' shows only the color"):
        env.reset(seed=0)
    env.close()


def test_the_default_views_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ViewWarning)
        for task in ("fetch/pick_and_place", "adroit/hammer"):
            env = make(task, render_quality="fast")
            for seed in range(3):
                env.reset(seed=seed)
            env.close()


def test_a_snapshot_continues_exactly_after_a_contact() -> None:
    env = make_small_env("fetch/push")
    env.reset(seed=0)
    actions = np.random.default_rng(1).uniform(-1, 1, (12, 4)).astype(np.float32)
    for action in actions[:6]:
        env.step(action)
    state = snapshot(env)
    expected = [env.step(action)[0] for action in actions[6:]]
    other_env = make_small_env("fetch/push")
    restore(other_env, state)
    assert all(
        are_equal(other_env.step(action)[0], observation)
        for action, observation in zip(actions[6:], expected, strict=True)
    )
    with pytest.raises(NotRestorable, match="task fetch/push_dense"):
        restore(make_small_env("fetch/push_dense").unwrapped, snapshot(env.unwrapped))
    env.close()
    other_env.close()


@pytest.mark.parametrize("value", [1e30, np.nan])
def test_a_physics_error_is_a_truncation(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log there
    env = make_small_env("adroit/pen")
    env.reset(seed=0)
    action = np.ones(env.action_space.shape or (), np.float32)
    last_observation, *_ = env.step(action)
    get_robotics_env(env).get_model_data()[1].qvel[3] = value
    observation, reward, terminated, truncated, info = env.step(action)
    assert (terminated, truncated, reward) == (False, True, 0.0)
    assert "diverged" in info["physics_error"]
    assert are_equal(observation, last_observation)
    env.reset()
    assert "physics_error" not in env.step(action)[4]
    env.close()


def test_standard_quality_is_the_image_of_mujocos_renderer() -> None:
    """This runs in a new process: here another test may have imported mujoco before EGL was set."""
    command = [sys.executable, "-c", RENDERER_SCRIPT]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stderr


RENDERER_SCRIPT = """
import manyview, numpy as np
env = manyview.make("adroit/hammer", frame_stack=1, views=("vil_camera",), image_size=64)
observation, _ = env.reset(seed=4)
import mujoco
model, data = env.unwrapped.get_model_data()
renderer = mujoco.Renderer(model, 64, 64)
renderer.update_scene(data, "vil_camera")
assert np.array_equal(observation["vil_camera"], renderer.render())
renderer.close()
env.close()
"""


def test_each_sparse_task_has_a_dense_task_with_a_suffix() -> None:
    names = [*FETCH.tasks, *ADROIT.tasks]
    assert len(names) == 16
    sparse_names = [name for name in names if not name.endswith("_dense")]
    assert sorted(f"{name}_dense" for name in sparse_names) == sorted(set(names) - set(sparse_names))


def test_an_unclosed_environment_exits_without_output() -> None:
    code = "import manyview; env = manyview.make('fetch/reach', render_quality='fast'); env.reset(seed=0)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert (process.stdout, process.stderr) == ("", "")


def test_the_example_of_the_documentation_runs() -> None:
    page = Path(__file__).parents[3] / "docs" / "guides" / "simulators.md"
    examples = re.findall(r"^```py\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    namespace: dict[str, Any] = {}
    exec(compile(next(example for example in examples if "fetch/" in example), str(page), "exec"), namespace)
    assert namespace["observation"]["table_side"].shape == (84, 84, 9)
    assert namespace["info"]["success"] is False

"""Meta-World environments: success, rewards, images, failures and snapshots."""

import multiprocessing
import re
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from manyview.envs import MASK, NotRestorable, get_views, make, restore, snapshot
from manyview.envs.metaworld.env import UPSIDE_DOWN
from manyview.envs.metaworld.suite import CAMERAS
from manyview.envs.rendering.mujoco import _GLRenderer
from manyview.envs.testing import are_equal
from manyview.envs.views import Image, State, ViewWarning
from tests.support.metaworld import ScriptedExpert, get_metaworld_env, make_small_env


@pytest.mark.parametrize("name", ["reach", "drawer-open", "button-press-topdown", "pick-place"])
def test_the_info_reports_the_success_of_an_expert(name: str) -> None:
    env = make_small_env(name)
    _, info = env.reset(seed=5)
    assert info["success"] is False
    expert = ScriptedExpert(name, env)
    for _ in range(500):
        *_, truncated, info = env.step(expert.act())
        if info["success"] or truncated:
            break
    assert info["success"] is True
    env.close()


def test_success_does_not_end_the_episode_and_500_frames_do() -> None:
    env = make_small_env("reach", action_repeat=3)
    env.reset(seed=5)
    expert, successes, steps, truncated = ScriptedExpert("reach", env), 0, 0, False
    while not truncated:
        _, _, terminated, truncated, info = env.step(expert.act())
        assert not terminated
        successes += info["success"]
        steps += 1
    assert successes > 1
    assert steps == -(-500 // 3)
    env.close()


def test_the_reward_of_a_repeated_action_is_the_sum_over_its_frames() -> None:
    single, double = make_small_env("drawer-open"), make_small_env("drawer-open", action_repeat=2)
    single.reset(seed=0)
    double.reset(seed=0)
    action = np.array([0.1, 0.4, -0.5, 0], np.float32)
    for _ in range(5):
        first, second = float(single.step(action)[1]), float(single.step(action)[1])
        assert float(double.step(action)[1]) == first + second
    assert np.array_equal(get_metaworld_env(single).get_physics_state(), get_metaworld_env(double).get_physics_state())
    single.close()
    double.close()


def render_after_forward(env: Any, name: str) -> Image:
    """Return a view rendered after all derived quantities are recomputed from the state."""
    simulator = get_metaworld_env(env)._simulator
    mujoco.mj_forward(simulator.model, simulator.data)
    image = get_metaworld_env(env).render_views().images[name]
    assert image is not None
    return image


@pytest.mark.parametrize("name", ["window-close", "assembly", "reach", "drawer-open"])
def test_the_first_image_shows_the_current_state(name: str) -> None:
    env = make(f"metaworld/{name}", render_quality="fast", frame_stack=1)
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        for view in get_views(env):
            assert np.array_equal(observation[view.name], render_after_forward(env, view.name))
    env.close()


def test_exactly_the_upside_down_cameras_are_rotated() -> None:
    env = make_small_env("reach")
    env.reset(seed=0)
    data = get_metaworld_env(env)._simulator.data
    up_components = {camera: data.camera(camera).xmat.reshape(3, 3)[2, 1] for camera in CAMERAS}
    assert {camera for camera, z in up_components.items() if z < -0.1} == set(UPSIDE_DOWN)
    env.close()


def test_standard_quality_is_the_image_of_metaworld() -> None:
    env = make("metaworld/hammer", frame_stack=1)
    observation, _ = env.reset(seed=4)
    reference_env = ALL_V3_ENVIRONMENTS["hammer-v3"](
        render_mode="rgb_array", camera_name="corner4", width=84, height=84
    )
    reference_env._set_task_called, reference_env._freeze_rand_vec, reference_env.seeded_rand_vec = True, False, True
    reference_env.seed(4)
    reference_env.reset()
    action = np.array([0.5, 0.5, -0.5, 0.5], np.float32)
    for _ in range(2):
        reference_env.step(action)
    observation, *_ = env.step(action)
    assert np.array_equal(observation["corner4"][::-1, ::-1], reference_env.render())
    env.close()
    reference_env.close()


def test_fast_quality_shows_the_same_scene_without_shadows() -> None:
    observations = {}
    for quality in ("standard", "fast"):
        env = make("metaworld/drawer-open", render_quality=quality, frame_stack=1)
        observations[quality], _ = env.reset(seed=0)
        env.close()
    for view in ("corner", "corner4", "gripperPOV"):
        standard, fast = observations["standard"][view].astype(float), observations["fast"][view].astype(float)
        assert 0 < np.abs(standard - fast).mean() < 20
        assert np.corrcoef(standard.ravel(), fast.ravel())[0, 1] > 0.9


def test_images_rendered_larger_are_averaged() -> None:
    observations = []
    for size, scale in ((24, 3), (72, 1)):
        env = make("metaworld/reach", image_size=size, render_scale=scale, render_quality="fast", frame_stack=1)
        observations.append(env.reset(seed=0)[0])
        env.close()
    small, large = observations
    for view in ("corner", "corner4", "gripperPOV"):
        blocks = large[view].reshape(24, 3, 24, 3, 3).astype(np.float64)
        assert np.array_equal(small[view], np.floor(blocks.mean((1, 3)) + 0.5))


def test_closing_one_environment_does_not_change_the_images_of_another() -> None:
    first, second = (make("metaworld/reach", render_quality="fast", frame_stack=1) for _ in range(2))
    expected, _ = first.reset(seed=0)
    second.reset(seed=1)
    second.close()
    assert are_equal(first.reset(seed=0)[0], expected)
    first.close()


def test_an_unclosed_environment_exits_without_output() -> None:
    code = "import manyview; env = manyview.make('metaworld/reach', render_quality='fast'); env.reset(seed=0)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert (process.stdout, process.stderr) == ("", "")


def test_cameras_have_names_and_numbers() -> None:
    env = make("metaworld/reach", views=(1, "gripperPOV", 0), render_quality="fast")
    assert [view.name for view in get_views(env)] == ["corner", "gripperPOV", "topview"]
    env.close()
    with pytest.raises(ValueError, match="unknown camera: expected one of 0 topview, 1 corner"):
        make("metaworld/reach", views=("side",))


def test_a_camera_that_fails_is_absent_counted_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("metaworld/reach", render_quality="fast")
    env.reset(seed=0)
    base_env = get_metaworld_env(env)
    render = _GLRenderer.render

    def render_or_fail(self: _GLRenderer, model: Any, data: Any, camera: Any, shape: Any) -> Image:
        if camera == "corner4":
            raise OSError("no picture")
        return render(self, model, data, camera, shape)

    with monkeypatch.context() as patch, pytest.warns(ViewWarning, match="view 'corner4' is absent"):
        patch.setattr(_GLRenderer, "render", render_or_fail)
        observation, *_, info = env.step(np.zeros(4, np.float32))
    assert observation[MASK].tolist() == [1, 0, 1]
    assert not observation["corner4"].any()
    assert info["camera_failures"] == {"corner4": "OSError: no picture"}
    observation, *_ = env.step(np.zeros(4, np.float32))
    assert observation[MASK].all()
    assert base_env.counts == {
        "physics_errors": 0,
        "camera_failures/corner": 0,
        "camera_failures/corner4": 1,
        "camera_failures/gripperPOV": 0,
    }
    env.close()


@pytest.mark.parametrize("value", [1e30, np.nan])
def test_a_physics_error_is_a_truncation(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log there
    env = make("metaworld/pick-place", render_quality="fast", frame_stack=1)
    env.reset(seed=0)
    last_observation, *_ = env.step(np.ones(4, np.float32))
    get_metaworld_env(env)._simulator.data.qvel[3] = value
    observation, reward, terminated, truncated, info = env.step(np.ones(4, np.float32))
    assert (terminated, truncated, reward) == (False, True, 0.0)
    assert "diverged" in info["physics_error"]
    assert are_equal(observation, last_observation)
    assert get_metaworld_env(env).counts["physics_errors"] == 1
    state = snapshot(env)
    first_observation, _ = env.reset()
    env.step(np.ones(4, np.float32))
    assert are_equal(restore(env, state), last_observation)
    assert are_equal(env.reset()[0], first_observation)
    env.close()


def _continue_rollout(state: State, actions: list[Any], connection: Connection) -> None:
    env = make("metaworld/pick-place", render_quality="fast")
    restore(env, state)
    results = []
    for action in actions:
        observation, reward, *_ = env.step(action)
        results.append((float(reward), *(observation[view.name].tobytes() for view in get_views(env))))
    connection.send((results, get_metaworld_env(env).get_physics_state()))
    env.close()


def test_a_grasped_object_is_restored_exactly_in_another_process() -> None:
    env = make("metaworld/pick-place", render_quality="fast")
    expert = ScriptedExpert("pick-place", env)
    env.reset(seed=5)
    for _ in range(30):
        env.step(expert.act())
    state = snapshot(env)
    actions, expected = [], []
    for _ in range(100):
        actions.append(expert.act())
        observation, reward, *_ = env.step(actions[-1])
        expected.append((float(reward), *(observation[view.name].tobytes() for view in get_views(env))))
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_continue_rollout, args=(state, actions, send))
    process.start()
    send.close()
    assert receive.poll(300)
    results, physics_state = receive.recv()
    process.join(60)
    assert results == expected
    assert np.array_equal(physics_state, get_metaworld_env(env).get_physics_state())
    env.close()


def test_a_snapshot_that_does_not_fit_is_refused() -> None:
    env = make_small_env("reach")
    with pytest.raises(NotRestorable, match="not been reset"):
        snapshot(env)
    env.reset(seed=0)
    env.step(np.ones(4, np.float32))
    state = snapshot(env.unwrapped)
    other_env = make_small_env("push")
    with pytest.raises(NotRestorable, match="metaworld/reach"):
        restore(other_env.unwrapped, state)
    with pytest.raises(NotRestorable, match="led to a different physics state"):
        restore(env.unwrapped, {**state, "actions": -state["actions"]})
    env.close()
    other_env.close()


def test_the_example_of_the_documentation_runs() -> None:
    page = Path(__file__).parents[4] / "docs" / "guides" / "simulators.md"
    examples = re.findall(r"^```py\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    example = next(example for example in examples if "metaworld/" in example)
    namespace: dict[str, Any] = {}
    exec(compile(example, str(page), "exec"), namespace)
    assert namespace["observation"]["gripperPOV"].shape == (84, 84, 9)
    assert namespace["info"]["success"] is False

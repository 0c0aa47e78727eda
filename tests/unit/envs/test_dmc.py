"""DeepMind Control through the real simulator."""

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Unpack

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from manyview.envs import MASK, ContractError, NotRestorable, get_views, make, make_vector, restore, snapshot
from manyview.envs.dmc.env import DeepMindControl
from manyview.envs.dmc.suite import SUITE
from manyview.envs.dmc.tasks import CAMERAS, PAPER_TASKS, TASK_NAMES
from manyview.envs.foreground import extract_foreground_mask, remove_background
from manyview.envs.registration import resolve_settings
from manyview.envs.rendering.mujoco import _average_blocks, _GLRenderer
from manyview.envs.suite import MakeOptions
from manyview.envs.testing import EnvironmentContract, VectorContract, add_observation, are_equal
from manyview.envs.views import Observation, ViewWarning

pytestmark = pytest.mark.simulator
pytest.importorskip("dm_control", reason='pip install "manyview[dmc]"')

Env = gym.Env[Observation, Any]
RESTORED_TASKS = ("cheetah_run", "walker_run", "quadruped_run", "finger_turn_hard", "reacher_hard", "reach_duplo")
BALL_TASK = "dmc/ball_in_cup_catch"
RESTORED_OPTIONS: MakeOptions = {"render_quality": "fast", "action_repeat": 1, "image_size": 32}


class DmcContract(EnvironmentContract):
    """Contract with small images; the image content is tested below."""

    episode_end = "truncated"
    max_episode_steps = 250
    task: ClassVar[str]

    def make_env(self) -> Env:
        return make(f"dmc/{self.task}", render_quality="fast", image_size=24, action_repeat=4)


class TestCheetahRun(DmcContract):
    task = "cheetah_run"


class TestFingerTurnHard(DmcContract):
    task = "finger_turn_hard"


class TestHopperHop(DmcContract):
    task = "hopper_hop"


class TestQuadrupedRun(DmcContract):
    task = "quadruped_run"


class TestReacherHard(DmcContract):
    task = "reacher_hard"


class TestWalkerRun(DmcContract):
    task = "walker_run"


class TestAcrobotSwingup(DmcContract):
    task = "acrobot_swingup"


class TestCartpoleSwingupSparse(DmcContract):
    task = "cartpole_swingup_sparse"


class TestCartpoleBalanceSparse(DmcContract):
    task = "cartpole_balance_sparse"


class TestBallInCupCatch(DmcContract):
    task = "ball_in_cup_catch"


class TestPendulumSwingup(DmcContract):
    task = "pendulum_swingup"


class TestReachDuplo(DmcContract):
    task = "reach_duplo"


class TestVector(VectorContract):
    num_envs, max_episode_steps = 2, 500

    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        return make_vector("dmc/pendulum_swingup", self.num_envs, render_quality="fast", image_size=16, action_repeat=4)


class TestVectorInProcesses(VectorContract):
    num_envs, max_episode_steps = 2, 250

    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        options: MakeOptions = {"render_quality": "fast", "image_size": 16, "action_repeat": 8, "views": ["fixed"]}
        return make_vector("dmc/pendulum_swingup", self.num_envs, processes=True, **options)


def get_dmc_env(env: Env) -> DeepMindControl:
    dmc_env = env.unwrapped
    assert isinstance(dmc_env, DeepMindControl)
    return dmc_env


def collect_rollout(env: Env, steps: int, *, seed: int) -> list[tuple[Observation, float]]:
    """Return the observation and the reward of each of `steps` random actions."""
    env.action_space.seed(seed)
    results = []
    for _ in range(steps):
        observation, reward, *_ = env.step(env.action_space.sample())
        results.append((observation, float(reward)))
    return results


def test_the_task_table_is_that_of_dm_control() -> None:
    from dm_control import suite

    assert {(domain, task) for domain, tasks in TASK_NAMES.items() for task in tasks} == set(suite.ALL_TASKS)
    assert len(SUITE.tasks) == 52
    assert sum(task.in_paper for task in SUITE.tasks.values()) == 12


@pytest.mark.parametrize("domain", CAMERAS)
def test_the_camera_table_is_that_of_the_models(domain: str) -> None:
    task = next(task for task in SUITE.tasks.values() if task.id.startswith(f"dmc/{domain}"))
    env = make(task.id, render_quality="fast", image_size=16)
    env.reset(seed=0)
    model = get_dmc_env(env)._env.physics.model
    names = [model.id2name(number, "camera") for number in range(model.ncam)]
    if domain == "reach_duplo":  # the model of the robot adds cameras
        assert set(CAMERAS[domain]) <= set(names)
    else:
        assert tuple(names) == CAMERAS[domain]
    env.close()


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_standard_images_equal_dm_control_and_foregrounds_its_segmentation(task: str) -> None:
    import mujoco

    env = make(f"dmc/{task}")
    env.reset(seed=0)
    observation, _ = collect_rollout(env, 3, seed=0)[-1]
    physics = get_dmc_env(env)._env.physics
    first, second, foreground = get_views(env)
    rendered_images = {view.name: physics.render(84, 84, view.name) for view in (first, second)}
    for name, image in rendered_images.items():
        assert np.array_equal(observation[name][..., -3:], image)

    segmentation = physics.render(84, 84, first.name, segmentation=True)
    is_plane = physics.model.geom_type[np.maximum(segmentation[..., 0], 0)] == mujoco.mjtGeom.mjGEOM_PLANE
    is_background = (segmentation[..., 0] < 0) | (is_plane & (segmentation[..., 1] == mujoco.mjtObj.mjOBJ_GEOM))
    expected = np.where(is_background[..., None], np.array(foreground.fill, np.uint8), rendered_images[first.name])
    foreground_image = observation[foreground.name][..., -3:]
    assert np.array_equal(foreground_image, expected)
    assert 0.005 < 1 - is_background.mean() < 0.5

    assert np.array_equal(
        remove_background(
            rendered_images[first.name], extract_foreground_mask(foreground_image, foreground.fill), foreground.fill
        ),
        foreground_image,
    )
    env.close()


@pytest.mark.quality("D7")
@pytest.mark.parametrize("task", RESTORED_TASKS)
def test_a_restored_environment_continues_exactly(task: str) -> None:
    """State and pixels are equal for 200 steps from the middle of the second episode on.

    The snapshot is restored in a new environment and in its own.
    """
    env = make(f"dmc/{task}", **RESTORED_OPTIONS)
    env.reset(seed=5)
    collect_rollout(env, 10, seed=1)
    env.reset()
    collect_rollout(env, 30, seed=2)
    state = snapshot(env)
    expected = collect_rollout(env, 200, seed=3)
    physics_state = get_dmc_env(env).get_physics_state()

    other_env = make(f"dmc/{task}", **RESTORED_OPTIONS)
    for restored_env in (other_env, env):
        restore(restored_env, state)
        rollout = collect_rollout(restored_env, 200, seed=3)
        assert np.array_equal(get_dmc_env(restored_env).get_physics_state(), physics_state)
        for (observation, reward), (restored_observation, restored_reward) in zip(expected, rollout, strict=True):
            assert reward == restored_reward
            assert are_equal(observation, restored_observation)
    # The next episode is equal too: the random generator is restored.
    assert are_equal(other_env.reset()[0], env.reset()[0])
    env.close()
    other_env.close()


def encode_snapshot(state: Any) -> Any:
    """Convert a snapshot to JSON values; assert that it holds no other types."""
    if isinstance(state, dict):
        return {name: encode_snapshot(part) for name, part in state.items()}
    if isinstance(state, np.ndarray):
        return {"dtype": state.dtype.str, "shape": state.shape, "bytes": state.tobytes().hex()}
    assert state is None or isinstance(state, bool | int | float | str | list)
    return state


def decode_snapshot(state: Any) -> Any:
    if isinstance(state, dict) and "bytes" in state:
        return np.frombuffer(bytes.fromhex(state["bytes"]), state["dtype"]).reshape(state["shape"])
    return {name: decode_snapshot(part) for name, part in state.items()} if isinstance(state, dict) else state


def compute_rollout_digest(env: Env) -> str:
    hasher = hashlib.sha256(get_dmc_env(env).get_physics_state().tobytes())
    for observation, reward in collect_rollout(env, 200, seed=3):
        add_observation(hasher, observation)
        hasher.update(np.float64(reward).tobytes())
    hasher.update(get_dmc_env(env).get_physics_state().tobytes())
    return hasher.hexdigest()


@pytest.mark.quality("D7")
def test_a_snapshot_continues_exactly_in_a_new_process(tmp_path: Path) -> None:
    digests = {}
    for task in RESTORED_TASKS:
        env = make(f"dmc/{task}", **RESTORED_OPTIONS)
        env.reset(seed=6)
        collect_rollout(env, 20, seed=1)
        (tmp_path / f"{task}.json").write_text(json.dumps(encode_snapshot(snapshot(env))))
        digests[task] = compute_rollout_digest(env)
        env.close()
    code = f"from tests.unit.envs.test_dmc import *\nprint(json.dumps(compute_restored_digests({str(tmp_path)!r})))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(process.stdout.splitlines()[-1]) == digests


def compute_restored_digests(folder: str) -> dict[str, str]:
    digests = {}
    for task in RESTORED_TASKS:
        env = make(f"dmc/{task}", **RESTORED_OPTIONS)
        restore(env, decode_snapshot(json.loads(Path(folder, f"{task}.json").read_text())))
        digests[task] = compute_rollout_digest(env)
        env.close()
    return digests


@pytest.mark.parametrize("domain", [domain for domain in CAMERAS if domain != "dog"])
def test_a_task_of_every_domain_can_be_restored(domain: str) -> None:
    """The last task of each domain differs most from the paper's. The dogs are omitted: they are slow."""
    task = f"dmc/{domain}_{TASK_NAMES[domain][-1]}" if domain in TASK_NAMES else f"dmc/{domain}"
    options: MakeOptions = {"render_quality": "fast", "image_size": 16, "views": [SUITE.tasks[task].cameras[0]]}
    env, other_env = make(task, **options), make(task, **options)
    env.reset(seed=1)
    collect_rollout(env, 3, seed=1)
    env.reset()
    collect_rollout(env, 3, seed=2)
    restore(other_env, snapshot(env))
    for (observation, reward), (restored_observation, restored_reward) in zip(
        collect_rollout(env, 5, seed=3), collect_rollout(other_env, 5, seed=3), strict=True
    ):
        assert reward == restored_reward
        assert are_equal(observation, restored_observation)
    env.close()
    other_env.close()


def test_a_snapshot_with_other_actions_or_another_task_is_refused() -> None:
    env = make("dmc/cheetah_run", render_quality="fast", image_size=16)
    env.reset(seed=0)
    collect_rollout(env, 3, seed=0)
    state = snapshot(env)
    env_state = state["env"]["env"]
    env_state["actions"] = env_state["actions"] * np.float32(0.999)
    with pytest.raises(NotRestorable, match="led to a different physics state"):
        restore(env, state)
    env_state["task"] = "dmc/walker_run"
    with pytest.raises(NotRestorable, match="expected task dmc/cheetah_run, got dmc/walker_run"):
        restore(env, state)
    env.close()


@pytest.mark.quality("L5")
def test_physics_errors_truncate_and_are_counted() -> None:
    """At one step in a thousand a velocity becomes infinite, which MuJoCo detects."""
    env = make("dmc/cheetah_run", render_quality="fast", image_size=16, views=["side"])
    rng, steps, num_truncated = np.random.default_rng(0), 0, 0
    env.action_space.seed(0)
    env.reset(seed=0)
    while steps < 4000:
        if rng.random() < 1e-3:
            get_dmc_env(env)._env.physics.data.qvel[0] = np.inf
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        steps += 1
        assert not terminated
        assert observation[MASK].all()
        if truncated:
            if "physics_error" in info:
                num_truncated += 1
                assert reward == 0.0
                assert info["episode"]["steps"] < 500
            env.reset()
    assert num_truncated > 0
    assert get_dmc_env(env).counts["physics_errors"] == num_truncated
    env.close()


@pytest.mark.quality("L5")
def test_a_camera_that_fails_to_render_is_masked_counted_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("dmc/cheetah_run", render_quality="fast", image_size=24)
    env.reset(seed=0)
    render, failures = _GLRenderer.render, iter([False, True, True, False, False])

    def render_or_fail(self: _GLRenderer, model: Any, data: Any, camera: Any, shape: Any) -> Any:
        if camera == "side" and next(failures):
            raise RuntimeError("the cable is out")
        return render(self, model, data, camera, shape)

    monkeypatch.setattr(_GLRenderer, "render", render_or_fail)
    masks, infos = [], []
    env.action_space.seed(0)
    with pytest.warns(ViewWarning, match="view 'side' is absent") as caught_warnings:
        for _ in range(5):
            observation, *_, info = env.step(env.action_space.sample())
            masks.append(observation[MASK].tolist())
            infos.append(info)
            for view, present in zip(get_views(env), observation[MASK], strict=True):
                assert observation[view.name].any() == bool(present)
    assert len(caught_warnings) == 1
    # The view derived from the failing camera is absent too.
    assert masks == [[1, 1, 1], [0, 1, 0], [0, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert infos[1]["camera_failures"] == {"side": "RuntimeError: the cable is out"}
    assert get_dmc_env(env).counts["camera_failures/side"] == 2
    env.close()


@pytest.mark.quality("L5")
def test_a_lost_gl_context_masks_one_view_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("dmc/cheetah_run", render_quality="fast", image_size=24)
    expected, _ = env.reset(seed=0)
    renderer = get_dmc_env(env)._renderer._renderer  # type: ignore[union-attr]
    lost_context = renderer._gl_context

    def raise_error() -> None:
        raise RuntimeError("the GL context was lost")

    monkeypatch.setattr(lost_context, "make_current", raise_error)
    with pytest.warns(ViewWarning, match="the GL context was lost"):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
    assert renderer._gl_context is not lost_context  # the second camera was already rendered in a new one
    assert (terminated, truncated) == (False, False)
    assert observation[MASK].tolist() == [0, 1, 0]
    first_observation, _ = env.reset(seed=0)
    assert are_equal(first_observation, expected)
    env.close()


def test_failure_of_all_cameras_truncates_the_episode_and_prevents_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("dmc/cheetah_run", render_quality="fast", image_size=24)
    first_observation, _ = env.reset(seed=0)

    def raise_error(*_: Any) -> None:
        raise RuntimeError("no GL at all")

    monkeypatch.setattr(_GLRenderer, "render", raise_error)
    with pytest.warns(ViewWarning):
        observation, _, terminated, truncated, info = env.step(env.action_space.sample())
    assert (terminated, truncated, info["blind"]) == (False, True, True)
    assert are_equal(observation, first_observation)
    with pytest.raises(ContractError, match=r"at least one view present, got no view in .* no GL at all"):
        env.reset(seed=0)
    env.close()


def test_other_renderers_may_run_in_the_same_thread(tmp_path: Path) -> None:
    """dm_control, `mujoco.Renderer` and Gymnasium render between the steps, in a new process."""
    process = subprocess.run(
        [sys.executable, "-c", OTHER_RENDERERS_SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr


OTHER_RENDERERS_SCRIPT = """
import warnings; warnings.simplefilter("error")
import gymnasium as gym, mujoco, numpy as np
from manyview.envs import make
from manyview.envs.testing import are_equal
env, alone = (make("dmc/cheetah_run", render_quality="fast", image_size=40) for _ in range(2))
expected = [alone.reset(seed=0)[0]] + [alone.step(np.full(6, 0.1))[0] for _ in range(6)]
alone.close()
assert are_equal(env.reset(seed=0)[0], expected[0])
hopper = gym.make("Hopper-v5", render_mode="rgb_array", width=40, height=40)
hopper.reset()
physics = env.unwrapped._env.physics
renderer = mujoco.Renderer(physics.model.ptr, 40, 40)
for index, meddle in enumerate((
    hopper.render,
    lambda: physics.render(40, 40, "side"),
    lambda: (renderer.update_scene(physics.data.ptr, "back"), renderer.render()),
    hopper.render,
    renderer.close,
    hopper.close,
)):
    meddle()
    assert are_equal(env.step(np.full(6, 0.1))[0], expected[index + 1]), index
env.close()
"""


def test_an_environment_may_move_to_another_thread() -> None:
    env = make("dmc/cheetah_run", render_quality="fast", image_size=24)
    env.reset(seed=0)
    with ThreadPoolExecutor(1) as executor:
        observation = executor.submit(lambda: env.step(env.action_space.sample())[0]).result(timeout=120)
    assert observation[MASK].all()
    env.close()


def test_the_last_repeated_action_counts_only_its_frames() -> None:
    env = make("dmc/pendulum_swingup", render_quality="fast", image_size=16, action_repeat=7, views=["fixed"])
    env.reset(seed=0)
    truncated = False
    while not truncated:
        *_, truncated, info = env.step(env.action_space.sample())
    assert info["episode"]["frames"] == 1000
    env.close()


def test_rewards_of_a_repeated_action_add_up() -> None:
    action = np.full(6, 0.3, np.float32)
    single, double = (make("dmc/walker_run", render_quality="fast", image_size=16, action_repeat=n) for n in (1, 2))
    single.reset(seed=0)
    double.reset(seed=0)
    for _ in range(5):
        assert double.step(action)[1] == pytest.approx(float(single.step(action)[1]) + float(single.step(action)[1]))
    assert double.metadata["settings"].action_repeat == 2
    single.close()
    double.close()


def test_cameras_are_selected_by_name_or_number() -> None:
    env = make("dmc/quadruped_run", views=[2, "egocentric", "2_foreground"], render_quality="fast", image_size=16)
    assert [view.name for view in get_views(env)] == ["y", "egocentric", "y_foreground"]
    assert get_views(env)[2].derived_from == "y"
    env.close()
    with pytest.raises(ValueError, match=r"unknown camera: expected one of 0 side, 1 back .* got 'left'"):
        make("dmc/cheetah_run", views=["left"])
    with pytest.raises(ValueError, match="is derived from side"):
        make("dmc/cheetah_run", views=["back", "side_foreground"])


def test_two_environments_render_independently() -> None:
    single_env = make("dmc/cheetah_run", render_quality="fast", image_size=32)
    single_env.reset(seed=0)
    expected = collect_rollout(single_env, 5, seed=0)
    single_env.close()
    env, other_env = (
        make("dmc/cheetah_run", render_quality="fast", image_size=32),
        make("dmc/walker_run", image_size=48),
    )
    env.reset(seed=0)
    other_env.reset(seed=0)
    env.action_space.seed(0)
    for index, (observation, _) in enumerate(expected):
        assert are_equal(env.step(env.action_space.sample())[0], observation)
        if index == 2:
            other_env.close()  # closing one must not disturb the other
        elif index < 2:
            other_env.step(other_env.action_space.sample())
    env.close()


def test_terrain_that_a_reset_changes_is_rendered() -> None:
    env = make("dmc/quadruped_escape", views=["global"], frame_stack=1)
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        assert np.array_equal(observation["global"], get_dmc_env(env)._env.physics.render(84, 84, "global"))
    env.close()


def test_large_images_are_rendered() -> None:
    env = make("dmc/pendulum_swingup", image_size=700, views=["fixed"], frame_stack=1)
    observation, _ = env.reset(seed=0)
    assert observation["fixed"].shape == (700, 700, 3)
    assert observation["fixed"].std() > 1
    env.close()


def observe_after_steps(task: str, **options: Unpack[MakeOptions]) -> Observation:
    options["frame_stack"] = 1
    env = make(task, **options)
    env.action_space.seed(0)
    observation, _ = env.reset(seed=3)
    for _ in range(5):
        observation, *_ = env.step(env.action_space.sample())
    env.close()
    return observation


@pytest.mark.parametrize("task", ["ball_in_cup_catch", "cartpole_swingup"])
@pytest.mark.parametrize(("size", "scale"), [(40, 2), (24, 3), (24, 4)])
def test_images_rendered_larger_are_averaged(task: str, size: int, scale: int) -> None:
    name = f"dmc/{task}"
    small = observe_after_steps(name, render_quality="fast", image_size=size, render_scale=scale)
    large = observe_after_steps(name, render_quality="fast", image_size=size * scale)
    for camera in CAMERAS[task.removesuffix("_catch").removesuffix("_swingup")]:
        blocks = large[camera].reshape(size, scale, size, scale, 3)
        assert np.array_equal(small[camera], np.floor(blocks.astype(np.float64).mean((1, 3)) + 0.5))
    camera, *_ = SUITE.tasks[name].settings.views
    # An image pixel is in the foreground if any of its rendered pixels is.
    is_foreground = (large[f"{camera}_foreground"].reshape(size, scale, size, scale, 3) != 0).any((1, 3, 4))
    assert 0 < is_foreground.sum() < size**2 / 2
    assert np.array_equal(small[f"{camera}_foreground"], np.where(is_foreground[..., None], small[camera], 0))


@pytest.mark.parametrize(("smooth_scale", "scale"), [(None, 2), (4, 4)])
def test_smooth_is_fast_with_a_render_scale_of_2_unless_set(smooth_scale: int | None, scale: int) -> None:
    smooth = observe_after_steps(BALL_TASK, image_size=24, render_quality="smooth", render_scale=smooth_scale)
    assert are_equal(smooth, observe_after_steps(BALL_TASK, image_size=24, render_quality="fast", render_scale=scale))


def test_the_string_of_the_ball_shows_in_every_row_if_rendered_larger() -> None:
    """Between cup and ball: with one rendered pixel per image pixel most rows miss the string."""
    row_fractions = {}
    for scale in (1, 4):
        observation = observe_after_steps(BALL_TASK, image_size=24, render_quality="fast", render_scale=scale)
        rows = (observation["cam0_foreground"] != 0).any((1, 2)).nonzero()[0]
        row_fractions[scale] = len(rows) / (rows[-1] - rows[0] + 1)
    assert row_fractions[1] < 0.7
    assert row_fractions[4] == 1.0


def test_standard_quality_images_are_averaged_too() -> None:
    small, large = (
        observe_after_steps("dmc/pendulum_swingup", views=["fixed"], image_size=size, render_scale=scale)
        for size, scale in ((16, 2), (32, 1))
    )
    blocks = large["fixed"].reshape(16, 2, 16, 2, 3).astype(np.float64)
    assert np.array_equal(small["fixed"], np.floor(blocks.mean((1, 3)) + 0.5))


@pytest.mark.parametrize("scale", [1, 2, 3, 5, 8, 16])
def test_block_means_are_exact_up_to_the_largest_scale(scale: int) -> None:
    rng = np.random.default_rng(scale)
    for low in (0, 254):  # 254: sums near the limit of 16 bits
        image = rng.integers(low, 256, (3 * scale, 4 * scale, 3), np.uint8)[::-1]
        expected = np.empty((3, 4, 3))
        for row, column in np.ndindex(3, 4):
            block = image[row * scale : (row + 1) * scale, column * scale : (column + 1) * scale]
            expected[row, column] = np.floor(block.astype(np.float64).mean((0, 1)) + 0.5)
        assert np.array_equal(_average_blocks(image, scale), expected)


def test_the_resolved_settings_hold_the_render_scale() -> None:
    def resolve(**options: Unpack[MakeOptions]) -> int | None:
        return resolve_settings(SUITE.tasks["dmc/cheetah_run"], options).render_scale

    assert (resolve(), resolve(render_quality="fast"), resolve(render_quality="smooth")) == (1, 1, 2)
    assert (resolve(render_scale=3), resolve(render_quality="smooth", render_scale=3)) == (3, 3)
    assert resolve(render_scale=8, image_size=256) == 8
    assert resolve(image_size=4000) == 1  # the driver decides, not the scale


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"render_scale": 0}, "invalid render_scale: expected an integer of at least 1, got 0"),
        ({"render_scale": 2.0}, "invalid render_scale: expected an integer of at least 1, got 2.0"),
        ({"render_scale": 17, "image_size": 16}, "expected at most 16 for images of 16 pixels, got 17"),
        ({"render_scale": 9, "image_size": 256}, "expected at most 8 for images of 256 pixels, got 9"),
        ({"render_quality": "smooth", "image_size": 1025}, "expected at most 1 for images of 1025 pixels, got 2"),
    ],
)
def test_a_render_scale_out_of_bounds_is_rejected(options: MakeOptions, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make("dmc/cheetah_run", **options)


def test_a_snapshot_of_another_render_scale_is_rejected() -> None:
    coarse, fine, other = (
        make("dmc/pendulum_swingup", image_size=16, views=["fixed"], render_quality="fast", render_scale=scale)
        for scale in (1, 4, 4)
    )
    for env in (coarse, fine, other):
        env.reset(seed=1)
    assert are_equal(restore(other, snapshot(fine)), fine.reset(seed=1)[0])
    with pytest.raises(NotRestorable, match="snapshot does not fit this environment"):
        restore(coarse, snapshot(fine))
    # Snapshots from before the setting name the quality only.
    assert "render_scale" not in snapshot(coarse)["spec"]
    for env in (coarse, fine, other):
        env.close()

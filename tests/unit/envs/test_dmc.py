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
BALL = "dmc/ball_in_cup_catch"
RESTORED_OPTIONS: MakeOptions = {"render_quality": "fast", "action_repeat": 1, "image_size": 32}


class Contract(EnvironmentContract):
    """Drawn small: how it looks is tested below."""

    episode_end = "truncated"
    max_episode_steps = 250
    task: ClassVar[str]

    def make_env(self) -> Env:
        return make(f"dmc/{self.task}", render_quality="fast", image_size=24, action_repeat=4)


class TestCheetahRun(Contract):
    task = "cheetah_run"


class TestFingerTurnHard(Contract):
    task = "finger_turn_hard"


class TestHopperHop(Contract):
    task = "hopper_hop"


class TestQuadrupedRun(Contract):
    task = "quadruped_run"


class TestReacherHard(Contract):
    task = "reacher_hard"


class TestWalkerRun(Contract):
    task = "walker_run"


class TestAcrobotSwingup(Contract):
    task = "acrobot_swingup"


class TestCartpoleSwingupSparse(Contract):
    task = "cartpole_swingup_sparse"


class TestCartpoleBalanceSparse(Contract):
    task = "cartpole_balance_sparse"


class TestBallInCupCatch(Contract):
    task = "ball_in_cup_catch"


class TestPendulumSwingup(Contract):
    task = "pendulum_swingup"


class TestReachDuplo(Contract):
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


def bare(env: Env) -> DeepMindControl:
    inner = env.unwrapped
    assert isinstance(inner, DeepMindControl)
    return inner


def walk(env: Env, steps: int, *, seed: int) -> list[tuple[Observation, float]]:
    """What `steps` random actions show and pay."""
    env.action_space.seed(seed)
    seen = []
    for _ in range(steps):
        observation, reward, *_ = env.step(env.action_space.sample())
        seen.append((observation, float(reward)))
    return seen


def test_the_table_of_tasks_is_dm_controls() -> None:
    from dm_control import suite

    assert {(domain, task) for domain, tasks in TASK_NAMES.items() for task in tasks} == set(suite.ALL_TASKS)
    assert len(SUITE.tasks) == 52
    assert sum(task.in_paper for task in SUITE.tasks.values()) == 12


@pytest.mark.parametrize("domain", CAMERAS)
def test_the_table_of_cameras_is_the_models(domain: str) -> None:
    task = next(task for task in SUITE.tasks.values() if task.id.startswith(f"dmc/{domain}"))
    env = make(task.id, render_quality="fast", image_size=16)
    env.reset(seed=0)
    model = bare(env)._env.physics.model
    names = [model.id2name(number, "camera") for number in range(model.ncam)]
    if domain == "reach_duplo":  # the robot's own come with it
        assert set(CAMERAS[domain]) <= set(names)
    else:
        assert tuple(names) == CAMERAS[domain]
    env.close()


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_standard_is_what_dm_control_draws_and_foreground_what_segmentation_says(task: str) -> None:
    import mujoco

    env = make(f"dmc/{task}")
    env.reset(seed=0)
    observation, _ = walk(env, 3, seed=0)[-1]
    physics = bare(env)._env.physics
    first, second, foreground = get_views(env)
    drawn = {view.name: physics.render(84, 84, view.name) for view in (first, second)}
    for name, picture in drawn.items():
        assert np.array_equal(observation[name][..., -3:], picture)

    segmented = physics.render(84, 84, first.name, segmentation=True)
    plane = physics.model.geom_type[np.maximum(segmented[..., 0], 0)] == mujoco.mjtGeom.mjGEOM_PLANE
    background = (segmented[..., 0] < 0) | (plane & (segmented[..., 1] == mujoco.mjtObj.mjOBJ_GEOM))
    expected = np.where(background[..., None], np.array(foreground.fill, np.uint8), drawn[first.name])
    shown = observation[foreground.name][..., -3:]
    assert np.array_equal(shown, expected)
    assert 0.005 < 1 - background.mean() < 0.5

    assert np.array_equal(
        remove_background(drawn[first.name], extract_foreground_mask(shown, foreground.fill), foreground.fill), shown
    )
    env.close()


@pytest.mark.quality("D7")
@pytest.mark.parametrize("task", RESTORED_TASKS)
def test_a_restored_environment_goes_on_exactly(task: str) -> None:
    """From the middle of the second episode, 200 frames on: state and pixels, in a new environment and in the old."""
    env = make(f"dmc/{task}", **RESTORED_OPTIONS)
    env.reset(seed=5)
    walk(env, 10, seed=1)
    env.reset()
    walk(env, 30, seed=2)
    state = snapshot(env)
    expected = walk(env, 200, seed=3)
    physics = bare(env).get_physics_state()

    other = make(f"dmc/{task}", **RESTORED_OPTIONS)
    for restored in (other, env):
        restore(restored, state)
        went = walk(restored, 200, seed=3)
        assert np.array_equal(bare(restored).get_physics_state(), physics)
        for (observation, reward), (now, paid) in zip(expected, went, strict=True):
            assert reward == paid
            assert are_equal(observation, now)
    # And the episode after it: the generator went on too.
    assert are_equal(other.reset()[0], env.reset()[0])
    env.close()
    other.close()


def as_json(state: Any) -> Any:
    """A snapshot as plain JSON: nothing else may be in it."""
    if isinstance(state, dict):
        return {name: as_json(part) for name, part in state.items()}
    if isinstance(state, np.ndarray):
        return {"dtype": state.dtype.str, "shape": state.shape, "bytes": state.tobytes().hex()}
    assert state is None or isinstance(state, bool | int | float | str | list)
    return state


def from_json(state: Any) -> Any:
    if isinstance(state, dict) and "bytes" in state:
        return np.frombuffer(bytes.fromhex(state["bytes"]), state["dtype"]).reshape(state["shape"])
    return {name: from_json(part) for name, part in state.items()} if isinstance(state, dict) else state


def digest_of_walk(env: Env) -> str:
    seen = hashlib.sha256(bare(env).get_physics_state().tobytes())
    for observation, reward in walk(env, 200, seed=3):
        add_observation(seen, observation)
        seen.update(np.float64(reward).tobytes())
    seen.update(bare(env).get_physics_state().tobytes())
    return seen.hexdigest()


@pytest.mark.quality("D7")
def test_a_new_process_goes_on_exactly(tmp_path: Path) -> None:
    digests = {}
    for task in RESTORED_TASKS:
        env = make(f"dmc/{task}", **RESTORED_OPTIONS)
        env.reset(seed=6)
        walk(env, 20, seed=1)
        (tmp_path / f"{task}.json").write_text(json.dumps(as_json(snapshot(env))))
        digests[task] = digest_of_walk(env)
        env.close()
    code = f"from tests.unit.envs.test_dmc import *\nprint(json.dumps(restored_digests({str(tmp_path)!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout.splitlines()[-1]) == digests


def restored_digests(folder: str) -> dict[str, str]:
    digests = {}
    for task in RESTORED_TASKS:
        env = make(f"dmc/{task}", **RESTORED_OPTIONS)
        restore(env, from_json(json.loads(Path(folder, f"{task}.json").read_text())))
        digests[task] = digest_of_walk(env)
        env.close()
    return digests


@pytest.mark.parametrize("domain", [domain for domain in CAMERAS if domain != "dog"])
def test_a_task_of_every_domain_can_be_restored(domain: str) -> None:
    """The last of each, which differs most from the paper's. The dogs too, in principle; they are slow to play."""
    task = f"dmc/{domain}_{TASK_NAMES[domain][-1]}" if domain in TASK_NAMES else f"dmc/{domain}"
    options: MakeOptions = {"render_quality": "fast", "image_size": 16, "views": [SUITE.tasks[task].cameras[0]]}
    env, other = make(task, **options), make(task, **options)
    env.reset(seed=1)
    walk(env, 3, seed=1)
    env.reset()
    walk(env, 3, seed=2)
    restore(other, snapshot(env))
    for (one, paid), (two, earned) in zip(walk(env, 5, seed=3), walk(other, 5, seed=3), strict=True):
        assert paid == earned
        assert are_equal(one, two)
    env.close()
    other.close()


def test_a_snapshot_that_leads_elsewhere_is_refused() -> None:
    env = make("dmc/cheetah_run", render_quality="fast", image_size=16)
    env.reset(seed=0)
    walk(env, 3, seed=0)
    state = snapshot(env)
    inner = state["env"]["env"]
    inner["actions"] = inner["actions"] * np.float32(0.999)
    with pytest.raises(NotRestorable, match="led to a different physics state"):
        restore(env, state)
    inner["task"] = "dmc/walker_run"
    with pytest.raises(NotRestorable, match="expected task dmc/cheetah_run, got dmc/walker_run"):
        restore(env, state)
    env.close()


@pytest.mark.quality("L5")
def test_physics_errors_truncate_and_are_counted() -> None:
    """Real ones: one step in a thousand, a velocity becomes infinite, and MuJoCo says so."""
    env = make("dmc/cheetah_run", render_quality="fast", image_size=16, views=["side"])
    rng, steps, truncations = np.random.default_rng(0), 0, 0
    env.action_space.seed(0)
    env.reset(seed=0)
    while steps < 4000:
        if rng.random() < 1e-3:
            bare(env)._env.physics.data.qvel[0] = np.inf
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        steps += 1
        assert not terminated
        assert observation[MASK].all()
        if truncated:
            if "physics_error" in info:
                truncations += 1
                assert reward == 0.0
                assert info["episode"]["steps"] < 500
            env.reset()
    assert truncations > 0
    assert bare(env).counts["physics_errors"] == truncations
    env.close()


@pytest.mark.quality("L5")
def test_a_camera_that_cannot_be_drawn_is_masked_counted_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("dmc/cheetah_run", render_quality="fast", image_size=24)
    env.reset(seed=0)
    paint, fails = _GLRenderer.render, iter([False, True, True, False, False])

    def failing(self: _GLRenderer, model: Any, data: Any, camera: Any, shape: Any) -> Any:
        if camera == "side" and next(fails):
            raise RuntimeError("the cable is out")
        return paint(self, model, data, camera, shape)

    monkeypatch.setattr(_GLRenderer, "render", failing)
    masks, infos = [], []
    env.action_space.seed(0)
    with pytest.warns(ViewWarning, match="view 'side' is absent") as said:
        for _ in range(5):
            observation, *_, info = env.step(env.action_space.sample())
            masks.append(observation[MASK].tolist())
            infos.append(info)
            for view, present in zip(get_views(env), observation[MASK], strict=True):
                assert observation[view.name].any() == bool(present)
    assert len(said) == 1
    # The view that is made from the failing camera goes with it.
    assert masks == [[1, 1, 1], [0, 1, 0], [0, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert infos[1]["camera_failures"] == {"side": "RuntimeError: the cable is out"}
    assert bare(env).counts["camera_failures/side"] == 2
    env.close()


@pytest.mark.quality("L5")
def test_a_lost_gl_context_costs_an_episode_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("dmc/cheetah_run", render_quality="fast", image_size=24)
    first, _ = env.reset(seed=0)
    painter = bare(env)._renderer._renderer  # type: ignore[union-attr]
    lost = painter._gl_context

    def gone() -> None:
        raise RuntimeError("the GL context was lost")

    monkeypatch.setattr(lost, "make_current", gone)
    with pytest.warns(ViewWarning, match="the GL context was lost"):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
    assert painter._gl_context is not lost  # the second camera already had another
    assert (terminated, truncated) == (False, False)
    assert observation[MASK].tolist() == [0, 1, 0]
    again, _ = env.reset(seed=0)
    assert are_equal(again, first)
    env.close()


def test_an_environment_without_any_camera_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("dmc/cheetah_run", render_quality="fast", image_size=24)
    first, _ = env.reset(seed=0)

    def failing(*_: Any) -> None:
        raise RuntimeError("no GL at all")

    monkeypatch.setattr(_GLRenderer, "render", failing)
    with pytest.warns(ViewWarning):
        observation, _, terminated, truncated, info = env.step(env.action_space.sample())
    assert (terminated, truncated, info["blind"]) == (False, True, True)
    assert are_equal(observation, first)
    with pytest.raises(ContractError, match=r"at least one view present, got no view in .* no GL at all"):
        env.reset(seed=0)
    env.close()


def test_others_may_draw_in_the_same_thread(tmp_path: Path) -> None:
    """dm_control, `mujoco.Renderer` and Gymnasium's own rendering, in between, and in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-c", OTHERS], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr


OTHERS = """
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
    with ThreadPoolExecutor(1) as elsewhere:
        observation = elsewhere.submit(lambda: env.step(env.action_space.sample())[0]).result(timeout=120)
    assert observation[MASK].all()
    env.close()


def test_frames_are_counted_to_the_last() -> None:
    env = make("dmc/pendulum_swingup", render_quality="fast", image_size=16, action_repeat=7, views=["fixed"])
    env.reset(seed=0)
    ended = False
    while not ended:
        *_, ended, info = env.step(env.action_space.sample())
    assert info["episode"]["frames"] == 1000
    env.close()


def test_rewards_of_a_repeated_action_add_up() -> None:
    action = np.full(6, 0.3, np.float32)
    one, two = (make("dmc/walker_run", render_quality="fast", image_size=16, action_repeat=n) for n in (1, 2))
    one.reset(seed=0)
    two.reset(seed=0)
    for _ in range(5):
        assert two.step(action)[1] == pytest.approx(float(one.step(action)[1]) + float(one.step(action)[1]))
    assert two.metadata["settings"].action_repeat == 2
    one.close()
    two.close()


def test_cameras_go_by_name_or_number() -> None:
    env = make("dmc/quadruped_run", views=[2, "egocentric", "2_foreground"], render_quality="fast", image_size=16)
    assert [view.name for view in get_views(env)] == ["y", "egocentric", "y_foreground"]
    assert get_views(env)[2].derived_from == "y"
    env.close()
    with pytest.raises(ValueError, match=r"unknown camera: expected one of 0 side, 1 back .* got 'left'"):
        make("dmc/cheetah_run", views=["left"])
    with pytest.raises(ValueError, match="is derived from side"):
        make("dmc/cheetah_run", views=["back", "side_foreground"])


def test_two_environments_side_by_side_draw_as_if_alone() -> None:
    alone = make("dmc/cheetah_run", render_quality="fast", image_size=32)
    alone.reset(seed=0)
    expected = walk(alone, 5, seed=0)
    alone.close()
    env, other = (
        make("dmc/cheetah_run", render_quality="fast", image_size=32),
        make("dmc/walker_run", image_size=48),
    )
    env.reset(seed=0)
    other.reset(seed=0)
    env.action_space.seed(0)
    for index, (observation, _) in enumerate(expected):
        assert are_equal(env.step(env.action_space.sample())[0], observation)
        if index == 2:
            other.close()  # closing one must not disturb the other
        elif index < 2:
            other.step(other.action_space.sample())
    env.close()


def test_ground_that_a_reset_shaped_anew_is_drawn_as_it_is() -> None:
    env = make("dmc/quadruped_escape", views=["global"], frame_stack=1)
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        assert np.array_equal(observation["global"], bare(env)._env.physics.render(84, 84, "global"))
    env.close()


def test_large_images_are_drawn_too() -> None:
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
def test_pictures_rendered_larger_are_averaged(task: str, size: int, scale: int) -> None:
    name = f"dmc/{task}"
    small = observe_after_steps(name, render_quality="fast", image_size=size, render_scale=scale)
    large = observe_after_steps(name, render_quality="fast", image_size=size * scale)
    for camera in CAMERAS[task.removesuffix("_catch").removesuffix("_swingup")]:
        blocks = large[camera].reshape(size, scale, size, scale, 3)
        assert np.array_equal(small[camera], np.floor(blocks.astype(np.float64).mean((1, 3)) + 0.5))
    camera, *_ = SUITE.tasks[name].settings.views
    # An image pixel is in the foreground if any of its rendered pixels is.
    shown = (large[f"{camera}_foreground"].reshape(size, scale, size, scale, 3) != 0).any((1, 3, 4))
    assert 0 < shown.sum() < size**2 / 2
    assert np.array_equal(small[f"{camera}_foreground"], np.where(shown[..., None], small[camera], 0))


@pytest.mark.parametrize(("smooth_scale", "scale"), [(None, 2), (4, 4)])
def test_smooth_is_fast_with_a_render_scale_of_2_unless_set(smooth_scale: int | None, scale: int) -> None:
    smooth = observe_after_steps(BALL, image_size=24, render_quality="smooth", render_scale=smooth_scale)
    assert are_equal(smooth, observe_after_steps(BALL, image_size=24, render_quality="fast", render_scale=scale))


def test_the_string_of_the_ball_shows_in_every_row_if_rendered_larger() -> None:
    """Between cup and ball: with one rendered pixel per image pixel most rows miss the string."""
    shown = {}
    for scale in (1, 4):
        view = observe_after_steps(BALL, image_size=24, render_quality="fast", render_scale=scale)
        rows = (view["cam0_foreground"] != 0).any((1, 2)).nonzero()[0]
        shown[scale] = len(rows) / (rows[-1] - rows[0] + 1)
    assert shown[1] < 0.7
    assert shown[4] == 1.0


def test_standard_pictures_are_averaged_too() -> None:
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
